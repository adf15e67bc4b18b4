"""Whole studies of tails: what they measure, resuming, passes over the text."""

from __future__ import annotations

import json

import pytest
import xarray as xr

import esscher
import esscher.studies.tails.measure as measuring
from esscher.core.errors import InputError
from esscher.math.tails.verdict import VERDICTS
from esscher.runs.executors import chosen_executor
from esscher.studies.tails.study import TailsData, TailsStudy
from tests.engine.models.folders import random_words, tiny

SMALL = {"tokens": 1200, "context": 48}


@pytest.mark.parametrize("name", ["bert", "llama", "gemma2"])
def test_results_have_everything(name, tmp_path):
    result = esscher.tails(
        tiny(name), [random_words()], layers=[0, 1], out=tmp_path / "run", **SMALL
    )
    assert result.complete
    data = TailsData(result.data)
    keys = data.keys
    assert keys.tokens.sizes == {"layer": 2, "head": 4, "subset": 2}
    # single heads are not judged: the halves do not agree
    assert set(keys.verdict.values.ravel()) == {"undecided"}
    assert set(keys.half_verdict.values.ravel()) <= set(VERDICTS)
    shared = 1 if name == "bert" else 2
    assert data.key_head.values.tolist() == [[head // shared for head in range(4)]] * 2
    assert (keys.tokens.sel(subset="all") > keys.tokens.sel(subset="text")).all()
    if name == "llama":  # grouped keys: the same keys, other logits
        first, second = result.head(0, 0), result.head(0, 1)
        xr.testing.assert_equal(
            first["fit_tau"].drop_vars("head"), second["fit_tau"].drop_vars("head")
        )
        assert (first["logits_k"].values != second["logits_k"].values).all()
        assert repr(first).startswith("head 0.0: proxy")
    assert int(data.clouds.sel(group="keys")) == (8 if name == "bert" else 4)
    assert not data.reproducible.any()
    assert "not judged" in result.headline
    json.dumps(result.to_dict(), allow_nan=False)
    assert {name: len(result.table(name)) for name in result.tables()} == {
        "heads": 8,
        "layers": 2,
        "halves": 4,
    }
    assert "heads" in repr(result)
    assert "<table" in result._repr_html_()
    assert esscher.load(tmp_path / "run").to_dict() == result.to_dict()
    assert result.compare(result).different.empty


def test_a_stopped_run_resumes_to_the_same(tmp_path, monkeypatch):
    loaded, source = tiny(), [random_words()]
    whole = esscher.tails(loaded, source, heads=[1], **SMALL)
    measured = measuring.measure_layer

    def fails(layer, *arguments):
        if layer == 1:
            raise KeyboardInterrupt
        return measured(layer, *arguments)

    monkeypatch.setattr(measuring, "measure_layer", fails)
    with pytest.raises(KeyboardInterrupt):
        esscher.tails(loaded, source, heads=[1], out=tmp_path / "run", **SMALL)
    monkeypatch.undo()
    assert not esscher.load(tmp_path / "run").complete
    again = esscher.tails(loaded, source, heads=[1], out=tmp_path / "run", **SMALL)
    assert again.complete
    xr.testing.assert_equal(again.data, whole.data)
    with pytest.raises(InputError, match="seed: stored 0, now 1"):
        esscher.tails(loaded, source, heads=[1], seed=1, out=tmp_path / "run", **SMALL)


def test_layers_in_groups_give_the_same(monkeypatch):
    """Few bytes at a time: one pass over the text per layer, and the same numbers."""
    study = TailsStudy(model=tiny(), text=[random_words()], layers=[0, 2], heads=[2], **SMALL)
    with chosen_executor() as executor:
        setup, batches_of = study.checked().prepare(executor)
        cells = []
        for held, groups in ((2**30, [["layer-0", "layer-2"]]), (1, [["layer-0"], ["layer-2"]])):
            monkeypatch.setattr("esscher.studies.tails.measure.HELD", held)
            with study.opened(setup, None) as run:
                batches = list(batches_of(run))
            assert [list(batch) for batch in batches] == groups
            cells.append({name: task() for batch in batches for name, task in batch.items()})
    assert cells[0].keys() == cells[1].keys()
    for name, cell in cells[0].items():
        xr.testing.assert_identical(cell, cells[1][name])


def test_the_default_is_what_the_text_has():
    result = esscher.tails(tiny("bert"), [random_words(700)], layers=[0], heads=[0])
    assert result.setup.settings.tokens == 700
    with pytest.raises(InputError, match="has only 700 tokens, but 5000 are needed"):
        esscher.tails(tiny("bert"), [random_words(700)], tokens=5000, layers=[0], heads=[0])
    with pytest.raises(InputError, match="only 100 tokens, but 500 are needed"):
        esscher.tails(tiny("bert"), [random_words(100)], layers=[0], heads=[0])
