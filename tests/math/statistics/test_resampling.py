"""Resampled replicates, some of which end early, as an adaptive sweep makes them."""

from __future__ import annotations

import numpy as np
import pytest

from esscher.core.errors import InputError
from esscher.core.streams import random_stream
from esscher.math.statistics import fit_rate, resample
from esscher.math.statistics.intervals import RESAMPLES

SIZES = np.array([100.0, 300.0, 1000.0, 3000.0])
COVARIANCE = 0.04 * 0.6 ** np.abs(np.subtract.outer(range(4), range(4)))


def errors(rng: np.random.Generator, whole: int, short: int, depth: int = 2) -> np.ndarray:
    """C n^-1/2 with mean-one lognormal noise; the last replicates end early."""
    normal = np.log1p(COVARIANCE)
    noise = rng.multivariate_normal(-np.diag(normal) / 2, normal, size=whole + short)
    values = SIZES**-0.5 * np.exp(noise)
    values[whole:, depth:] = np.nan
    return values


def test_without_short_ones_nothing_changes() -> None:
    values = errors(np.random.default_rng(0), 30, 0)
    result = resample(values, SIZES, 0)
    np.testing.assert_allclose(result.covariance, np.cov((values / values.mean(0)).T) / 30)
    assert result.n_replicates == 30


def test_covariance_of_ragged_logarithms() -> None:
    """Over 1,500 simulated curves the variance of ln(mean) is known to 3.7%."""
    rng = np.random.default_rng(1)
    result = resample(errors(rng, 400, 1600), SIZES, 0)
    logs = []
    for _ in range(1500):
        values = errors(rng, 400, 1600)
        logs.append(np.log(np.nanmean(values, axis=0)))
    truth = np.cov(np.array(logs).T)
    np.testing.assert_allclose(np.diag(result.covariance), np.diag(truth), rtol=0.2)
    assert result.covariance[0, 0] < 0.4 * result.covariance[3, 3]
    # short replicates share nothing with the largest size
    assert result.covariance[0, 3] == pytest.approx(truth[0, 3], abs=0.2 * truth[3, 3])


@pytest.mark.slow
def test_intervals_of_ragged_curves_cover() -> None:
    """200 curves: coverage of 95% intervals within 4 binomial standard errors."""
    rng = np.random.default_rng(2)
    hits = 0
    for _ in range(200):
        low, high = fit_rate(errors(rng, 12, 24), SIZES).interval
        hits += low <= 0.5 <= high
    assert abs(hits / 200 - 0.95) < 4 * np.sqrt(0.95 * 0.05 / 200)


def test_short_replicates_narrow_the_interval() -> None:
    rng = np.random.default_rng(3)
    values = errors(rng, 20, 400)
    few, many = fit_rate(values[:20], SIZES), fit_rate(values, SIZES)
    assert many.standard_error < 0.9 * few.standard_error
    assert many.n_replicates == 20


def test_what_is_no_early_end_is_refused() -> None:
    values = errors(np.random.default_rng(4), 5, 5)
    hole = values.copy()
    hole[0, 1] = np.nan
    with pytest.raises(InputError, match="replicate 0 at n = 300"):
        fit_rate(hole, SIZES)
    with pytest.raises(InputError, match="none that reaches the largest size"):
        fit_rate(values[5:], SIZES)
    values[6] = np.nan
    with pytest.raises(InputError, match="without any error"):
        fit_rate(values, SIZES)


def test_means_are_those_of_the_drawn_replicates():
    values = errors(np.random.default_rng(0), 9, 0)
    drawn = random_stream(3, "rates mean", 9).multinomial(9, np.full(9, 1 / 9), size=RESAMPLES)
    result = resample(values, SIZES, 3).draws
    np.testing.assert_allclose(result, np.log(drawn @ values / 9), rtol=1e-12, atol=1e-12)
