"""Moments of the output law: closed forms, quadrature, finite sums and sampling agree."""

from __future__ import annotations

from itertools import product

import mpmath
import numpy as np
import pytest
from scipy.integrate import quad
from scipy.stats import chi2

from esscher.core.errors import InputError
from esscher.math.heads import array_head, gaussian_head, law_head, weight_head
from esscher.math.laws import Cube, FiniteTokens, Gaussian, Signs, Sphere
from esscher.math.limits import limit_moments
from esscher.math.limits.moments import block_moments, sampled_moments


def _gaussian_head(rng):
    factor = rng.standard_normal((4, 4)) / 2
    return weight_head(
        Gaussian(rng.standard_normal(4), factor @ factor.T),
        query=rng.standard_normal((3, 4)),
        key=rng.standard_normal((3, 4)),
        value=rng.standard_normal((2, 4)),
        query_bias=rng.standard_normal(3),
        key_bias=rng.standard_normal(3),
        value_bias=rng.standard_normal(2),
    )


def test_gaussian_closed_form_is_the_formula_and_matches_sampling(within_errors):
    head = _gaussian_head(np.random.default_rng(0))
    exact = limit_moments(head)
    m, sigma, v = head.law.mean, head.law.covariance, head.value_weight
    mean = v @ (m + sigma @ (head.A @ m + head.a)) + head.value_bias
    np.testing.assert_allclose(exact.mean, mean, rtol=1e-12)
    covariance = v @ sigma @ head.A @ sigma @ head.A.T @ sigma @ v.T
    np.testing.assert_allclose(exact.covariance, covariance, rtol=1e-11)
    assert exact.method == "closed form"
    assert not exact.mean_error.any()
    assert not exact.covariance_error.any()
    sampled = sampled_moments(head, 50_000, seed=1)
    assert sampled.samples == 50_000
    within_errors(sampled.mean, exact.mean, sampled.mean_error)
    within_errors(sampled.covariance, exact.covariance, sampled.covariance_error)


def test_signs_with_a_diagonal_matrix_against_the_exact_sum():
    law = Signs(3, scale=1.3)
    value = np.array([[1.0, -2.0, 0.5], [0.0, 1.0, 3.0]])
    head = weight_head(
        law,
        query=np.diag([0.4, 1.0, -2.0]),
        key=np.eye(3),
        value=value,
        query_bias=[0.3, 0.0, -0.5],
        value_bias=[1.0, 2.0],
        scale=1.0,
    )
    result = limit_moments(head)
    assert result.method == "quadrature"
    cloud = 1.3 * np.array(list(product([-1.0, 1.0], repeat=3)))
    outputs = head.limit_map(head.tokens(cloud).tilts)
    np.testing.assert_allclose(result.mean, outputs.mean(axis=0), rtol=1e-13)
    np.testing.assert_allclose(result.covariance, np.cov(outputs.T, bias=True), rtol=1e-13)


def test_cube_with_a_permutation_like_matrix_against_sampling(within_errors):
    """Rows 0 and 2 share a column, row 3 is empty: all the cases of the product rule."""
    matrix = np.array(
        [[0, 0, 2.0, 0, 0], [0, -1.5, 0, 0, 0], [0, 0, 4.0, 0, 0], [0] * 5, [3.0, 0, 0, 0, 0]]
    )
    rng = np.random.default_rng(3)
    head = weight_head(
        Cube(5, half_width=1.5),
        query=matrix,
        key=np.eye(5),
        value=rng.standard_normal((3, 5)),
        query_bias=[0.5, 0.0, -1.0, 0.7, 0.0],
        scale=1.0,
    )
    exact = limit_moments(head)
    assert exact.method == "quadrature"
    assert exact.covariance_error.max() < 1e-11
    sampled = sampled_moments(head, 100_000, seed=5)
    within_errors(sampled.mean, exact.mean, sampled.mean_error)
    within_errors(sampled.covariance, exact.covariance, sampled.covariance_error)


def _mean_square_langevin(kappa):
    """``E L(kappa u)^2`` for u uniform on [-1, 1]; beyond 20 ``L(s) = 1 - 1/s`` to 17 digits."""
    near = quad(lambda s: (1 / np.tanh(s) - 1 / s) ** 2, 0, 20, epsabs=1e-13, epsrel=1e-13)[0]
    far = (kappa - 20) - 2 * np.log(kappa / 20) + (1 / 20 - 1 / kappa)
    return (near + far) / kappa


@pytest.mark.parametrize("horizon", [10.0, 1e3, 1e6])
def test_cube_at_large_horizons_against_a_direct_integral(horizon):
    """The map tends to a step, and the panels follow it."""
    result = limit_moments(law_head(Cube(2), horizon=horizon))
    exact = _mean_square_langevin(3 * horizon)  # A = H / Sigma with Sigma = 1/3
    np.testing.assert_allclose(np.diag(result.covariance), exact, rtol=1e-12)
    assert result.covariance_error.max() < 1e-12


@pytest.fixture(scope="module")
def arrays():
    rng = np.random.default_rng(8)
    return tuple(rng.standard_normal((900, d)) for d in (4, 4, 3))


def test_array_head_is_the_dense_softmax(arrays):
    q, k, v = arrays
    scores = np.exp(q @ k.T / 2)
    outputs = scores @ v / scores.sum(axis=1, keepdims=True)
    result = limit_moments(array_head(q, k, v))
    assert result.method == "finite sum"
    np.testing.assert_allclose(result.mean, outputs.mean(axis=0), rtol=1e-11)
    np.testing.assert_allclose(result.covariance, np.cov(outputs.T, bias=True), rtol=1e-11)


