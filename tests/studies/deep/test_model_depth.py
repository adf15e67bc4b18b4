"""Real architectures: errors by layer, the end, terciles of heads, resuming, bad input."""

from __future__ import annotations

import json

import numpy as np
import pytest
import torch
import xarray as xr
from scipy import stats

import esscher
from esscher.core.errors import InputError
from esscher.core.streams import random_stream
from esscher.math.statistics import LAWS
from esscher.studies.deep.combine import (
    growth_factors,
    independent_errors,
)
from esscher.studies.deep.sampling import (
    draw_keys,
    head_horizons,
    sampled_attention,
    split_terciles,
)
from esscher.studies.deep.study import TERCILES, DeepSettings
from esscher.studies.probe import probe
from tests.engine.models.folders import tiny, words
from tests.runs.stopped import stopped_at

SMALL = {"context": 48, "passages": 2, "draws": 2, "sizes": [4, 10, 28]}
TEXT = [words(400)]


@pytest.fixture(scope="module")
def measured(tmp_path_factory):
    place = tmp_path_factory.mktemp("runs")
    return {
        name: esscher.deep(tiny(name), TEXT, out=place / name, **SMALL)
        for name in ("bert", "llama")
    }


@pytest.mark.parametrize("name", ["bert", "llama"])
def test_results_have_everything(name, measured):
    result = measured[name]
    json.dumps(result.to_dict(), allow_nan=False)
    assert result.complete
    data = result.data
    assert data["error"].dims == ("curve", "layer", "size", "bound")
    assert data["error"].shape == (2, 3, 3, 3)
    assert data["growth"].sel(layer=0).isnull().all()
    assert set(data["law"].values.ravel()) <= set(LAWS)
    numbers = {"llama": {"kl", "top1", "perplexity", "ratio"}, "bert": {"cosine"}}[name]
    assert set(result.table("end")) >= numbers
    assert ("dense_perplexity" in data) == (name == "llama")
    assert data["sampled"].values.tolist() == ["independent", "shared", *TERCILES]
    assert len(result.table("errors")) == 3 * 2 * 3
    assert result.head(1, 2)["tercile"] in TERCILES
    xr.testing.assert_identical(esscher.load(result.folder).data, data)
    # of the errors of all passages a fit follows
    n, eligible = data["size"].values, data["eligible"].values[:, None]
    errors = data["replicate_error"].sel(curve="shared", layer=1).values
    fit = esscher.fit_rate(errors / np.sqrt((eligible - n) / (eligible - 1)), n)
    assert fit.exponent == data["exponent"].sel(curve="shared", layer=1, bound="value")


def test_two_workers_give_the_same(measured):
    again = esscher.deep(tiny("llama"), TEXT, workers=2, **SMALL)
    xr.testing.assert_equal(again.data, measured["llama"].data)


def test_stored_errors_are_those_of_the_hidden_states(reader_of):
    """Recomputed by hand from transformers' own hidden states."""
    reader = reader_of("bert")
    settings = DeepSettings(
        sizes=(10,), context=48, passages=1, draws=1, keys="shared", terciles="none", seed=0
    )
    cell = reader.cell({"shared": ("shared", None)}, settings)
    ids = torch.from_numpy(reader.passage.ids)[None]
    with torch.no_grad():
        states = reader.loaded.model(input_ids=ids, output_hidden_states=True).hidden_states
    for i, state in enumerate(states[1:]):
        assert torch.allclose(reader.dense.residual[i], state[0], atol=1e-5)
    pooled = states[-1][0][torch.from_numpy(~reader.passage.is_delimiter)].mean(0)
    assert torch.allclose(reader.dense.end, pooled, atol=1e-5)
    assert "kl" not in cell.dataset
    certain, number = torch.from_numpy(reader.certain), reader.passage.number
    drawn = draw_keys(reader.certain, 0, number, "shared", 0, 0, 10)
    sampled = reader.read(lambda inputs: sampled_attention(inputs, certain, drawn))
    for i, (a, b) in enumerate(zip(sampled.residual, states[1:], strict=True)):
        exact = b[0][reader.query_rows].double().numpy()
        off = a[reader.query_rows].double().numpy() - exact
        ratio = np.linalg.norm(off, axis=1) / np.linalg.norm(exact, axis=1)
        assert cell.error.sel(layer=i).item() == pytest.approx(np.sqrt(np.mean(ratio**2)), rel=1e-4)


