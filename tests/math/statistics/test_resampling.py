"""Resampled replicates."""

from __future__ import annotations

import numpy as np

from esscher.core.streams import random_stream
from esscher.math.statistics import resample
from esscher.math.statistics.intervals import RESAMPLES

SIZES = np.array([100.0, 300.0, 1000.0, 3000.0])
COVARIANCE = 0.04 * 0.6 ** np.abs(np.subtract.outer(range(4), range(4)))


def errors(count: int) -> np.ndarray:
    """C n^-1/2 with mean-one lognormal noise."""
    normal = np.log1p(COVARIANCE)
    rng = np.random.default_rng(0)
    noise = rng.multivariate_normal(-np.diag(normal) / 2, normal, size=count)
    return np.asarray(SIZES**-0.5 * np.exp(noise))


def test_covariance_is_that_of_the_mean() -> None:
    values = errors(30)
    result = resample(values, SIZES, 0)
    np.testing.assert_allclose(result.covariance, np.cov((values / values.mean(0)).T) / 30)
    assert result.n_replicates == 30


def test_means_are_those_of_the_drawn_replicates():
    values = errors(9)
    drawn = random_stream(3, "rates mean", 9).multinomial(9, np.full(9, 1 / 9), size=RESAMPLES)
    result = resample(values, SIZES, 3).draws
    np.testing.assert_allclose(result, np.log(drawn @ values / 9), rtol=1e-12, atol=1e-12)