def test_sampled_queries_of_an_array_head(arrays, within_errors):
    head = array_head(*arrays)
    exact = limit_moments(head)
    result = sampled_moments(head, 400, seed=1)
    assert result.method == "sampled queries, all keys"
    assert result.samples == 400
    within_errors(result.mean, exact.mean, result.mean_error)
    within_errors(result.covariance, exact.covariance, result.covariance_error)


def test_long_array_heads_are_sampled():
    rng = np.random.default_rng(9)
    head = array_head(*(rng.standard_normal((5000, 2)) for _ in range(3)))
    assert limit_moments(head, samples=64).method == "sampled queries, all keys"
    assert limit_moments(head, samples=5000).method == "finite sum"


def test_finite_tokens():
    tokens = np.array([[0.0], [1.0], [3.0]])
    result = limit_moments(law_head(FiniteTokens(tokens), horizon=0.7))
    scores = np.exp(0.7 / tokens.var() * (tokens - tokens.mean()) * tokens.T)
    outputs = scores @ tokens[:, 0] / scores.sum(axis=1)
    assert result.mean[0] == pytest.approx(outputs.mean(), rel=1e-12)
    assert result.covariance[0, 0] == pytest.approx(outputs.var(), rel=1e-12)


def _z_scores(head, exact, samples, seeds):
    upper = np.triu_indices(len(exact.mean))
    scores = []
    for seed in range(seeds):
        result = sampled_moments(head, samples, seed=seed)
        means = (result.mean - exact.mean) / result.mean_error
        spread = ((result.covariance - exact.covariance) / result.covariance_error)[upper]
        scores.append(np.concatenate([means, spread]))
    return np.array(scores)


def _assert_unit_variance(scores):
    """Sums of squares of independent z-scores are chi-square: two-sided at 1e-4 over entries."""
    seeds, entries = scores.shape
    level = 1e-4 / (2 * entries)
    sums = np.sum(scores**2, axis=0)
    assert np.all(sums >= chi2.ppf(level, seeds)), sums / seeds
    assert np.all(sums <= chi2.isf(level, seeds)), sums / seeds


def test_standard_errors_with_the_finite_population_correction_are_calibrated(arrays):
    """Two thirds of the rows are drawn: without the correction the variance would be 1/3."""
    # Small queries: with heavy-tailed outputs z-scores of 300 rows are not yet normal.
    q, k, v = (rows[:450] for rows in arrays)
    head = array_head(q / 4, k, v)
    _assert_unit_variance(_z_scores(head, limit_moments(head), samples=300, seeds=200))


def test_blocks_do_not_matter_to_moments():
    rows = np.random.default_rng(10).exponential(size=(1000, 3)) + 50.0
    one = block_moments([rows], "x")
    other = block_moments((rows[start : start + 170] for start in range(0, 1000, 170)), "x")
    np.testing.assert_allclose(one.covariance, np.cov(rows.T), rtol=1e-12)
    centred = rows - rows.mean(axis=0)
    pairs = centred[:, :, None] * centred[:, None, :]
    np.testing.assert_allclose(one.covariance_error, pairs.std(axis=0) / np.sqrt(999), rtol=1e-10)
    for name in ("mean", "covariance", "mean_error", "covariance_error"):
        np.testing.assert_allclose(getattr(one, name), getattr(other, name), rtol=1e-9)


def test_queries_are_independent_of_weights_drawn_with_the_same_seed():
    """With one shared stream the first queries would be the rows of the weights themselves."""
    law = Sphere(400, 20.0)
    query, key, value = np.random.default_rng(0).standard_normal((3, 32, 400)) / 20.0
    head = weight_head(law, query=query, key=key, value=value)
    result = limit_moments(head, samples=4096, seed=0)
    assert result.method == "sampling"
    outputs = head.limit_map(head.sample(4096, np.random.default_rng(99)).tilts)
    squares = np.sum((outputs - outputs.mean(axis=0)) ** 2, axis=1)
    error = squares.std() / np.sqrt(4096) * np.sqrt(2)  # of the difference of two samples
    # 4.5 standard errors: one false alarm in 10^5
    assert abs(np.trace(result.covariance) - squares.mean()) < 4.5 * error


@pytest.mark.parametrize("dim", [1, 2, 3, 50, 768])
def test_tilts_of_one_length_on_a_sphere(dim):
    """Every |t| is s R, so each eigenvalue of the covariance is (R r(s R^2))^2 / d."""
    radius, s = np.sqrt(dim), 0.8
    kappa = radius * radius * s
    ratio = float(mpmath.besseli(dim / 2, kappa) / mpmath.besseli(dim / 2 - 1, kappa))
    turn = np.linalg.qr(np.random.default_rng(dim).standard_normal((dim, dim)))[0]
    head = weight_head(Sphere(dim, radius), query=s * turn, key=np.eye(dim), scale=1.0)
    result = limit_moments(head)
    assert result.method == "closed form"
    np.testing.assert_allclose(
        result.covariance, (radius * ratio) ** 2 / dim * np.eye(dim), rtol=1e-12, atol=1e-15
    )


def test_too_few_samples_are_refused():
    with pytest.raises(InputError, match="at least 2"):
        limit_moments(gaussian_head(horizon=1.0, dim=2), samples=1)
    with pytest.raises(InputError, match="seed is -1"):
        limit_moments(law_head(Signs(2), matrix=[[1.0, 1.0], [0.0, 1.0]]), seed=-1)
