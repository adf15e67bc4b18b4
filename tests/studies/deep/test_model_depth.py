"""Real architectures: errors by layer, the end, terciles of heads, resuming, bad input."""

from __future__ import annotations

import json

import numpy as np
import pytest
import torch
from scipy import stats

import esscher
from esscher.core.errors import InputError
from esscher.core.streams import random_stream
from esscher.math.statistics import LAWS
from esscher.studies.deep.assemble import (
    growth_factors,
    independent_errors,
)
from esscher.studies.deep.result import TERCILES
from esscher.studies.deep.sampling import (
    draw_keys,
    head_horizons,
    sampled_attention,
    split_terciles,
)
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
    found = measured[name]
    results = found.to_dict()
    json.dumps(results, allow_nan=False)
    assert found.complete
    assert not found.is_gaussian
    assert [layer.layer for layer in found.layers] == [0, 1, 2]
    for layer in found.layers:
        for way in ("independent", "shared"):
            assert len(layer.error[way].mean) == len(layer.error[way].interval) == 3
            assert (layer.growth[way][0] is None) == (layer.layer == 0)
            assert layer.fit[way].law in LAWS
    numbers = {"llama": {"kl", "top1", "perplexity", "ratio"}, "bert": {"cosine"}}[name]
    assert set(results["end"]) == numbers
    for quantity in numbers:
        for variant in ("independent", "shared", *TERCILES):
            assert len(results["end"][quantity][variant]["mean"]) == 3
    assert len(found.table()) == 3 * 2 * 3
    assert set(found.end_table()["variant"]) >= {"independent", "shared", *TERCILES}
    assert sum(t.heads for t in found.terciles.heads.values()) == 12
    assert esscher.load(found.folder).to_dict() == results


def test_stored_errors_are_those_of_the_hidden_states(reader_of):
    """Recomputed by hand from transformers' own hidden states."""
    reader = reader_of("bert")
    table = reader.cell({"shared": ("shared", None)}, [10], 1, 0).table
    ids = torch.from_numpy(reader.passage.ids)[None]
    with torch.no_grad():
        states = reader.loaded.model(input_ids=ids, output_hidden_states=True).hidden_states
    for i, state in enumerate(states[1:]):
        assert torch.allclose(reader.dense.residual[i], state[0], atol=1e-5)
    pooled = states[-1][0][torch.from_numpy(~reader.passage.is_delimiter)].mean(0)
    assert torch.allclose(reader.dense.end, pooled, atol=1e-5)
    assert set(table["quantity"]) == {"residual", "cosine"}
    certain, number = torch.from_numpy(reader.certain), reader.passage.number
    drawn = draw_keys(reader.certain, 0, number, "shared", 0, 0, 10)
    sampled = reader.read(lambda inputs: sampled_attention(inputs, certain, drawn))
    for i, (a, b) in enumerate(zip(sampled.residual, states[1:], strict=True)):
        exact = b[0][reader.query_rows].double().numpy()
        off = a[reader.query_rows].double().numpy() - exact
        ratio = np.linalg.norm(off, axis=1) / np.linalg.norm(exact, axis=1)
        value = table[table["layer"] == i].set_index("quantity")["value"]["residual"]
        assert value == pytest.approx(np.sqrt(np.mean(ratio**2)), rel=1e-4)


def test_horizons_are_those_of_a_probe(reader_of):
    loaded = tiny("llama")
    reader = reader_of("llama", context=72)
    found = head_horizons(reader)
    options = {"mode": "context", "context": 72, "tokens": 72, "sizes": [4, 8], "replicates": 2}
    other = probe(loaded, [words(200)], **options)
    expected = np.array([head.horizon for head in other.heads]).reshape(3, 4)
    np.testing.assert_allclose(found, expected, rtol=1e-5)


@pytest.mark.parametrize("scope", ["model", "layer"])
def test_terciles(scope):
    horizons = random_stream(1, "test horizons").random((5, 6))
    found = split_terciles(horizons, scope)
    places = [(layer, h) for t in TERCILES for layer, hs in found[t].items() for h in hs]
    assert sorted(places) == [(i, h) for i in range(5) for h in range(6)]
    assert [sum(map(len, found[t].values())) for t in TERCILES] == [10, 10, 10]
    rows = {t: [horizons[layer, h] for layer, hs in found[t].items() for h in hs] for t in found}
    if scope == "model":
        assert max(rows["low"]) <= min(rows["middle"])
        assert max(rows["middle"]) <= min(rows["high"])
    else:
        assert {len(hs) for t in TERCILES for hs in found[t].values()} == {2}
        for layer, row in enumerate(horizons):
            assert row[list(found["low"][layer])].max() < row[list(found["high"][layer])].min()


@pytest.mark.parametrize("stop", ["passage-1-shared", "horizons"])
def test_a_stopped_run_resumes_to_the_same(stop, tmp_path, measured):
    loaded, out = tiny("llama"), tmp_path / "run"
    with stopped_at(stop):
        esscher.deep(loaded, TEXT, out=out, **SMALL)
    partial = esscher.load(out)
    assert not partial.complete
    json.dumps(partial.to_dict(), allow_nan=False)
    repr(partial)
    again = esscher.deep(loaded, TEXT, out=out, **SMALL).to_dict()
    whole = measured["llama"].to_dict()
    for part in ("layers", "end", "growth", "terciles", "headline"):
        assert again[part] == whole[part]


def test_fewer_parts_can_be_asked_for():
    options = SMALL | {"keys": "shared", "terciles": "none", "passages": 1, "draws": 1}
    found = esscher.deep(tiny("gpt2"), TEXT, **(options | {"sizes": [9]}))
    results = found.to_dict()
    json.dumps(results, allow_nan=False)
    assert results["terciles"] is None
    assert set(results["end"]["kl"]) == {"shared"}
    assert results["layers"][0]["fit"]["shared"] is None
    assert results["end"]["kl"]["shared"]["interval"] == [None]
    assert found.headline.endswith("not other texts.")


BAD = [
    ({"keys": "same"}, "keys is 'same'; it must be one of independent, shared, both"),
    ({"context": 500}, "reads at most"),
    ({"context": 8}, "at least 16"),
    (
        {"sizes": [8, 40]},
        "sizes go up to 40, but a context of 48 has only 36 keys",
    ),
    ({"sizes": [0, 4]}, "sizes is"),
    ({"passages": 40}, "only 8 whole passages of 48 tokens, but 40"),
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
        _, overall = growth_factors(independent_errors(errors_of(seed), DRAWS), seed)
        inside += overall.interval[0] <= 2.0 <= overall.interval[1]
    # 95 are expected; fewer than 88 have probability 0.001
    assert inside >= stats.binom.ppf(0.001, 100, 0.95)
