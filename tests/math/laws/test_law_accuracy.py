"""Closed forms against 50-digit arithmetic."""

from __future__ import annotations

import mpmath as mp
import numpy as np
import pytest

from esscher.math.laws import GaussianMixture, Laplace, Sphere
from esscher.math.laws.product import (
    langevin,
    langevin_derivative,
    log_cosh,
    log_sinhc,
    sech_squared,
)
from esscher.math.laws.sphere import (
    bessel_ratio_derivative,
    bessel_ratio_over_argument,
    log_bessel_normalised,
)

ORDERS = [-0.5, 0.0, 0.5, 1.0, 3.0, 17.5, 24.0, 383.0, 2047.0]
ARGUMENTS = [1e-8, 1e-3, 0.1, 1.0, 5.0, 20.0, 50.0, 300.0, 2000.0, 1e4, 123456.7, 1e6]
#: The derivative of the ratio loses up to 400 units in the last place when kappa >> 1 > nu.
DERIVATIVE_TOLERANCE = 2e-13


@pytest.fixture(autouse=True)
def _fifty_digits():
    with mp.workdps(50):
        yield


def assert_relative(value, exact, tolerance: float = 5e-15) -> None:
    if abs(exact) < mp.mpf("1e-300"):
        assert abs(float(value)) < 1e-299
        return
    error = float(abs(mp.mpf(float(value)) / exact - 1))
    assert error < tolerance, f"relative error {error:.2e}"


@pytest.mark.parametrize("nu", ORDERS)
@pytest.mark.parametrize("kappa", ARGUMENTS)
def test_bessel(nu, kappa):
    k, order = mp.mpf(kappa), mp.mpf(nu)
    bottom, top = mp.besseli(order, k), mp.besseli(order + 1, k)
    ratio = top / bottom
    # The difference loses the leading digits; for tanh everything, hence the closed form.
    slope = mp.sech(k) ** 2 if nu == -0.5 else 1 - ratio**2 - (2 * order + 1) * ratio / k
    assert_relative(bessel_ratio_over_argument(nu, kappa), ratio / k)
    assert_relative(bessel_ratio_derivative(nu, kappa), slope, DERIVATIVE_TOLERANCE)
    exact = mp.loggamma(order + 1) + order * mp.log(2 / k) + mp.log(bottom)
    assert_relative(log_bessel_normalised(nu, kappa), exact)


@pytest.mark.parametrize("nu", ORDERS)
def test_bessel_at_the_ends(nu):
    limits = bessel_ratio_over_argument(nu, [0.0, 1e-300]), bessel_ratio_derivative(nu, [0, 1e-300])
    np.testing.assert_allclose(limits, 1 / (2 * (nu + 1)), rtol=1e-14)
    np.testing.assert_array_equal(log_bessel_normalised(nu, [0.0, 1e-300]), 0.0)
    # Hankel: r = 1 - (2 nu + 1)/(2 kappa) + O(kappa^-2)
    ratio = 1e12 * bessel_ratio_over_argument(nu, 1e12)
    np.testing.assert_allclose(ratio, 1 - (nu + 0.5) / 1e12, rtol=1e-15)


POINTS = np.concatenate([np.logspace(-9, 4, 40), [0.999, 1.0, 1.001, 18.0, 25.0, 300.0]])


@pytest.mark.parametrize(
    ("function", "exact"),
    [
        (langevin, lambda x: mp.coth(x) - 1 / x),
        (langevin_derivative, lambda x: 1 / x**2 - mp.csch(x) ** 2),
        (log_sinhc, lambda x: mp.log(mp.sinh(x) / x)),
        (log_cosh, lambda x: mp.log(mp.cosh(x))),
        (sech_squared, lambda x: mp.sech(x) ** 2),
    ],
)
def test_hyperbolic_functions(function, exact):
    odd = function is langevin
    for x, plus, minus in zip(POINTS, function(POINTS), function(-POINTS), strict=True):
        assert_relative(plus, exact(mp.mpf(float(x))))
        assert minus == (-plus if odd else plus)
    assert np.all(np.isfinite(function(np.array([0.0, 1e300, -1e300, 1e-300]))))


def test_tilts_whose_squares_overflow_or_underflow():
    law = Sphere(2)
    np.testing.assert_allclose(law.tilted_mean([0.0, 1e-200]), [0.0, 0.5e-200], rtol=1e-14)
    np.testing.assert_allclose(law.tilted_mean([3e200, 4e200]), [0.6, 0.8], rtol=1e-14)


@pytest.mark.parametrize("scale", [3.0, 0.7, 1 + 2**-52, 2 - 2**-52])
def test_laplace_up_to_the_edge(scale):
    law = Laplace(1, scale)
    edge = law.tilt_domain.half_width
    inside, outside = np.nextafter(edge, 0.0), np.nextafter(edge, np.inf)
    for t in (1e-9, 0.1 * edge, edge * (1 - 1e-6), inside):
        assert np.isfinite(law.log_mgf([t]))
        assert np.isfinite(law.tilted_covariance([t])).all()
    for t in (edge, outside, -outside, 100.0):
        assert law.log_mgf([t]) == np.inf
        assert np.isnan(law.tilted_mean([t])).all()
        assert np.isnan(law.tilted_covariance([t])).all()
    for t in (1e-9, 0.1, 0.25):
        x = mp.mpf(scale) * mp.mpf(t)
        assert_relative(law.log_mgf([t]), -mp.log(1 - x * x), 1e-14)
        assert_relative(law.tilted_mean([t])[0], 2 * scale * x / (1 - x * x), 1e-14)


@pytest.mark.parametrize("t", [(0.3, 1e4), (7e3, -7e3), (-2.0, 0.1)])
def test_mixture_at_large_tilts(t):
    """At (0.3, 1e4) both components count although K is about 1e8."""
    weights, means, diagonal = [0.25, 0.75], [[1.0, 0.5], [-1.0, 0.5]], (1.0, 2.0)
    law = GaussianMixture(weights, means, np.diag(diagonal))
    x = [mp.mpf(v) for v in t]
    masses, centres = [], []
    for weight, mean in zip(weights, means, strict=True):
        exponent = mp.fsum(x[i] * mp.mpf(mean[i]) + x[i] ** 2 * diagonal[i] / 2 for i in range(2))
        masses.append(weight * mp.exp(exponent))
        centres.append([mp.mpf(mean[i]) + x[i] * diagonal[i] for i in range(2)])
    total = mp.fsum(masses)
    assert_relative(law.log_mgf(t), mp.log(total), 1e-13)
    grad = [mp.fsum(m * c[i] for m, c in zip(masses, centres, strict=True)) / total for i in (0, 1)]
    for i in range(2):
        assert_relative(law.tilted_mean(t)[i], grad[i], 1e-13)
    between = mp.fsum(m * (c[0] - grad[0]) ** 2 for m, c in zip(masses, centres, strict=True))
    assert_relative(law.tilted_covariance(t)[0, 0], between / total + diagonal[0], 1e-12)
