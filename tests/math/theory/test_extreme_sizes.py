"""Predicted errors at sizes and dimensions where rounding, not theory, could decide."""

from __future__ import annotations

import mpmath as mp
import numpy as np
import pytest

import esscher
from esscher.math.theory.rates import radial_gap
from esscher.theory import map_curve, moment_curves

SLOW = pytest.mark.slow


def test_two_hundred_dimensions_at_extreme_sizes() -> None:
    """The exponent of the mean falls slowly from 0.31 to 0.27 here."""
    curves = moment_curves(esscher.gaussian_head(1.0, 200), [1e21, 1e24, 1e30], "population")
    assert curves["mean"].local_slopes() == pytest.approx([0.292, 0.274], abs=0.002)


@pytest.mark.parametrize(
    ("horizon", "dim"),
    [(0.08, 400), pytest.param(0.3, 400, marks=SLOW), pytest.param(3.0, 200, marks=SLOW)],
)
def test_tokens_of_many_dimensions_attend_to_themselves(horizon: float, dim: int) -> None:
    """Then the output is x, whose limit is H x: sqrt(d) |H - 1|; the mean is that of n tokens."""
    n = 1000.0
    head = esscher.gaussian_head(horizon, dim)
    off = abs(horizon - 1) * np.sqrt(dim)
    # a fixed key's share of attention is good to 2e-4
    assert map_curve(head, [n], "tokens").error[0] == pytest.approx(off, rel=2e-4)
    mean = moment_curves(head, [n], "tokens")["mean_rms"]
    assert mean.error[0] == pytest.approx(np.sqrt(dim / n), rel=2e-4)


@pytest.mark.parametrize("dim", [199, 200, 1000, 4096])
def test_characteristic_functions_in_many_dimensions(dim: int) -> None:
    x = np.geomspace(1e-6, 1e3, 40)
    with mp.workdps(60):
        exact = [float(1 - mp.hyp0f1(mp.mpf(dim) / 2, -((mp.mpf(v) / 2) ** 2))) for v in x]
    np.testing.assert_allclose(radial_gap(x, dim), exact, rtol=1e-6)


def test_an_error_does_not_depend_on_the_other_sizes() -> None:
    """Strengths that do not matter at n = 10^30 matter at n = 1,000."""
    head = esscher.gaussian_head(spectrum=[1.5, 0.75])
    alone = map_curve(head, [1000], "tokens").error[0]
    # 1e-5 is the accuracy of the rule over directions
    assert map_curve(head, [1000, 1e30], "tokens").error[0] == pytest.approx(alone, rel=2e-5)
