"""Resampled replicates: what is drawn, and what is kept of it between curves."""

from __future__ import annotations

import numpy as np
import pytest

from esscher.core.streams import random_stream
from esscher.math.statistics.intervals import RESAMPLES, resample

SIZES = np.array([16.0, 64.0, 256.0])


def errors(replicates: int, digits: int = 17) -> np.ndarray:
    rng = np.random.default_rng(0)
    return np.asarray(np.exp(rng.standard_normal((replicates, 3))).round(digits) + 0.1)


@pytest.mark.parametrize("replicates", [2, 7, 32])
@pytest.mark.parametrize("digits", [0, 17])
def test_medians_are_those_of_the_drawn_replicates(replicates, digits):
    """Bit for bit, with an even and an odd number of replicates, and with equal ones."""
    values = errors(replicates, digits)
    chosen = random_stream(3, "rates median", replicates).integers(
        0, replicates, (RESAMPLES, replicates)
    )
    found = resample(values, SIZES, "median", 3).draws
    np.testing.assert_array_equal(found, np.log(np.median(values[chosen], axis=1)))


def test_means_are_those_of_the_drawn_replicates():
    values = errors(9)
    drawn = random_stream(3, "rates mean", 9).multinomial(9, np.full(9, 1 / 9), size=RESAMPLES)
    found = resample(values, SIZES, "mean", 3).draws
    np.testing.assert_allclose(found, np.log(drawn @ values / 9), rtol=1e-12, atol=1e-12)
