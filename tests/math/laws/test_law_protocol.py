"""What every law owes its callers, checked on every law."""

from __future__ import annotations

import pickle

import numpy as np
import pytest
from scipy.stats import norm

from esscher.core.errors import InputError
from esscher.core.validation import Array
from esscher.math.laws import Law, StudentT

#: Chance that one correct law fails one Monte Carlo test, over all its comparisons together.
FALSE_ALARM = 1e-5


def assert_mean_zero(samples: Array) -> None:
    """Check that columns of i.i.d. rows have mean 0, at Monte Carlo accuracy (Bonferroni)."""
    n = len(samples)
    size = np.abs(samples).max()
    error = samples.std(axis=0) / np.sqrt(n)
    random = error > 1e-12 * size
    bound = norm.isf(FALSE_ALARM / (2 * samples.shape[1]))
    z = np.abs(samples.mean(axis=0)[random]) / error[random]
    assert np.all(z < bound), f"z-scores up to {z.max():.2f}, bound {bound:.2f}"
    # Entries that do not vary (a sign squared) leave no Monte Carlo error to hide behind.
    np.testing.assert_allclose(samples.mean(axis=0)[~random], 0.0, atol=1e-12 * max(size, 1.0))


def outer(points: Array) -> Array:
    return points[:, :, None] * points[:, None, :]


def some_tilts(law: Law, count: int = 6, norm_: float = 0.8) -> Array:
    directions = np.random.default_rng(1).normal(size=(count, law.dim))
    return norm_ * directions / np.linalg.norm(directions, axis=1, keepdims=True)


def directional_derivative(function, t: Array, i: int, step: float = 2e-3) -> Array:
    """Fourth-order central difference along coordinate i."""
    e = step * np.eye(t.shape[-1])[i]
    far, near = function(t + 2 * e) - function(t - 2 * e), function(t + e) - function(t - e)
    return (8 * near - far) / (12 * step)


def test_shapes(law):
    d = law.dim
    assert law.sample(7, np.random.default_rng(0)).shape == (7, d)
    assert law.sample(0, np.random.default_rng(0)).shape == (0, d)
    assert law.mean.shape == (d,)
    assert law.covariance.shape == (d, d)
    for lead in [(), (5,), (2, 3), (0,)]:
        tilts = np.full((*lead, d), 0.1)
        assert np.shape(law.log_mgf(tilts)) == lead
        assert law.tilted_mean(tilts).shape == (*lead, d)
        assert law.tilted_covariance(tilts).shape == (*lead, d, d)


def test_vectorised_over_tilts(law):
    tilts = np.concatenate([np.zeros((1, law.dim)), some_tilts(law)])
    for function in (law.log_mgf, law.tilted_mean, law.tilted_covariance):
        together = function(tilts)
        for row, t in zip(together, tilts, strict=True):
            np.testing.assert_allclose(row, function(t), rtol=1e-12, atol=1e-14)


def test_sampling_is_a_function_of_the_seed(law):
    first, second, other = (law.sample(50, np.random.default_rng(seed)) for seed in (5, 5, 6))
    np.testing.assert_array_equal(first, second)
    assert not np.array_equal(first, other)


def test_sample_moments(law):
    x = law.sample(40_000, np.random.default_rng(2)) - law.mean
    assert_mean_zero(np.hstack([x, (outer(x) - law.covariance).reshape(len(x), -1)]))


def test_support_radius(law):
    norms = np.linalg.norm(law.sample(2000, np.random.default_rng(3)), axis=1)
    assert norms.max() <= law.support_radius * (1 + 1e-12)
    # Reached in the limit: laws that live on their sphere or on few points come close.
    if law.name in {"sphere", "signs", "finite"}:
        assert norms.max() == pytest.approx(law.support_radius)


def test_value_gradient_and_hessian_at_zero(law):
    zero = np.zeros(law.dim)
    assert law.log_mgf(zero) == pytest.approx(0.0, abs=1e-14)
    np.testing.assert_allclose(law.tilted_mean(zero), law.mean, rtol=1e-13, atol=1e-14)
    np.testing.assert_allclose(law.tilted_covariance(zero), law.covariance, rtol=1e-12, atol=1e-14)


def test_gradient_is_the_derivative_of_log_mgf(tiltable):
    t = some_tilts(tiltable)
    gradient = tiltable.tilted_mean(t)
    for i in range(tiltable.dim):
        numerical = directional_derivative(tiltable.log_mgf, t, i)
        np.testing.assert_allclose(gradient[:, i], numerical, atol=1e-9)


def test_hessian_is_the_derivative_of_the_gradient(tiltable):
    t = some_tilts(tiltable)
    hessian = tiltable.tilted_covariance(t)
    np.testing.assert_allclose(hessian, np.swapaxes(hessian, -1, -2), rtol=1e-13, atol=1e-14)
    for i in range(tiltable.dim):
        numerical = directional_derivative(tiltable.tilted_mean, t, i)
        np.testing.assert_allclose(hessian[:, i], numerical, atol=1e-8)


def test_large_tilts_stay_finite(tiltable):
    if tiltable.tilt_domain.kind != "all":
        pytest.skip("the law has no limit at large tilts")
    t = some_tilts(tiltable, norm_=1e4)
    assert np.all(np.isfinite(tiltable.log_mgf(t)))
    assert np.all(np.isfinite(tiltable.tilted_covariance(t)))
    norms = np.linalg.norm(tiltable.tilted_mean(t), axis=1)
    assert np.all(norms <= tiltable.support_radius * (1 + 1e-12))


def test_wrong_tilts_are_refused(law):
    for function in (law.log_mgf, law.tilted_mean, law.tilted_covariance):
        with pytest.raises(InputError, match="last axis"):
            function(np.zeros(law.dim + 1))
        with pytest.raises(InputError, match="last axis"):
            function(0.0)
        with pytest.raises(InputError, match="not finite"):
            function(np.full(law.dim, np.nan))


def test_moments_cannot_be_changed(law):
    with pytest.raises(ValueError, match="read-only"):
        law.mean[0] = 5.0
    with pytest.raises(ValueError, match="read-only"):
        law.covariance[0, 0] = 5.0


def test_pickles(law):
    copy = pickle.loads(pickle.dumps(law))
    np.testing.assert_array_equal(
        copy.sample(5, np.random.default_rng(0)), law.sample(5, np.random.default_rng(0))
    )


def test_student_has_a_limit_at_zero_only():
    law = StudentT(2, df=5)
    tilts = [[0.0, 0.0], [0.0, 1e-300]]
    np.testing.assert_array_equal(law.log_mgf(tilts), [0.0, np.inf])
    np.testing.assert_array_equal(law.tilted_mean(tilts), [[0.0, 0.0], [np.nan, np.nan]])
    assert np.isnan(law.tilted_covariance(tilts)[1]).all()
    assert str(law.tilt_domain) == "t = 0"
