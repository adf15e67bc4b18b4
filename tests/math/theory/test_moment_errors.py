"""Predicted errors of mean and covariance: exact constants, simulation, and each other."""

from __future__ import annotations

import numpy as np
import pytest
from benchmarks.line import line_errors
from scipy import special

import esscher
from esscher.math.theory.gaussian_moments import sampled_errors
from esscher.math.theory.rates import (
    expected_absolute,
    expected_gaussian_norm,
    expected_isotropic_norm,
)
from tests.math.theory.simulation import simulate

CONSTANTS = [
    (h, d, queries, 1e20)
    for h, d in ((0.5, 1), (-0.6, 1), (0.4, 5), (0.3, 50))
    for queries in ("tokens", "population")
]


@pytest.mark.parametrize(
    ("h", "d", "queries", "n"),
    [
        *CONSTANTS,
        (0.3, 50, "tokens", 1e30),
        pytest.param(0.3, 200, "population", 1e30, marks=pytest.mark.slow),
    ],
)
def test_they_reach_the_exact_constants(h: float, d: int, queries: str, n: float) -> None:
    head = esscher.gaussian_head(spectrum=[h] * d)
    # in dimension 50 a token's own key is felt up to n = 1e18: exp(h r^2 - (h r)^2/2) is its weight
    curves = esscher.theory.moment_curves(head, [n], queries)
    constants = esscher.theory.constants(head, queries)
    # the tables in the key's log-weight (spacing 0.5, cubic) are good to 3e-4
    assert n * curves["mean_rms"].error[0] ** 2 == pytest.approx(constants.mean, rel=3e-4)
    assert n**0.5 * curves["mean"].error[0] == pytest.approx(constants.mean_norm, rel=3e-4)
    assert n * curves["cov_rms"].error[0] ** 2 == pytest.approx(constants.cov, rel=3e-4)


def test_approximations_are_called_so() -> None:
    """Computed without sampling, yet of first order: no standard error, rather than 0."""
    result = esscher.predict(esscher.gaussian_head(0.5, 3), [100], "population")
    for name in ("mean", "mean_rms", "cov_rms"):
        curve = result.curves[name]
        assert "first-order" in curve.method
        assert "exact" not in curve.method
        assert np.isnan(curve.standard_error).all()
    told = result.to_dict()["curve_standard_error"]
    assert told["mean_rms"] == [None]
    assert told["map_rms"] == [0.0]  # this one is exact


@pytest.mark.parametrize(("queries", "power"), [("tokens", 3), ("population", 2)])
@pytest.mark.parametrize("h", [0.005, 0.05])
def test_covariance_of_weak_tilts(h: float, queries: str, power: int) -> None:
    """``Gamma_n(x) ~ m + h S x``: the covariance is ``h^2 S^3``, or ``h^2 S^2`` over a population.

    To first order in ``S - 1`` that is ``h^2 power sqrt(2/n)``; the next orders are relatively of
    order 1/n and h^2.
    """
    sizes = np.array([1e4, 1e8])
    curve = esscher.theory.moment_curves(esscher.gaussian_head(h), sizes, queries)["cov_rms"]
    exact = h * h * power * np.sqrt(2 / sizes)
    np.testing.assert_allclose(curve.error, exact, rtol=2e-3 + 4 * h * h)
    assert curve.slope() == pytest.approx(0.5, abs=1e-3)


@pytest.mark.parametrize("h", [0.5, 1.0, 2.0, -0.7])
def test_the_line_against_simulation(h: float) -> None:
    """Expected absolute errors in one dimension, n = 100 to 3000, within 4 standard errors or 4%.

    The projection neglects interactions of tokens: 4% is what it is documented to cost at most.
    """
    sizes, replicates = [100, 600, 3000], 300
    run = line_errors(h, sizes, replicates=replicates, seed=4)
    head = esscher.gaussian_head(spectrum=[h])
    tokens = esscher.theory.moment_curves(head, sizes, "tokens")
    outside = esscher.theory.moment_curves(head, sizes, "population")
    for sample, curve in (
        (run.population, outside["mean"]),
        (run.mean, tokens["mean"]),
        (run.cov, tokens["cov"]),
    ):
        size = np.abs(sample)
        error = size.std(axis=0) / np.sqrt(replicates)
        gap = np.abs(size.mean(axis=0) - curve.error)
        assert np.all(gap < 4 * error + 0.04 * curve.error)


