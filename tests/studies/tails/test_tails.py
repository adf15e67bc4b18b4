"""Whole studies of tails: what is found, resuming, passes over the text."""

from __future__ import annotations

import json
from dataclasses import replace

import esscher.studies.tails.work as working
import pytest

import esscher
from esscher.core.errors import InputError
from esscher.math.tails import VERDICTS
from esscher.runs.executors import chosen_executor
from esscher.studies.tails import TailsStudy
from tests.engine.models.folders import random_words, tiny

SMALL = {"tokens": 1200, "context": 48}


@pytest.mark.parametrize("name", ["bert", "llama", "gemma2"])
def test_results_have_everything(name, tmp_path):
    found = esscher.tails(
        tiny(name), [random_words()], layers=[0, 1], out=tmp_path / "run", **SMALL
    )
    assert isinstance(found, esscher.results.Tails)
    assert found.complete
    assert [(h.layer, h.head) for h in found.heads] == [
        (layer, head) for layer in (0, 1) for head in range(4)
    ]
    for head in found.heads:
        assert head.verdict == "undecided"  # single heads are not judged: the halves do not agree
        assert len(head.halves) == 2
        assert set(head.halves) <= set(VERDICTS)
        assert head.key_head == (head.head if name == "bert" else head.head // 2)
        assert head.with_delimiters.tokens > head.tokens
    if name == "llama":  # grouped keys: the same keys, other logits
        one, two = found.head(0, 0), found.head(0, 1)
        assert one.tail == two.tail
        assert one.logits != two.logits
    keys = found.agreement["keys"]
    assert keys.clouds == (8 if name == "bert" else 4)
    assert not found.reproducible
    assert "not judged" in found.headline
    json.dumps(found.to_dict(), allow_nan=False)
    assert len(found.table()) == 8
    assert len(found.layers_table()) == 2
    assert "heads" in repr(found)
    assert "<table" in found._repr_html_()
    assert esscher.load(tmp_path / "run").to_dict() == found.to_dict()


def test_a_stopped_run_resumes_to_the_same(tmp_path, monkeypatch):
    loaded, source = tiny(), [random_words()]
    whole = esscher.tails(loaded, source, heads=[1], **SMALL)
    measured = working.measure_layer

    def fails(layer, *arguments):
        if layer == 1:
            raise KeyboardInterrupt
        return measured(layer, *arguments)

    monkeypatch.setattr(working, "measure_layer", fails)
    with pytest.raises(KeyboardInterrupt):
        esscher.tails(loaded, source, heads=[1], out=tmp_path / "run", **SMALL)
    monkeypatch.undo()
    assert not esscher.load(tmp_path / "run").complete
    again = esscher.tails(loaded, source, heads=[1], out=tmp_path / "run", **SMALL)
    assert again.complete
    assert again.heads == whole.heads
    with pytest.raises(InputError, match="seed: stored 0, now 1"):
        esscher.tails(loaded, source, heads=[1], seed=1, out=tmp_path / "run", **SMALL)


def test_layers_in_groups_give_the_same():
    """Few bytes at a time: one pass over the text per layer, and the same numbers."""
    study = TailsStudy(model=tiny(), text=[random_words()], layers=[0, 2], heads=[2], **SMALL)
    with chosen_executor() as executor:
        work = study.checked().filled().prepare(executor)
        found = []
        apart = replace(work, held=1), [["layer-0"], ["layer-2"]]
        for one, groups in ((work, [["layer-0", "layer-2"]]), apart):
            with one.study.opened(None) as run:
                batches = list(one.batches(run))
            assert [list(batch) for batch in batches] == groups
            found.append({name: task().about for batch in batches for name, task in batch.items()})
    assert found[0] == found[1]


def test_the_default_is_what_the_text_has():
    found = esscher.tails(tiny("bert"), [random_words(700)], layers=[0], heads=[0])
    assert found.study.tokens == 700
    with pytest.raises(InputError, match="has only 700 tokens, but 5000 are asked for"):
        esscher.tails(tiny("bert"), [random_words(700)], tokens=5000, layers=[0], heads=[0])
    with pytest.raises(InputError, match="only 100 tokens; give a text with at least 500"):
        esscher.tails(tiny("bert"), [random_words(100)], layers=[0], heads=[0])
