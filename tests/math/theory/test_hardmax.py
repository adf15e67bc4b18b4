"""Hardmax on the line: exact values against high precision and brute force, simulation, fits."""

from __future__ import annotations

import dataclasses
import math

import mpmath
import numpy as np
import pytest

from esscher.core.errors import InputError
from esscher.math.theory import hardmax_curve, hardmax_exact, hardmax_leading


def test_two_tokens_are_their_average():
    # (X1 + X2)/2 is N(0, 1/2)
    assert hardmax_exact([2])[0] == pytest.approx(1 / math.sqrt(math.pi), rel=1e-13)


@pytest.mark.parametrize("n", [3, 50, 10**6, 10**15])
def test_against_high_precision(n):
    with mpmath.workdps(40):

        def survival(x: mpmath.mpf) -> mpmath.mpf:
            return mpmath.erfc(x / mpmath.sqrt(2)) / 2

        def maximum_below(x: mpmath.mpf) -> mpmath.mpf:
            return mpmath.exp(n * mpmath.log1p(-survival(x)))

        def modulus_below(x: mpmath.mpf) -> mpmath.mpf:
            q = survival(x)
            return mpmath.exp(n * mpmath.log1p(-2 * q)) if q < 0.5 else mpmath.mpf(0)

        centre = math.sqrt(2 * math.log(n))
        edges = [0, *[centre * s for s in (0.4, 0.7, 0.85, 0.92, 1, 1.08, 1.2, 1.5, 2)], 25]
        modulus = mpmath.quad(lambda x: 1 - modulus_below(x), edges)
        maximum = mpmath.quad(lambda x: 1 - maximum_below(x), edges)
        maximum -= mpmath.quad(lambda x: survival(x) ** n, [0, 0.5, 2, 12])
        expected = float(modulus - maximum)
    assert hardmax_exact([n])[0] == pytest.approx(expected, rel=1e-10)


def test_leading_term_is_approached_slowly_and_from_below():
    n = np.array([10, 1e3, 1e6, 1e12, 1e30, 1e100, 1e200])
    ratio = hardmax_leading(n) / hardmax_exact(n)
    assert np.all(np.diff(ratio) > 0)
    assert np.all(ratio < 1)
    # 4% off at a thousand tokens, still 2% off at 1e12
    assert ratio[1] == pytest.approx(0.9614, abs=1e-4)
    assert ratio[3] == pytest.approx(0.9808, abs=1e-4)
    assert ratio[-1] > 0.997


def test_simulation_against_exact():
    """At n = 1e25 the number of positive tokens is beyond numpy's binomial."""
    curve = hardmax_curve([1e2, 1e3, 1e6, 1e9, 1e12, 1e15, 1e25], replicates=20_000, seed=1)
    z = (curve.simulated - curve.exact) / curve.standard_error
    assert np.abs(z).max() < 3.5


def test_fit_recovers_a_power_of_the_logarithm():
    base = hardmax_curve(np.round(np.geomspace(1e3, 1e12, 8)), replicates=200)
    factor = np.log(base.sizes) ** -0.7 / base.simulated
    ideal = dataclasses.replace(base, samples=base.samples * factor[:, None])
    power, low, high, _ = ideal.fit()
    assert power == pytest.approx(0.7, rel=1e-12)
    assert low < 0.7 < high


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"sizes": [1, 10]}, "n = 1; .* at least 2"),
        ({"replicates": 1}, "replicates is 1; a standard error needs at least 2"),
        ({"seed": -1}, "seed is -1"),
    ],
)
def test_what_cannot_be_used_is_refused(arguments, message):
    with pytest.raises(InputError, match=message):
        hardmax_curve(**{"sizes": [10, 100], **arguments})
    with pytest.raises(InputError, match="one size"):
        hardmax_curve([50], replicates=20).fit()