def test_pairs_of_tokens_on_the_line() -> None:
    """H = 3, n = 100, population queries: pairs of tokens make 5% of the root mean square."""
    h, n, replicates = 3.0, 100, 6000
    rng = np.random.default_rng(8)
    tilts = np.linspace(-8, 8, 65) * h
    mass = np.exp(-0.5 * (tilts / h) ** 2)
    outputs = []
    for _ in range(replicates // 500):
        keys = rng.standard_normal((500, n))
        logits = tilts[:, None] * keys[:, None]
        weights = np.exp(logits - logits.max(axis=2, keepdims=True))
        attended = np.sum(weights * keys[:, None], axis=2) / weights.sum(axis=2)
        outputs.append(attended @ mass / mass.sum())
    square = np.concatenate(outputs) ** 2
    measured = np.sqrt(square.mean())
    error = square.std() / np.sqrt(replicates) / (2 * measured)
    curve = esscher.theory.moment_curves(esscher.gaussian_head(h), [n], "population")["mean_rms"]
    assert error < 0.013 * measured
    assert abs(curve.error[0] - measured) < 3 * error


@pytest.mark.parametrize("queries", ["tokens", "population"])
@pytest.mark.parametrize(("h", "d"), [(0.5, 2), (1.2, 2), (0.3, 12)])
def test_the_sampled_projection_agrees_with_the_deterministic_one(
    h: float, d: int, queries: str
) -> None:
    head = esscher.gaussian_head(h, d)
    sizes = np.array([50.0, 2e3])
    exact = esscher.theory.moment_curves(head, sizes, queries)
    coupling = head.coupling if queries == "tokens" else head.coupling.population()
    values, errors = sampled_errors(coupling, sizes, queries, seed=0)
    for name in ("mean_rms", "cov_rms"):
        # 24 comparisons; the error comes from 16 batches, so that t, not normal, quantiles apply
        assert np.all(np.abs(values[name] - exact[name].error) < 5 * errors[name])
        assert np.all(errors[name] < 0.2 * values[name])


def test_a_head_without_symmetry_against_simulation() -> None:
    rng = np.random.default_rng(3)
    head = esscher.weight_head(
        esscher.laws.Gaussian(dim=5),
        query=0.5 * rng.standard_normal((3, 5)),
        key=0.5 * rng.standard_normal((3, 5)),
        value=rng.standard_normal((2, 5)),
        query_bias=[0.3, 0.0, -0.3],
    )
    sizes, replicates = [100, 600], 150
    run = simulate(head, sizes, replicates)
    curves = esscher.theory.moment_curves(head, sizes, "tokens")
    for sample, curve in (
        (np.sum(run.mean**2, axis=2), curves["mean_rms"]),
        (np.sum(run.cov**2, axis=(2, 3)), curves["cov_rms"]),
    ):
        measured = np.sqrt(sample.mean(axis=0))
        error = sample.std(axis=0) / np.sqrt(replicates) / (2 * measured)
        noise = np.hypot(error, curve.standard_error)
        assert np.all(np.abs(measured - curve.error) < 4 * noise + 0.05 * curve.error)


def test_where_sampled_tokens_cannot_reach_the_extremes_they_are_not_used() -> None:
    head = esscher.gaussian_head(spectrum=[1.2, 1.1, 1.0, 0.9])
    with pytest.raises(esscher.UndefinedError, match="limited to n = 1e"):
        esscher.theory.moment_curves(head, [1e3, 1e12])
    prediction = esscher.predict(head, [1e3, 1e12], queries="population")
    assert set(prediction.curves) == {"map"}
    assert any("limited" in note for note in prediction.notes)


def test_expected_norms_of_gaussian_vectors() -> None:
    """Sums of n standard normal vectors of R^d, from the law of their length."""
    for d in (1, 2, 3, 8):
        lengths = (np.arange(2000) + 0.5) * 12 / 2000
        masses = np.exp((d - 1) * np.log(lengths) - lengths**2 / 2)
        masses /= masses.sum()
        chi = np.sqrt(2) * np.exp(special.gammaln((d + 1) / 2) - special.gammaln(d / 2))
        assert expected_gaussian_norm(np.full(d, 2.25)) == pytest.approx(1.5 * chi, rel=1e-9)
        for n in (1.0, 7.0, 1e12):
            value = expected_isotropic_norm(n, lengths, masses, d)
            # the frequencies start at 1e-5 / scale, which leaves out that much
            assert value == pytest.approx(np.sqrt(n) * chi, rel=3e-5)
    assert expected_gaussian_norm(np.zeros(3)) == 0.0


@pytest.mark.parametrize("n", [1.0, 5.0, 1e10])
def test_expected_absolute_of_normal_terms(n: float) -> None:
    """The folded normal law: E|m + s Z| = m (2 Phi(m/s) - 1) + 2 s phi(m/s)."""
    values = np.linspace(-9, 9, 2001)
    masses = np.exp(-(values**2) / 2)
    masses /= masses.sum()
    for shift in (0.0, 0.3, 2.0):
        ratio = shift
        exact = shift * (2 * special.ndtr(ratio) - 1) + 2 * np.exp(-(ratio**2) / 2) / np.sqrt(
            2 * np.pi
        )
        value = expected_absolute(n, values / np.sqrt(n), masses, shift)
        assert value == pytest.approx(exact, rel=3e-5)
