"""Constants of bounded tokens: against attention itself, and a case in closed form."""

from __future__ import annotations

import numpy as np
import pytest

import esscher
from esscher.math.theory.sampled_constants import SampledConstant, sampled_constants
from esscher.math.theory.tilted_draws import tilted_draws
from tests.math.theory.simulation import simulate


@pytest.mark.parametrize("queries", ["tokens", "population"])
@pytest.mark.parametrize("law", ["sphere", "cube", "signs"])
def test_against_attention_itself(law: str, queries: str) -> None:
    head = esscher.law_head(esscher.laws.standard_law(law, 3), horizon=0.7)
    constants = sampled_constants(head, queries)
    n, replicates = 800, 200
    run = simulate(head, [n], replicates, queries, query_count=800)
    for sample, constant in (
        (n * np.sum(run.mean[:, 0] ** 2, axis=1), constants.mean),
        (n * run.map_square[:, 0], constants.map),
    ):
        assert constant.value is not None
        error = np.hypot(sample.std() / np.sqrt(replicates), constant.standard_error)
        # population queries: 800 of them leave noise of their own in the mean, and the next order
        # in 1/n is of relative size inflation/n, below 2% here
        assert abs(sample.mean() - constant.value) < 4 * error + 0.02 * constant.value


def test_without_tilt_it_is_the_sample_mean() -> None:
    head = esscher.law_head(esscher.laws.Signs(2), horizon=0.0)
    constants = sampled_constants(head, "population")
    assert constants.map.value == pytest.approx(2.0)
    assert constants.mean.value == pytest.approx(2.0)
    assert constants.log_burn_in == 0.0


def test_gaussian_constants_are_recovered_by_the_same_sampling() -> None:
    """The sampler does not use boundedness: at small H it must give the closed forms."""
    head = esscher.gaussian_head(spectrum=[0.3, 0.2], tau=0.2)
    for queries in ("tokens", "population"):
        constants = sampled_constants(head, queries)
        exact = esscher.theory.mean_constant(head, queries).squared
        assert _score(constants.mean, exact) < 4
        assert _score(constants.map, esscher.theory.map_constant(head)) < 4


def test_the_sphere_in_dimension_fifty_is_one_integral() -> None:
    """``A = 2 I``: pairs of queries differ in their angle only; 7.4450 is a rule of 400 nodes.

    Averages over random tokens see 5 to 100: pairs at a cosine of 0.6 carry the constant.
    """
    d, h = 50, 2.0
    law = esscher.laws.standard_law("sphere", d)
    cosine, mass = np.polynomial.legendre.leggauss(400)
    mass = mass * (1 - cosine**2) ** ((d - 3) / 2)
    first, second = np.zeros((2, 400, d))
    first[:, 0] = h * np.sqrt(d)
    second[:, 0], second[:, 1] = h * np.sqrt(d) * np.stack([cosine, np.sqrt(1 - cosine**2)])
    both = first + second
    growth = np.exp(law.log_mgf(both) - law.log_mgf(first) - law.log_mgf(second))
    gaps = [law.tilted_mean(both) - law.tilted_mean(t) for t in (first, second)]
    spread = np.trace(law.tilted_covariance(both), axis1=1, axis2=2)
    exact = float(mass @ (growth * (spread + np.sum(gaps[0] * gaps[1], axis=1))) / mass.sum())
    assert exact == pytest.approx(7.4450, rel=1e-4)
    found = sampled_constants(esscher.law_head(law, horizon=h), "population").mean
    assert _score(found, exact) < 4
    assert found.seen_error < 0.02 * exact


def test_no_error_is_stated_where_a_few_pairs_carry_the_average() -> None:
    law = esscher.laws.standard_law("sphere", 50)
    head = esscher.law_head(law, spectrum=[2.0] + [0.0] * 49)
    found = sampled_constants(head, "tokens")
    assert found.map.value is None
    assert found.map.standard_error is None
    assert found.map.seen > 1e4
    prediction = esscher.predict(head)
    assert prediction.constants is not None
    assert prediction.constants.map is None
    assert any("of the map: not estimable" in note for note in prediction.notes)


@pytest.mark.slow
def test_stated_errors_are_the_spread_over_seeds() -> None:
    """A of norm 2 without symmetry, and a cube: 590 and 28.7 by 131,072 pairs of another seed."""
    rng = np.random.default_rng(0)
    matrix = rng.standard_normal((50, 50))
    matrix *= 2 / np.linalg.norm(matrix, 2)
    for law, options in (("sphere", {"matrix": matrix}), ("cube", {"horizon": 1.5})):
        dim = 50 if law == "sphere" else 8
        head = esscher.law_head(esscher.laws.standard_law(law, dim), **options)
        drawn = [sampled_constants(head, "tokens", seed).mean for seed in range(40)]
        found = [c for c in drawn if c.value is not None]
        assert len(found) >= 36  # a few samples say that they cannot tell
        values, errors = np.array([[c.value, c.standard_error] for c in found]).T
        scores = (values - values.mean()) / errors
        assert 0.75 < np.sqrt(np.mean(scores**2)) < 1.3
        assert np.abs(scores).max() < 4.5


@pytest.mark.parametrize("law", ["gaussian", "sphere", "cube", "signs", "finite"])
def test_tilted_draws_have_the_tilted_moments(law: str) -> None:
    rng = np.random.default_rng(2)
    if law == "finite":
        source: esscher.laws.Law = esscher.laws.FiniteTokens(rng.standard_normal((7, 3)))
    else:
        source = esscher.laws.standard_law(law, 3)
    for tilt in (np.zeros(3), np.array([0.9, -0.4, 2.0])):
        drawn = tilted_draws(source, np.tile(tilt, (20_000, 1)), rng)
        error = drawn.std(axis=0) / np.sqrt(len(drawn))
        assert np.all(np.abs(drawn.mean(axis=0) - source.tilted_mean(tilt)) < 4.5 * error + 1e-12)
        assert np.trace(np.cov(drawn.T)) == pytest.approx(
            np.trace(source.tilted_covariance(tilt)), rel=0.05
        )


def _score(found: SampledConstant, exact: float) -> float:
    assert found.value is not None
    assert found.standard_error is not None
    return abs(found.value - exact) / found.standard_error


def test_bounded_tokens_are_parametric() -> None:
    prediction = esscher.predict(
        esscher.law_head(esscher.laws.standard_law("sphere", 8), horizon=1.5), [100, 1000]
    )
    assert prediction.exponents is not None
    assert prediction.exponents.mean == prediction.exponents.map_rms == 0.5
    assert prediction.is_exact
    assert set(prediction.curves) == {"map", "mean", "mean_rms", "cov_rms"}
    assert "1/sqrt(n)" in prediction.headline
    mixture = esscher.predict(
        esscher.law_head(esscher.laws.standard_law("mixture", 2), horizon=1.5)
    )
    assert mixture.headline == "The asymptotic rate of this head (H = 1.5) is not known."
