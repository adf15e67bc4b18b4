"""The exact moments of a one-dimensional softmax mean, against closed forms and simulation."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import integrate

from esscher.math.theory.gaussian_tables import STRONGEST, laplace_table, softmax_moments


@pytest.mark.parametrize("n", [2, 3, 10, 1e5, 1e12])
def test_without_tilt_it_is_the_sample_mean(n: float) -> None:
    a, b, bias = (x[0, 0] for x in softmax_moments(np.array([n]), np.array([0.0])))
    assert a == pytest.approx(1 / n, rel=1e-6)
    assert b == pytest.approx(1 / n, rel=1e-6)
    assert bias == pytest.approx(0.0, abs=1e-12)


@pytest.mark.parametrize("s", [0.3, 1.0, 4.0, 12.0, 40.0])
def test_two_tokens_in_closed_form(s: float) -> None:
    """With D = x_1 - x_2 the mean is (x_1+x_2)/2 + (D/2) tanh(s D/2), and D is N(0, 2)."""

    def over_gap(function):  # type: ignore[no-untyped-def]
        density = lambda x: np.exp(-(x**2) / 4) / np.sqrt(4 * np.pi)  # noqa: E731
        inner = integrate.quad(lambda x: function(x) * density(x), 0, 1 / s, epsabs=1e-13)[0]
        outer = integrate.quad(
            lambda x: function(x) * density(x), 1 / s, 40, limit=500, epsabs=1e-13
        )[0]
        return 2 * (inner + outer)

    square = 0.5 + over_gap(lambda x: (x / 2 * np.tanh(s * x / 2) - s) ** 2)
    collision = over_gap(lambda x: (1 + np.tanh(s * x / 2) ** 2) / 2)
    bias = over_gap(lambda x: x / 2 * np.tanh(s * x / 2)) - s
    a, b, c = (x[0, 0] for x in softmax_moments(np.array([2.0]), np.array([s])))
    assert (a, b, c) == pytest.approx((square, collision, bias), rel=2e-6)


@pytest.mark.parametrize("s", [0.2, 1.0, 2.0])
def test_many_tokens_reach_the_delta_method(s: float) -> None:
    n = 1e12
    a, b, bias = (x[0, 0] for x in softmax_moments(np.array([n]), np.array([s])))
    # the next order is of relative size exp(3 s^2)/n or less
    assert n * a == pytest.approx((1 + s * s) * np.exp(s * s), rel=2e-6)
    assert n * b == pytest.approx(np.exp(s * s), rel=2e-6)
    assert n * bias == pytest.approx(-s * np.exp(s * s), rel=2e-6)


@given(st.floats(0.0, 20.0), st.sampled_from([4.0, 1e3, 1e7, 1e12, 1e15]))
@settings(max_examples=30, deadline=None)
def test_bounds_and_step(s: float, n: float) -> None:
    table, finer = laplace_table(s, 1e15), laplace_table(s, 1e15, step=0.35)
    a, b, bias = table.squared_error(n), table.collision(n), table.bias(n)
    assert 1 / n * (1 - 1e-6) <= b <= 1 + 1e-6
    assert -s - 1e-6 <= bias <= 1e-9
    assert bias**2 <= a * (1 + 1e-6)
    assert a == pytest.approx(finer.squared_error(n), rel=1e-6)
    assert b == pytest.approx(finer.collision(n), rel=1e-6)


def test_extrapolation_beyond_the_strongest_table() -> None:
    """Frozen attention is the maximum: E max of 2 and 3 normals are 1/sqrt(pi), 1.5/sqrt(pi)."""
    s = 100 * STRONGEST
    square, collision, bias = softmax_moments(np.array([2.0, 3.0]), np.array([s]))
    expected = np.array([1.0, 1.5]) / np.sqrt(np.pi)
    # E[max - softmax mean] at the strongest table is of order 1/STRONGEST^2
    assert bias[:, 0] + s == pytest.approx(expected, abs=3 / STRONGEST**2)
    assert square[:, 0] == pytest.approx(s * s - 2 * s * expected + 1.0, rel=1e-4)
    assert np.all(collision < 1)