def test_horizons_are_those_of_a_probe(reader_of):
    loaded = tiny("llama")
    reader = reader_of("llama", context=72)
    result = head_horizons(reader)
    options = {"mode": "context", "context": 72, "tokens": 72, "sizes": [4, 8], "replicates": 2}
    other = probe(loaded, [words(200)], **options)
    np.testing.assert_allclose(result, other["horizon"], rtol=1e-5)


@pytest.mark.parametrize("scope", ["model", "layer"])
def test_terciles(scope):
    horizons = random_stream(1, "test horizons").random((5, 6))
    result = split_terciles(horizons, scope)
    assert [(result == name).sum() for name in TERCILES] == [10, 10, 10]
    if scope == "model":
        assert horizons[result == "low"].max() <= horizons[result == "middle"].min()
        assert horizons[result == "middle"].max() <= horizons[result == "high"].min()
    for row, names in zip(horizons, result, strict=True):
        if scope == "layer":
            assert [(names == name).sum() for name in TERCILES] == [2, 2, 2]
            assert row[names == "low"].max() < row[names == "high"].min()


@pytest.mark.parametrize("stop", ["passage-1", "horizons"])
def test_a_stopped_run_resumes_to_the_same(stop, tmp_path, measured):
    loaded, out = tiny("llama"), tmp_path / "run"
    with stopped_at(stop):
        esscher.deep(loaded, TEXT, out=out, **SMALL)
    partial = esscher.load(out)
    assert not partial.complete
    json.dumps(partial.to_dict(), allow_nan=False)
    repr(partial)
    assert (partial.cells == []) == (stop == "horizons")
    again = esscher.deep(loaded, TEXT, out=out, **SMALL)
    xr.testing.assert_equal(again.data, measured["llama"].data)
    assert again.headline == measured["llama"].headline


def test_fewer_parts_can_be_asked_for():
    options = SMALL | {"keys": "shared", "terciles": "none", "passages": 1, "draws": 1}
    result = esscher.deep(tiny("gpt2"), TEXT, **(options | {"sizes": [9]}))
    json.dumps(result.to_dict(), allow_nan=False)
    assert "tercile" not in result.data
    assert result.data["sampled"].values.tolist() == ["shared"]
    assert result["exponent"].isnull().all()
    assert result["kl"].sel(bound=["low", "high"]).isnull().all()
    assert result.headline.endswith("not other texts.")
    with pytest.raises(InputError, match="has no heads"):
        result.head(0, 0)


BAD = [
    ({"keys": "same"}, "keys is 'same'; it must be one of independent, shared, both"),
    ({"context": 500}, "reads at most"),
    ({"context": 8}, "at least 16"),
    (
        {"sizes": [8, 40]},
        "sizes go up to 40, but a context of 48 has only 36 keys",
    ),
    ({"sizes": [0, 4]}, "sizes is"),
    ({"passages": 40}, "only 8 of 40 whole passages of 48 tokens"),
]


@pytest.mark.parametrize(("change", "message"), BAD)
def test_bad_input(change, message, tmp_path):
    with pytest.raises(InputError, match=message):
        esscher.deep(tiny("llama"), TEXT, out=tmp_path / "run", **(SMALL | change))
    assert not (tmp_path / "run").exists()


# -- draws of one passage are not independent: intervals are over passages, and cover

PASSAGES, DRAWS, LAYERS = 8, 4, 3
#: Spread of a passage and of a draw, in every layer: two thirds of the variance are the passage's.
OF_PASSAGE, OF_DRAW = 0.2, 0.14


def errors_of(seed: int) -> np.ndarray:
    """Errors [passage and draw, layer] that double from layer to layer, whose noise is shared."""
    rng = random_stream(seed, "passages")
    passage = OF_PASSAGE * rng.standard_normal((PASSAGES, 1, LAYERS))
    draw = OF_DRAW * rng.standard_normal((PASSAGES, DRAWS, LAYERS))
    return (2.0 ** np.arange(LAYERS) * np.exp(passage + draw)).reshape(-1, LAYERS)


def test_intervals_over_passages_cover():
    inside = 0
    for seed in range(100):
        _, (_, low, high) = growth_factors(independent_errors(errors_of(seed), DRAWS), seed)
        inside += low <= 2.0 <= high
    # 95 are expected; fewer than 88 have probability 0.001
    assert inside >= stats.binom.ppf(0.001, 100, 0.95)
