"""Measurements of synthetic tokens: known constants, growth, simultaneous bands."""

from __future__ import annotations

import numpy as np
import pytest
from scipy import stats

from esscher import fit_rate
from esscher.core.streams import random_stream
from esscher.math.laws import Cube, Sphere
from esscher.studies.paper.sweeps import band, joint_exponents
from esscher.studies.paper.synthetic import SUPPORT_LAWS, growth_of, langevin, support_law

SIZES = np.array([100, 200, 400, 800])


def draws(count: int, seed: int = 0) -> np.ndarray:
    rng = random_stream(seed, "draws")
    return np.column_stack([rng.standard_normal((count, 3)), rng.random(count)])


def test_langevin() -> None:
    s = np.array([1e-9, 1e-3, 0.5, 3.0, 50.0])
    exact = np.array(
        [
            s[0] / 3,
            s[1] / 3 - s[1] ** 3 / 45,
            1 / np.tanh(0.5) - 2,
            1 / np.tanh(3) - 1 / 3,
            1 - 1 / 50,
        ]
    )
    np.testing.assert_allclose(langevin(s), exact, rtol=1e-6)


@pytest.mark.parametrize("law", SUPPORT_LAWS)
@pytest.mark.parametrize("radius", [0.5, 2.0, 8.0])
def test_limits_of_bounded_tokens(law: str, radius: float) -> None:
    """Tokens stay inside; outputs are tilted means; their variance is that of many outputs."""
    tokens, limit, variance = support_law(law, radius, draws(200_000))
    assert np.linalg.norm(tokens, axis=1).max() <= radius * (1 + 1e-9)
    squares = (limit**2).mean(axis=1)
    assert abs(squares.mean() - variance) < 4 * squares.std() / len(squares) ** 0.5 + 1e-12
    if law == "sphere":
        exact = Sphere(3, radius).tilted_mean(tokens[:50] / 3**0.5)
    elif law == "cube":
        exact = Cube(3, radius / 3**0.5).tilted_mean(tokens[:50] / 3**0.5)
    else:  # by importance sampling of the same tokens, where that is accurate
        if radius > 2:
            return
        weights = np.exp(tokens[:50] @ tokens.T / 3**0.5)
        exact = weights @ tokens / weights.sum(axis=1, keepdims=True)
        assert np.abs(limit[:50] - exact).max() < 0.02 * radius
        return
    np.testing.assert_allclose(limit[:50], exact, atol=1e-6 * radius)


def test_a_wide_truncated_gaussian_is_gaussian() -> None:
    """The limit of Gaussian tokens is Sigma t."""
    tokens, limit, variance = support_law("truncated Gaussian", 12.0, draws(1000))
    np.testing.assert_allclose(limit, tokens / 3**0.5, atol=1e-3)
    assert variance == pytest.approx(1 / 3, rel=1e-3)


def test_growth_tells_powers_from_exponentials() -> None:
    radii = np.geomspace(0.5, 8, 7)
    noise = np.exp(0.1 * np.random.default_rng(0).standard_normal((40, 7)))
    power = growth_of(radii, radii**1.5 * noise, 0)
    assert power.power
    assert power.low < 1.5 < power.high
    exponential = growth_of(radii, np.exp(0.7 * radii) * noise, 0)
    assert not exponential.power
    assert not exponential.undecided
    assert exponential.rate == pytest.approx(0.7, abs=0.05)
    flat = growth_of(radii, 1.0 + 0 * radii + 0.5 * noise, 0)
    assert flat.undecided


def test_bands_hold_all_horizons_at_once() -> None:
    """Exponents that share half of their noise: the band holds all seven, intervals do not."""
    horizons = np.linspace(0.3, 3, 7)
    held, held_slope, alone, studies = 0, 0, 0, 200
    for study in range(studies):
        rng = random_stream(study, "bands")
        shared = rng.standard_normal((24, 1))
        moved = 0.1 * (shared + rng.standard_normal((24, 7)))
        estimate = moved.mean(axis=0)  # the truth is 0
        found = band(estimate, moved - estimate, horizons, study)
        held += bool(np.all((found.low <= 0) & (found.high >= 0)))
        held_slope += found.slope_interval[0] <= 0 <= found.slope_interval[1]
        half = stats.t.ppf(0.975, 23) * moved.std(axis=0, ddof=1) / np.sqrt(24)
        alone += bool(np.all(np.abs(estimate) <= half))
    low, high = stats.binom.ppf([0.001, 0.999], studies, 0.95)
    assert low <= held <= high
    assert low <= held_slope <= high
    assert alone < low
    one = band(np.zeros(2), np.zeros((1, 2)), np.array([1.0, 2.0]), 0)
    assert not np.isfinite(one.low).any()


def test_exponents_of_a_band_are_those_of_the_fits() -> None:
    rng = random_stream(0, "joint")
    errors = SIZES ** -np.array([[[0.5]], [[0.3]]]) * np.exp(0.2 * rng.standard_normal((2, 16, 4)))
    rates = [fit_rate(own, SIZES) for own in errors]
    found = joint_exponents(errors, SIZES, rates, np.array([0.5, 1.0]), 0)
    for s, rate in enumerate(rates):
        assert (found.low[s] + found.high[s]) / 2 == pytest.approx(rate.exponent)
        # two scales at once: wider than one interval, narrower than twice as wide
        assert 0.9 < (found.high[s] - found.low[s]) / (rate.interval[1] - rate.interval[0]) < 1.6
    assert found.slope == pytest.approx((rates[1].exponent - rates[0].exponent) / 0.5)
