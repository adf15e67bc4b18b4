"""Real heads: dense attention is the model's own, patterns on it, and patterns inside a model."""

from __future__ import annotations

import json

import numpy as np
import pytest
import torch
import xarray as xr

import esscher
from esscher.cli.study import print_result
from esscher.core.errors import InputError
from esscher.core.streams import random_stream
from esscher.engine.patterns import PATTERNS, View
from esscher.engine.text.collect import visit_passages
from esscher.engine.text.documents import read_text
from esscher.engine.text.packing import passages
from esscher.math.statistics import LAWS
from esscher.studies.sparse import sparse
from esscher.studies.sparse.compare import RESOLUTION
from esscher.studies.sparse.measure import choose_queries, measure_passage
from esscher.studies.sparse.study import SparseStudy
from tests.engine.models.folders import tiny, words
from tests.runs.stopped import stopped_at

SMALL = {"context": 72, "passages": 6, "query_count": 8, "budgets": [8, 16, 32]}


@pytest.mark.parametrize("name", ["bert", "llama"])
def test_errors_are_those_of_attention_over_the_chosen_keys(name) -> None:
    loaded = tiny(name)
    passage = next(iter(passages(loaded, read_text([words(500)]), context=72)))
    study = SparseStudy(
        "tiny",
        patterns=("random", "window"),
        budgets=(8, 16),
        context=72,
        layers=(1,),
        heads=(0, 3),
        query_count=6,
        draws=2,
        seed=5,
    )
    cell = measure_passage(loaded, passage, study.resolve(loaded.outline)).dataset
    errors = cell["error"].isel(layer=0, replicate=0).values
    asking = choose_queries(passage, loaded.causal, 6, 5)
    captured = []
    visit_passages(loaded, [passage], lambda _, capture: captured.append(capture), layers=[1])
    capture = captured[0]
    view = View.of(asking, 72, causal=loaded.causal)
    norms = []
    for u, head in enumerate((0, 3)):
        logits = capture.logits(0, head)[torch.from_numpy(asking)].numpy()
        value = capture.v[0, head // capture.group].to(torch.float64).numpy()
        # dense attention is what the model itself computes
        own = capture.output[0, head][torch.from_numpy(asking)].numpy()
        weights = np.exp(logits - logits.max(axis=1, keepdims=True))
        dense = weights @ value / weights.sum(axis=1, keepdims=True)
        np.testing.assert_allclose(dense, own, rtol=2e-4, atol=2e-5)
        norm = np.sqrt(np.mean(np.sum(dense**2, axis=1)))
        norms.append(norm)

        def relative(outputs, dense=dense, norm=norm):
            mean = np.linalg.norm(outputs.mean(0) - dense.mean(0)) / norm
            cov = np.linalg.norm(np.cov(outputs.T, bias=True) - np.cov(dense.T, bias=True))
            rms = np.sqrt(np.mean(np.sum((outputs - dense) ** 2, axis=1)))
            return [mean, cov / norm**2, rms / norm]

        for b, r in enumerate((8, 16)):
            outputs = []
            for q, at in zip(range(6), asking, strict=True):
                last = at + 1 if loaded.causal else min(max(at - r // 2, 0), 72 - r) + r
                keys = np.arange(last - r, last)
                outputs.append(weights[q, keys] @ value[keys] / weights[q, keys].sum())
            window = relative(np.array(outputs))
            np.testing.assert_allclose(errors[1, :, u, b], window, rtol=1e-3)
            drawn = []
            for draw in range(2):
                rng = random_stream(5, "sparse selection", passage.number, 1, draw)
                sight = PATTERNS["random"].select(view, r, rng)
                got = sight.attend(torch.from_numpy(logits), torch.from_numpy(value)).numpy()
                drawn.append(relative(got))
            np.testing.assert_allclose(errors[0, :, u, b], np.mean(drawn, axis=0), rtol=1e-3)
    assert float(cell["norm"]) == pytest.approx(np.mean(norms), rel=1e-5)


@pytest.mark.parametrize("name", ["bert", "llama", "gemma2"])
def test_results_have_everything(name, tmp_path) -> None:
    # the second layer of the tiny Gemma is the one without a window
    layers = [1] if name == "gemma2" else [0, 2]
    loaded = tiny(name)
    result = sparse(
        loaded,
        [words(2000)],
        layers=layers,
        heads=[0, 2],
        out=tmp_path / "run",
        progress=False,
        patterns="window,corrected,topk,linformer",
        **SMALL,
    )
    assert result.complete
    json.dumps(result.to_dict(), allow_nan=False)
    data = result.data
    assert data["pattern"].values.tolist() == ["random", "corrected", "topk", "window", "linformer"]
    assert data["error"].shape == (5, 3, 3, 3)
    assert set(data["law"].values.ravel()) <= set(LAWS)
    assert len(result.table("heads")) == 2 * len(layers)
    assert len(result.table()) == 5
    assert len(result.table("curves")) == 45
    # heads count alike: the curve is the mean over the heads
    curves = data["error"].sel(metric="map", bound="value")
    np.testing.assert_allclose(data["head_error"].mean(["layer", "head"]), curves)
    # the details of a fit are those of the errors that are stored
    factor = np.sqrt(1 - data["budget"].values / float(data["visible"]))
    errors = data["replicate_error"].sel(pattern="window", metric="map").values / factor
    fit = esscher.fit_rate(errors, SMALL["budgets"], resolution=RESOLUTION)
    assert fit.exponent == data["exponent"].sel(pattern="window", metric="map", bound="value")
    head = result.head(layers[0], 2)
    assert "best" in repr(head)
    assert len(head.curves()) == 15
    with pytest.raises(InputError, match=r"head 9\.0 was not measured"):
        result.head(9, 0)
    xr.testing.assert_identical(esscher.load(tmp_path / "run").data, data)


def test_two_workers_give_the_same() -> None:
    options = SMALL | {"layers": [0], "patterns": "corrected,topk", "progress": False}
    alone, both = (sparse(tiny("llama"), [words(2000)], workers=n, **options) for n in (1, 2))
    xr.testing.assert_equal(alone.data, both.data)


def test_a_killed_study_resumes_to_the_same(tmp_path) -> None:
    loaded, text = tiny("llama"), [words(2000)]
    options = SMALL | {"layers": [0], "patterns": "corrected", "progress": False}
    whole = sparse(loaded, text, **options)
    with stopped_at("passage-2"):
        sparse(loaded, text, out=tmp_path / "run", **options)
    part = esscher.load(tmp_path / "run")
    assert not part.complete
    assert part.data.sizes["replicate"] == 2
    again = sparse(loaded, text, out=tmp_path / "run", **options)
    xr.testing.assert_equal(again.data, whole.data)
    with pytest.raises(InputError, match="another configuration"):
        sparse(loaded, text, out=tmp_path / "run", **(options | {"query_count": 9}))


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"budgets": [8, 72]}, "may see only 55 keys"),
        ({"budgets": [8]}, "at least 2"),
        ({"budgets": [4, 16], "patterns": "bigbird"}, "'bigbird' needs at least 8"),
        ({"passages": 1000}, "has only .* whole passages of 72"),
        ({"context": 5000}, "reads at most"),
        ({"budgets": [16, 8]}, "strictly increasing"),
        ({"patterns": "zigzag"}, "no pattern 'zigzag'"),
        (
            {"budgets": None, "context": 40},
            "takes 32; give budgets of your own, or a context of at least 42",
        ),
    ],
)
def test_bad_input(options, message, tmp_path) -> None:
    with pytest.raises(InputError, match=message):
        sparse(tiny("llama"), [words(900)], out=tmp_path / "run", **(SMALL | options))
    assert not (tmp_path / "run").exists()


def test_one_passage_decides_nothing(tmp_path) -> None:
    options = SMALL | {"passages": 1, "layers": [0], "patterns": "window", "progress": False}
    result = sparse(tiny("llama"), [words(900)], **options)
    assert result["verdict"].sel(pattern="window") == "undecided"
    assert result["exponent"].sel(bound=["low", "high"]).isnull().all()
    json.dumps(result.to_dict(), allow_nan=False)
    assert "window" in repr(result)
    print_result(result)
    result.plot().save(tmp_path / "one.svg")


def test_a_window_that_is_shorter_than_the_budget() -> None:
    with pytest.raises(InputError, match="layer 0 see as few as 5 keys"):
        sparse(tiny("mistral"), [words(900)], **SMALL)
