"""Simulation from the extremes: against exact moments, all n keys drawn, and closed forms."""

from __future__ import annotations

import numpy as np
import pytest
from scipy import special, stats

from esscher import InputError, UndefinedError, gaussian_head, law_head
from esscher.core.streams import random_stream
from esscher.math.laws import standard_law
from esscher.math.simulation import simulate_map, simulate_mean, simulate_query
from esscher.math.simulation.extremes import (
    QueryProposal,
    bulk_moments,
    bulk_non_normality,
    draw_first_arrivals,
    extremes_needed,
    key_floor,
    largest_normals,
    weighted_mean,
)
from esscher.math.simulation.mean import Bulk
from esscher.math.theory import exponents, map_constant, moment_curves, softmax_moments
from esscher.theory import map_curve


def errors_of(values: np.ndarray) -> tuple[float, float]:
    return float(values.mean()), float(values.std(ddof=1) / np.sqrt(len(values)))


def direct(n: int, strength: float, replicates: int, seed: int) -> tuple[np.ndarray, np.ndarray]:
    """Error along the tilt and sum of squared weights, all n keys drawn."""
    rng = random_stream(seed, "all keys", n)
    along, collision = np.empty(replicates), np.empty(replicates)
    for r in range(replicates):
        x = rng.standard_normal(n)
        p = special.softmax(strength * x)
        along[r], collision[r] = p @ x - strength, p @ p
    return along, collision


@pytest.mark.parametrize("n", [50.0, 1e6, 1e12, 1e30])
def test_largest_of_n_normals_has_its_exact_law(n: float) -> None:
    rng = np.random.default_rng(5)
    x = largest_normals(n, 16, rng.standard_exponential(3000), rng)
    assert np.all(np.diff(x, axis=1) <= 0)
    # P(max <= x) = Phi(x)^n, and U_(i) of n is Beta(i, n + 1 - i)
    uniform = np.exp(n * special.log_ndtr(x[:, 0]))
    assert stats.kstest(uniform, "uniform").pvalue > 1e-3
    survival = np.exp(special.log_ndtr(-x[:, 15]))
    assert stats.kstest(special.betainc(16, n - 15, survival), "uniform").pvalue > 1e-3


@pytest.mark.parametrize("strength", [0.0, 0.3, 2.0, 9.0, 60.0])
@pytest.mark.parametrize("cut", [0.5, 3.0, 7.0])
def test_bulk_moments_against_adaptive_quadrature(cut: float, strength: float) -> None:
    found = bulk_moments(np.array([cut]), np.array([strength]))

    # panels of the scale of the weights, then of the density: 40 points in each
    edges = np.concatenate([np.geomspace(1e-4, 0.25, 16), np.arange(0.5, cut + 12, 0.25)])
    nodes, weights = np.polynomial.legendre.leggauss(40)
    edges = np.concatenate([[0.0], edges])
    half = np.diff(edges)[:, None] / 2
    depth = ((edges[:-1] + edges[1:])[:, None] / 2 + half * nodes).ravel()
    density = (half * weights).ravel() * stats.norm.pdf(cut - depth) / special.ndtr(cut)
    offset = cut - strength - depth

    def expected(power: int, shape: np.ndarray | float = 1.0) -> float:
        return float(np.sum(density * shape * np.exp(-power * strength * depth)))

    w, y, q = expected(1), expected(1, offset), expected(2)
    np.testing.assert_allclose(found.mean[0], [w, y, q], rtol=1e-8, atol=1e-10 * w)
    wy, yy = expected(2, offset), expected(2, offset**2)
    np.testing.assert_allclose(found.covariance[0, 0, 1], wy - w * y, atol=1e-9 * abs(yy) + 1e-12)
    np.testing.assert_allclose(found.covariance[0, 1, 1], yy - y * y, rtol=1e-7)
    np.testing.assert_allclose(
        found.covariance[0, 2, 2],
        expected(4) - q * q,
        rtol=1e-6,
        atol=1e-12,
    )


