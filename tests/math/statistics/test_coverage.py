"""Nominal 95% intervals cover the truth about as often as they say.

The full study is ``benchmarks/calibration.py``.
"""

from __future__ import annotations

import numpy as np
import pytest
from benchmarks.line import line_errors

from esscher.core.validation import Array
from esscher.math.statistics import fit_rate, resample
from esscher.math.statistics.laws import least_squares_forms, linear_design, smooth_variances
from tests.math.statistics.curves import SIZES, power_curve


def interval(errors: Array, seed: int) -> tuple[float, float]:
    """The interval of ``fit_rate``, without all the rest that costs time."""
    resamples = resample(errors, SIZES, seed)
    design = linear_design("power", resamples.log_sizes)
    forms = least_squares_forms(design, smooth_variances(resamples))
    _, low, high = resamples.intervals(forms, 0.95)
    return float(low[1]), float(high[1])


def share_covered(noise: str, replicates: int, curves: int) -> float:
    hits = 0
    for seed in range(curves):
        low, high = interval(power_curve(0.4, replicates, seed, noise), seed)
        hits += low <= 0.4 <= high
    return hits / curves


@pytest.mark.parametrize(("noise", "replicates"), [("half-normal", 8), ("pareto", 16)])
def test_coverage_with_few_replicates(noise: str, replicates: int) -> None:
    """Two cells: 3 binomial standard errors each, around 92 to 98%, the range promised."""
    curves = 200
    error = np.sqrt(0.05 * 0.95 / curves)
    assert 0.92 - 3 * error < share_covered(noise, replicates, curves)


@pytest.mark.slow
@pytest.mark.parametrize("h", [0.5, 2.0])
def test_coverage_of_simulated_heads(h: float) -> None:
    """The truth is the slope of the mean curve of the whole pool, with the curve's weights."""
    sizes = [32, 64, 128, 256, 512]
    errors = np.abs(line_errors(h, sizes, replicates=4000, seed=1).mean)
    hits = []
    for seed, part in enumerate(errors[:3200].reshape(200, 16, len(sizes))):
        rate = fit_rate(part, sizes, seed=seed)
        hits.append(rate.interval[0] <= rate.slope_of(errors.mean(axis=0)) <= rate.interval[1])
    error = np.sqrt(0.05 * 0.95 / len(hits))
    assert 0.92 - 2 * error < np.mean(hits) < 0.98 + 2 * error
