"""The quadrature for the sphere against exact moments, direct integrals and sampling."""

from __future__ import annotations

import mpmath
import numpy as np
import pytest
from scipy.special import ive

from esscher.core.errors import InputError
from esscher.math.heads import weight_head
from esscher.math.laws import Sphere
from esscher.math.limits import limit_moments, sphere_output_eigenvalues
from esscher.math.limits.moments import quadratic_form_rule


def _moments_of_form(values: np.ndarray) -> tuple[float, float, float]:
    """E Q, E Q^2, E Q^3 of ``Q = sum values_j z_j^2`` on the sphere, from Gaussian cumulants."""
    d = len(values)
    p1, p2, p3 = (float(np.sum(values**k)) for k in (1, 2, 3))
    second = (p1**2 + 2 * p2) / (d * (d + 2))
    return p1 / d, second, (p1**3 + 6 * p1 * p2 + 8 * p3) / (d * (d + 2) * (d + 4))


SPECTRA = {
    "d = 2": np.array([1.0, 0.01]),
    "repeated": np.array([3.0, 3.0, 1.0, 1.0, 1.0, 0.0]),
    "almost equal": 1.0 + 1e-9 * np.arange(6),
    "power, d = 50": np.arange(1, 51) ** -2.0,
    "power, d = 768": np.arange(1, 769) ** -1.4,
    "geometric, d = 768": np.geomspace(1.0, 1e-14, 768),
}


@pytest.mark.parametrize("name", SPECTRA)
def test_rule_has_the_exact_moments_of_the_quadratic_form(name):
    values = SPECTRA[name]
    nodes, weights = quadratic_form_rule(values, 8)
    found = [float(weights @ nodes**k) for k in (1, 2, 3)]
    np.testing.assert_allclose(found, _moments_of_form(values), rtol=1e-13)


@pytest.mark.parametrize("dim", [1, 2, 3, 50, 768])
def test_isotropic_closed_form(dim):
    """A = s I: every |t| is s R, so each eigenvalue is (R r(s R^2))^2 / d."""
    radius, s = np.sqrt(dim), 0.8
    kappa = radius * radius * s
    ratio = float(mpmath.besseli(dim / 2, kappa) / mpmath.besseli(dim / 2 - 1, kappa))
    values, _ = sphere_output_eigenvalues(np.full(dim, s), dim, radius)
    np.testing.assert_allclose(values, (radius * ratio) ** 2 / dim, rtol=1e-13)


@pytest.mark.parametrize("spectrum", [(1.0, 0.3), (2.0, 0.0), (6.0, 5.0)])
def test_circle_against_the_trapezoid_rule_on_the_angle(spectrum):
    """In d = 2 the integrand is periodic and analytic in the angle: 4,096 angles are exact."""
    radius = 1.3
    angle = 2 * np.pi * np.arange(4096) / 4096
    t = radius * np.stack([spectrum[0] * np.cos(angle), spectrum[1] * np.sin(angle)])
    kappa = np.maximum(radius * np.hypot(*t), 1e-300)
    g = radius * ive(1, kappa) / ive(0, kappa)
    exact = np.mean((g * radius * t / kappa) ** 2, axis=1)
    values, errors = sphere_output_eigenvalues(np.array(spectrum), 2, radius)
    np.testing.assert_allclose(values, exact, rtol=1e-11, atol=1e-15)
    assert np.all(np.abs(values - exact) <= errors + 1e-14 * exact)


def test_a_rule_that_has_not_converged_says_so():
    """A huge horizon puts the poles of the Bessel ratio next to the support of Q."""
    values, errors = sphere_output_eigenvalues(np.array([400.0, 1.0]), 2)
    angle = 2 * np.pi * (np.arange(2**16) + 0.5) / 2**16
    t = np.stack([400.0 * np.cos(angle), np.sin(angle)])
    kappa = np.hypot(*t)
    exact = np.mean((ive(1, kappa) / ive(0, kappa) * t / kappa) ** 2, axis=1)
    assert np.all(np.abs(values - exact) <= errors)
    head = weight_head(Sphere(2), query=np.diag([400.0, 1.0]), key=np.eye(2), scale=1.0)
    assert limit_moments(head, samples=100).method == "sampling"
    with pytest.raises(InputError, match="not available"):
        limit_moments(head, method="quadrature")


def test_limit_moments_in_a_rotated_basis(within_errors):
    rng = np.random.default_rng(11)
    law = Sphere(6, 2.0)
    weights = {name: rng.standard_normal((4, 6)) for name in ("query", "key")}
    head = weight_head(
        law, **weights, value=rng.standard_normal((3, 6)), value_bias=[1.0, -1.0, 0.5]
    )
    exact = limit_moments(head)
    assert exact.method == "quadrature"
    sampled = limit_moments(head, samples=100_000, seed=3, method="sampling")
    within_errors(sampled.mean, exact.mean, sampled.mean_error)
    within_errors(sampled.covariance, exact.covariance, sampled.covariance_error)
    assert exact.covariance_error.max() < 1e-9 * exact.covariance.max()


def test_spectrum_longer_than_the_dimension():
    with pytest.raises(InputError, match="at most 2"):
        sphere_output_eigenvalues(np.ones(3), 2)