def test_fewer_extremes_are_needed_where_the_bulk_matters_less() -> None:
    strengths = np.array([1.0, 3.0, 5.0])
    worst = [float(bulk_non_normality(1e9, strengths, k).max()) for k in (64, 256, 1024, 4096)]
    assert np.all(np.diff(worst) < 0)
    count, left = extremes_needed(1e9, strengths, 0.01)
    assert left <= 0.01
    assert float(bulk_non_normality(1e9, strengths, count // 2).max()) > 0.01
    assert extremes_needed(100.0, strengths, 0.01) == (100, 0.0)
    with pytest.raises(UndefinedError, match="raise the tolerance"):
        extremes_needed(1e9, strengths, 1e-7)


def test_one_query_has_the_exact_moments_at_any_length() -> None:
    sizes, strengths = [1e5, 1e8, 1e12, 1e20], [0.5, 2.0, 4.0, 9.0]
    deviations = []
    for n in sizes:
        exact = softmax_moments(np.array([n]), np.array(strengths))
        for j, s in enumerate(strengths):
            found = simulate_query(n, s, 1500, seed=3)
            mean, error = errors_of(found.along)
            deviations.append((mean - exact.bias[0, j]) / error)
            edge = np.sqrt(2 * np.log(n))
            if 2 * s + 1 > edge and s < edge:
                continue  # squares are carried by keys too rare for plain sampling
            mean, error = errors_of(found.collision)
            # the table's own relative error is 1e-6
            deviations.append(
                (mean - exact.collision[0, j]) / np.hypot(error, 1e-6 * exact.collision[0, j])
            )
    # at most 32 comparisons, Bonferroni bound at 1e-3
    assert np.max(np.abs(deviations)) < 4.2


def test_one_query_agrees_with_all_keys_in_law() -> None:
    pvalues = []
    for n, replicates in ((1_000, 1500), (10_000, 600)):
        for s in (0.5, 1.5, 3.0):
            along, collision = direct(n, s, replicates, seed=1)
            # a loose tolerance keeps most of the keys in the bulk
            found = simulate_query(n, s, 2000, seed=2, tolerance=0.03)
            pvalues += [stats.ks_2samp(along, found.along).pvalue]
            pvalues += [stats.ks_2samp(collision, found.collision).pvalue]
    assert min(pvalues) > 0.01 / len(pvalues)


@pytest.mark.slow
def test_one_query_agrees_with_a_million_keys() -> None:
    pvalues, deviations = [], []
    for s in (0.5, 1.0, 1.5, 2.0, 3.0, 4.0):
        along, collision = direct(1_000_000, s, 300, seed=1)
        found = simulate_query(1e6, s, 4000, seed=2)
        pvalues += [stats.ks_2samp(along, found.along).pvalue]
        pvalues += [stats.ks_2samp(collision, found.collision).pvalue]
        (one, error), (other, spread) = errors_of(along**2), errors_of(found.along**2)
        deviations.append((one - other) / np.hypot(error, spread))
    assert min(pvalues) > 0.01 / len(pvalues)
    assert np.max(np.abs(deviations)) < 4


@pytest.mark.parametrize(
    ("options", "queries"),
    [
        ({"horizon": 0.5}, "population"),
        ({"horizon": 1.5}, "population"),
        ({"horizon": 2.0, "dim": 2}, "population"),
        ({"spectrum": [1.5, 0.7, 0.2], "tau": 0.5}, "population"),
        ({"horizon": 0.8, "dim": 3}, "tokens"),
        ({"spectrum": [1.2, 0.3], "tau": 0.5}, "tokens"),
    ],
)
def test_map_error_is_the_predicted_one(options: dict, queries: str) -> None:
    head = gaussian_head(**options)
    n = [100.0, 1e5, 1e12]
    found = simulate_map(head, n, 1000, seed=1, queries=queries)
    curve = map_curve(head, n, queries)
    noise = np.hypot(found.rms_error, curve.standard_error)
    assert np.all(found.trusted)
    # 18 comparisons of mean squares of skewed samples
    assert np.all(np.abs(found.rms - curve.error) < 4.5 * noise)
    assert np.all(found.mean < found.rms + 3 * found.mean_error)
    assert np.all(np.diff(found.largest_weight) < 0)


def test_parametric_constant_at_a_trillion_tokens() -> None:
    head = gaussian_head(horizon=0.4, dim=2)
    found = simulate_map(head, [1e12], 4000, seed=2)
    scaled = found.rms[0] ** 2 * 1e12
    error = 2 * found.rms[0] * found.rms_error[0] * 1e12
    assert abs(scaled - map_constant(head)) < 4 * error


def test_expected_norm_of_the_map_has_the_stable_exponent() -> None:
    """There is no predicted curve of it: its exponent 1/(1 + H^2) rested on an argument alone."""
    head = gaussian_head(horizon=2.0, dim=1)
    n = np.array([1e30, 1e60])
    found = simulate_map(head, n, 4000, seed=1)
    gap = np.log(n[1] / n[0])
    slope = np.log(found.mean[0] / found.mean[1]) / gap
    error = np.hypot(*(found.mean_error / found.mean)) / gap
    # powers of ln n move a slope by at most 1/ln n here
    assert abs(slope - exponents(2.0).map_l1) < 4 * error + 1 / np.log(n[0])


def test_rare_queries_and_keys_keep_expectations() -> None:
    head = gaussian_head(spectrum=[1.3, 0.4], tau=0.3)
    coupling = head.coupling.population()
    rng = np.random.default_rng(1)
    proposal = QueryProposal(coupling, 1e8)
    assert len(proposal.thetas) > 1
    tilts, weights = proposal.sample(20_000, rng)
    assert weights.max() <= 2
    square = np.sum(tilts**2, axis=1)
    for values, exact in (
        (np.ones(len(square)), 1.0),
        (square, float(np.sum(coupling.variances) + 0.09)),
    ):
        mean, error = errors_of(weights * values)
        assert abs(mean - exact) < 4 * error
    floors = key_floor(1e8, np.full(20_000, 4.0))
    assert floors[0] < 1e-3
    first, key_weights = draw_first_arrivals(floors, rng)
    assert key_weights.max() <= 2
    for power in (0, 1, 2):
        mean, error = errors_of(key_weights * first**power)
        assert abs(mean - special.gamma(power + 1)) < 4 * error
    assert np.all(key_floor(1e8, np.array([7.0, 50.0])) == 1)


def test_control_variate_is_exact_for_constants() -> None:
    weights = np.array([0.5, 2.0, 1.0, 1.7])
    mean, error = weighted_mean(np.full(4, 3.0), weights)
    assert mean == pytest.approx(3.0)
    assert error == pytest.approx(0.0, abs=1e-12)


@pytest.mark.parametrize("horizon", [0.6, 2.0])
def test_mean_output_agrees_with_all_keys(horizon: float) -> None:
    n, replicates = 1_000, 300
    head = gaussian_head(horizon=horizon, dim=1)
    tilts = np.linspace(-6.5 * horizon, 6.5 * horizon, 131)
    shares = stats.norm.pdf(tilts, scale=horizon)
    shares /= shares.sum()
    rng = random_stream(1, "all keys of the mean")
    errors = np.empty(replicates)
    for r in range(replicates):
        x = rng.standard_normal(n)
        p = special.softmax(np.multiply.outer(tilts, x), axis=1)
        errors[r] = shares @ (p @ x - tilts)
    # a loose tolerance, so that a bulk is summed at this n
    found = simulate_mean(head, [n], 400, seed=2, tolerance=0.1)
    assert found.extremes[0] < n
    for exact, value, noise in (
        (np.abs(errors), found.mean[0], found.mean_error[0]),
        (errors**2, found.rms[0] ** 2, 2 * found.rms[0] * found.rms_error[0]),
    ):
        mean, error = errors_of(exact)
        assert abs(mean - value) < 4 * np.hypot(error, noise)


def test_mean_output_is_the_predicted_one_at_a_trillion_tokens() -> None:
    head = gaussian_head(horizon=1.5, dim=1)
    n = [1e6, 1e12]
    found = simulate_mean(head, n, 300, seed=1)
    curves = moment_curves(head, n)
    # the projection neglects the interaction of tokens, below 4% in one dimension
    for values, errors, name in (
        (found.mean, found.mean_error, "mean"),
        (found.rms, found.rms_error, "mean_rms"),
    ):
        gap = np.abs(values - curves[name].error)
        assert np.all(gap < 4 * errors + 0.04 * curves[name].error)


def test_mean_output_is_unbiased_by_planting() -> None:
    bulk = Bulk(1.0, 0.0, 1e8, 0.01)
    rng = np.random.default_rng(3)
    draws = [bulk.draw_extremes(rng) for _ in range(2000)]
    weights = np.array([weight for _, weight in draws])
    counts = np.array([len(x) for x, _ in draws])
    assert weights.max() <= 2
    for values, exact in ((weights, 1.0), (weights * counts, bulk.expected)):
        mean, error = errors_of(values)
        assert abs(mean - exact) < 4 * error


def test_results_depend_on_their_size_and_seed_only() -> None:
    head = gaussian_head(horizon=1.0, dim=2)
    alone, together = (simulate_map(head, n, 50, seed=7) for n in ([1e9], [1e4, 1e9]))
    assert alone.rms[0] == together.rms[1]
    assert simulate_map(head, [1e9], 50, seed=8).rms[0] != alone.rms[0]
    assert "keys drawn" in repr(alone)
    assert list(alone.table()["n"]) == [1e9]
    assert alone.to_dict()["trusted"] == alone.trusted.tolist()


def test_refusals() -> None:
    head = gaussian_head(horizon=1.0, dim=2)
    with pytest.raises(InputError, match="at least 2"):
        simulate_map(head, [1e9], 1)
    with pytest.raises(InputError, match="tolerance"):
        simulate_map(head, [1e9], tolerance=0.0)
    with pytest.raises(InputError, match="Gaussian tokens"):
        simulate_map(law_head(standard_law("laplace", 1), horizon=0.3), [1e9])
    with pytest.raises(UndefinedError, match="one dimension"):
        simulate_mean(head, [1e9])
    with pytest.raises(InputError, match="strength"):
        simulate_query(1e9, -1.0, 10)
