"""Sweeps that go on until a slope is known well enough: what they spend, and that it is theirs."""

from __future__ import annotations

import json
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import esscher
from esscher.core.errors import InputError
from esscher.runs.registry import load
from esscher.studies.sweep import study, sweep
from esscher.studies.sweep.measure import (
    Batch,
    counts_at,
    next_batch,
    replicate_work,
    slope_half_widths,
    slope_variance,
    spent,
)
from tests.studies.sweep.small import assert_same, errors

PRECISE: dict[str, Any] = {"precision": 0.08}


def test_precision_is_reached_and_deterministic(tmp_path: Path) -> None:
    head, sizes = esscher.gaussian_head(0.3, 1), [20, 60, 200]
    result = sweep(head, sizes, 8, 0, **PRECISE)
    assert slope_half_widths(errors(result, "mean"), np.array(sizes), 0).max() <= 0.08
    assert slope_half_widths(errors(result, "mean")[:, :8], np.array(sizes), 0).max() > 0.08
    with ThreadPoolExecutor(3) as threads:
        assert_same(result, sweep(head, sizes, 8, 0, executor=threads, **PRECISE))
    out = tmp_path / "run"
    assert_same(result, sweep(head, sizes, 8, 0, out=out, **PRECISE))
    for path in sorted((out / "parts").glob("replicate-*.safetensors"))[3::4]:
        path.unlink()
    assert not load(out).complete
    assert_same(result, sweep(head, sizes, 8, 0, out=out, **PRECISE))
    assert_same(result, load(out))


def test_precision_spends_its_work_at_small_sizes() -> None:
    result = sweep(esscher.gaussian_head(0.3, 1), [20, 60, 200, 600], 8, 0, **PRECISE)
    counts = result["replicates"].values
    assert np.all(np.diff(counts) <= 0)
    assert counts[0] > 1.5 * counts[-1]
    np.testing.assert_array_equal(np.isfinite(errors(result, "map")[0]).sum(axis=0), counts)
    assert len(result.table("replicates")) == counts.sum()
    json.dumps(result.to_dict(), allow_nan=False)


def test_a_precision_can_be_raised_but_not_begun_otherwise(tmp_path: Path) -> None:
    head, sizes, out = esscher.gaussian_head(0.3, 1), [20, 60, 200], tmp_path / "run"
    sweep(head, sizes, 8, 0, out=out, precision=0.15)
    raised = sweep(head, sizes, 8, 0, out=out, **PRECISE)
    assert_same(raised, sweep(head, sizes, 8, 0, **PRECISE))
    before = sorted(path.name for path in (out / "parts").iterdir())
    with pytest.raises(InputError, match="holds replicate 8 up to size number"):
        sweep(head, sizes, 1000, 0, out=out)
    assert sorted(path.name for path in (out / "parts").iterdir()) == before


def test_precision_that_is_not_reached_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(study, "PATIENCE", 9 / 4)
    head = esscher.gaussian_head(0.3, 1)
    result = sweep(head, [20, 40], 4, 0, precision=1e-3)
    assert result.complete
    assert "not to the +- 0.001 asked for" in result.headline
    work = replicate_work(np.array([20.0, 40.0]), None)
    small, large = result["replicates"].values
    assert 9 - work[0] < large + (small - large) * work[0] <= 9


def test_the_half_width_is_that_of_the_slope() -> None:
    """Errors n^-1/2 times lognormal noise: the slope's standard error is known."""
    rng = np.random.default_rng(0)
    sizes = np.array([10.0, 100.0, 1000.0])
    measured = sizes**-0.5 * np.exp(0.2 * rng.standard_normal((1, 400, 3)))
    x = np.log(sizes) - np.log(sizes).mean()
    relative = np.sqrt(np.expm1(0.2**2) / 400)
    expected = 1.96 * relative / np.sqrt(x @ x)
    assert slope_half_widths(measured, sizes, 0)[0] == pytest.approx(expected, rel=0.15)
    assert slope_half_widths(measured[:, :1], sizes, 0)[0] == np.inf
    assert slope_half_widths(0 * measured, sizes, 0)[0] == np.inf


def correlated(rng: np.random.Generator, covariance: np.ndarray, count: int) -> np.ndarray:
    """Lognormal errors of mean 1 with this relative covariance."""
    normal = np.log1p(covariance)
    noise = rng.multivariate_normal(-np.diag(normal) / 2, normal, size=count)
    return np.exp(noise)


SIZES = np.array([1e3, 3e3, 1e4, 3e4])
COVARIANCE = 0.04 * 0.6 ** np.abs(np.subtract.outer(range(4), range(4)))
BATCHES = [Batch(0, 20, 4), Batch(20, 60, 1), Batch(60, 75, 3)]


def test_slope_variance_is_that_of_simulated_slopes() -> None:
    """Ragged replicates with a known covariance; 4,000 slopes know a variance to 2.3%."""
    rng = np.random.default_rng(1)
    counts = counts_at(BATCHES, 4)
    assert counts.tolist() == [75, 35, 35, 20]
    weights = counts / counts.sum()
    x = np.log(SIZES) - weights @ np.log(SIZES)
    slopes = []
    for _ in range(4000):
        measured = correlated(rng, COVARIANCE, 75)
        for batch in BATCHES:
            measured[batch.start : batch.stop, batch.depth :] = np.nan
        means = np.nanmean(measured, axis=0)
        slopes.append((weights * x) @ np.log(means) / (weights @ x**2))
    expected = slope_variance(np.log(SIZES), counts, COVARIANCE)
    assert np.var(slopes) == pytest.approx(expected, rel=4 * np.sqrt(2 / 4000))
    # and the bootstrap, which sees one sample, agrees with it within the error of a variance
    width = slope_half_widths(measured[None], SIZES, 0)[0]
    assert width == pytest.approx(1.96 * np.sqrt(expected), rel=3 / np.sqrt(2 * 20))


WORK, LOG_SIZES = replicate_work(SIZES, None), np.log(SIZES)


def test_the_next_batch_is_the_best_one() -> None:
    """No other batch of a size that is allowed lowers the variance more for its work."""
    result = next_batch(BATCHES, LOG_SIZES, COVARIANCE, WORK, left=1e9)
    assert result is not None
    assert result.start == 75
    counts = counts_at(BATCHES, 4)
    now = slope_variance(LOG_SIZES, counts, COVARIANCE)

    def gain(depth: int, count: int) -> float:
        more = counts.copy()
        more[:depth] += count
        lower = slope_variance(LOG_SIZES, more, COVARIANCE)
        return float((now - lower) / (count * WORK[depth - 1]))

    ours = gain(result.depth, result.stop - result.start)
    for depth in range(1, 5):
        most = min(int(spent(BATCHES, WORK) / 2 / WORK[depth - 1]), int(counts[depth - 1]))
        assert gain(depth, max(most, 1)) <= ours * (1 + 1e-12)
