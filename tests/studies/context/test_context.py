"""Context lengths: heads whose weights are known functions of distance."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import xarray as xr

import esscher
from esscher.core.errors import InputError
from esscher.studies.context.measure import SINKS, layer_changes
from esscher.studies.context.saturation import saturation
from esscher.studies.context.view import count_done
from tests.engine.cache.inputs import layer_inputs
from tests.engine.models.folders import random_words, tiny

#: A limit that nothing reaches.
FAR = 1e30


def doublings(longest: int) -> Any:
    return 32 * 2 ** np.arange(int(np.log2(longest / 32)) + 1)


def test_changes_are_those_of_truncated_attention() -> None:
    inputs = layer_inputs(heads=2, key_heads=1, queries=48, keys=48, offset=0)
    lengths = np.array([8, 16, 32])
    changes, norms = layer_changes(inputs, 5, lengths)
    for h in range(2):
        outputs = []
        for length in lengths:
            rows = []
            for i in range(43, 48):
                keys = sorted({*range(SINKS), *range(i - length + 1, i + 1)})
                logits = inputs.q[0, h, i].double() @ inputs.k[0, 0, keys].double().T
                weights = torch.softmax(logits * inputs.scaling, dim=-1)
                rows.append(weights @ inputs.v[0, 0, keys].double())
            outputs.append(torch.stack(rows))
        stacked = torch.stack(outputs)
        expected = (stacked[1:] - stacked[:-1]).square().sum(-1).mean(-1)
        np.testing.assert_allclose(changes[h], expected, rtol=1e-4)
        assert norms[h] == pytest.approx(float(stacked[-1].square().sum(-1).mean()), rel=1e-4)


@pytest.mark.parametrize("exponent", [0.5, 1.0, 2.0])
@pytest.mark.parametrize("tolerance", [0.3, 0.01])
def test_a_power_law_is_solved_exactly(exponent: float, tolerance: float) -> None:
    lengths = doublings(4096)
    changes = 0.5 * (lengths[:-1] / 32.0) ** -exponent
    solved = saturation(changes[None] ** 2, np.ones(1), lengths, tolerance, 0, FAR)
    assert solved.exponent == pytest.approx(exponent)
    # rest(L) = c(L)/(1 - 2^-b), a straight line in logarithms
    exact = 32 * (0.5 / (1 - 2**-exponent) / tolerance) ** (1 / exponent)
    assert solved.length == pytest.approx(max(exact, 32.0), rel=1e-6)


def test_changes_that_do_not_fall_have_no_length() -> None:
    lengths = doublings(1024)
    solved = saturation(np.full((3, 5), 0.04), np.ones(3), lengths, 0.1, 0, FAR)
    assert solved.length == np.inf


@pytest.mark.parametrize("limit", [1100.0, 8192.0, 1e6, FAR])
@pytest.mark.parametrize("size", [1e-12, 1e-4, 0.004])
def test_small_changes_have_a_length_whether_they_fall_or_not(size: float, limit: float) -> None:
    """Far below the tolerance: 1024 tokens were measured, and everything is done at once."""
    lengths = doublings(1024)
    noise = np.random.default_rng(0).uniform(0.8, 1.2, size=(4, 5)) * size
    for trend in (1.0, 1.05, 0.95):
        changes = noise * trend ** np.arange(5)
        solved = saturation(changes**2, np.ones(4), lengths, 0.1, 0, limit)
        assert solved.length <= 1024
        if limit < FAR:
            assert solved.length == 32
            assert solved.interval == (32, 32)


def test_a_last_change_within_the_tolerance_is_the_end() -> None:
    """However slowly the changes fall, and however far away the limit is."""
    lengths = doublings(1024)
    for exponent in (-0.2, 0.0, 0.1, 0.5):
        changes = 0.099 * (lengths[:-1] / 512.0) ** -exponent
        solved = saturation(changes[None] ** 2, np.ones(1), lengths, 0.1, 0, 1e6)
        assert 512 <= solved.length <= 1024


@pytest.mark.parametrize("exponent", [0.05, 0.5, 1.0, 2.0])
def test_an_extrapolation_ends_at_the_limit(exponent: float) -> None:
    """Against the sum itself, over doublings from the length to the limit."""
    lengths, limit, tolerance = doublings(1024), 1024 * 2.0**3, 0.1
    changes = 0.5 * (lengths[:-1] / 512.0) ** -exponent
    solved = saturation(changes[None] ** 2, np.ones(1), lengths, tolerance, 0, limit)
    far = saturation(changes[None] ** 2, np.ones(1), lengths, tolerance, 0, 1e12)
    assert 1024 < solved.length < limit
    # what is to come up to the limit is less than what would be without one
    assert solved.length < far.length
    tail = sum(0.5 * (n / 512.0) ** -exponent for n in (1024, 2048, 4096))
    assert solved.rest[-1] == pytest.approx(tail)
    # at half the limit one doubling is to come, at the limit none
    half = saturation(
        changes[None] ** 2, np.ones(1), lengths, 0.5 * (limit / 1024) ** -exponent, 0, limit
    )
    assert half.length == pytest.approx(limit / 2)


def test_an_open_end_has_no_length_and_its_sums_are_finite() -> None:
    lengths = doublings(1024)
    rng = np.random.default_rng(0)
    changes = 0.2 * rng.uniform(0.9, 1.1, size=(4, 5)) * 1.05 ** np.arange(5)
    solved = saturation(changes**2, np.ones(4), lengths, 0.1, 0, 8192.0)
    assert solved.length == np.inf
    assert solved.interval == (np.inf, 8192)  # in every resample the end is open
    assert np.isfinite(solved.rest).all()


def test_a_window_ends_every_length() -> None:
    """Nothing changes beyond a window of 100; before it the changes are large."""
    lengths = doublings(1024)
    changes = np.where(lengths[:-1] < 100, 0.5, 0.0)
    solved = saturation(changes[None] ** 2, np.ones(1), lengths, 0.1, 0, 100.0)
    # at 64 tokens 0.5 is to come, at 100 nothing: 0.1 on the line between them
    assert solved.length == pytest.approx(64 * (100 / 64) ** 0.8)
    assert solved.exponent == pytest.approx(0.0)
    short = saturation(0 * changes[None], np.ones(1), lengths, 0.1, 0, 5.0)
    assert short.length == 5
    assert np.isnan(short.exponent)


def test_a_head_without_output_uses_nothing() -> None:
    solved = saturation(np.zeros((2, 5)), np.zeros(2), doublings(1024), 0.1, 0, 4096.0)
    assert solved.length == 32


@pytest.mark.parametrize("passages", [4, 12])
def test_the_interval_holds_the_truth(passages: int) -> None:
    """Passages scatter around a law; the interval of the length covers it as often as it says."""
    lengths = doublings(2048)
    law = 0.4 * (lengths[:-1] / 32.0) ** -1.0
    truth = saturation(law[None] ** 2, np.ones(1), lengths, 0.1, 0, FAR).length
    rng = np.random.default_rng(0)
    covered = 0
    for seed in range(100):
        scatter = rng.gamma(8.0, 1 / 8.0, size=(passages, len(law)))
        solved = saturation(law**2 * scatter, np.ones(passages), lengths, 0.1, seed, FAR)
        covered += solved.interval[0] <= truth <= solved.interval[1]
    # of 200 such heads 94% were covered with 4 passages, 91% with 12; binomial error 2.9%
    assert covered >= 85


def test_one_passage_decides_nothing() -> None:
    lengths = doublings(1024)
    solved = saturation(np.full((1, 5), 1e-6), np.ones(1), lengths, 0.1, 0, 8192.0)
    assert solved.length == 32
    assert np.isnan(solved.interval).all()


def test_heads_are_counted_by_their_intervals(result: Any) -> None:
    nan = np.nan
    ends = [(32, nan, nan), (32, 30, 40), (60, 50, 70), (90, 70, 99), (nan, nan, 99), (nan, 60, 99)]
    length = xr.DataArray(np.array([ends], dtype=float), dims=("layer", "head", "bound"))
    data = result.data[["bound"]].assign(length=length)
    assert count_done(replace(result, data=data), 64) == (1, 2, 3)


@pytest.mark.parametrize(("name", "window"), [("llama", None), ("mistral", 50)])
def test_no_length_beyond_window_and_model(name: str, window: int | None, tmp_path: Path) -> None:
    options = {} if window is None else {"sliding_window": window}
    loaded = tiny(name, max_position_embeddings=256, **options)
    result = esscher.context(loaded, [random_words(900)], passages=2, tolerance=0.01)
    json.dumps(result.to_dict(), allow_nan=False)
    assert result.setup.settings.context == 193
    limit = 256 if window is None else window
    assert (result["limit"] == limit).all()
    assert float(result["length"].max()) <= limit
    frame = result.table()
    assert (frame["length"].isna() == (frame["note"] == "still changing")).all()
    assert (frame["extrapolated"] == (frame["note"] == "extrapolated")).all()


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"passages": 0}, "passages is 0"),
        ({"context": 250}, "longest possible context is 193"),
        ({"tolerance": 2}, "tolerance is 2"),
        ({"context": 9}, "at least 16"),
    ],
)
def test_bad_input(options: dict[str, Any], message: str) -> None:
    loaded = tiny("llama", max_position_embeddings=256)
    with pytest.raises(InputError, match=message):
        esscher.context(loaded, [random_words(900)], **options)


def test_encoders_are_refused() -> None:
    with pytest.raises(InputError, match="is an encoder"):
        esscher.context(tiny("bert"), ["a text"])


def test_two_workers_and_a_resume_give_the_same(tmp_path: Path) -> None:
    loaded, text = tiny("llama", max_position_embeddings=256), random_words(900)
    small = {"context": 128, "passages": 2, "progress": False}
    once = esscher.context(loaded, [text], **small, out=tmp_path / "run")
    assert esscher.load(tmp_path / "run").to_dict() == once.to_dict()
    assert once.head(2, 3).curves()["context"].tolist() == [32, 64, 128]
    assert repr(once.head(2, 3)).startswith("head 2.3: context")
    assert once.compare(once).different.empty
    (tmp_path / "run" / "parts" / "passage-0.safetensors").unlink()
    (tmp_path / "run" / "results.safetensors").unlink()
    again = esscher.context(loaded, [text], **small, out=tmp_path / "run", workers=2)
    xr.testing.assert_equal(again.data, once.data)
