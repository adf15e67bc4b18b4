"""Allocation: equal to exhaustive search, and to the closed form where there is one."""

from __future__ import annotations

from itertools import product

import numpy as np
import pytest

from esscher.core.errors import InputError
from esscher.math.allocation import EffectCurve, allocate, smallest_within


def random_curves(rng: np.random.Generator, units: int, corners: int) -> list[EffectCurve]:
    curves = []
    for _ in range(units):
        sizes = np.sort(rng.choice(12, size=corners, replace=False)) + 1
        curves.append(EffectCurve.below(sizes, np.sort(rng.exponential(size=corners))[::-1]))
    return curves


@pytest.mark.parametrize("seed", range(20))
def test_no_other_budgets_are_better(seed: int) -> None:
    rng = np.random.default_rng(seed)
    curves = random_curves(rng, 3, 4)
    ranges = [range(c.sizes[0], c.sizes[-1] + 1) for c in curves]
    lowest, highest = sum(r.start for r in ranges), sum(r.stop - 1 for r in ranges)
    for total in range(lowest, highest + 1, 3):
        result = allocate(curves, total)
        assert result.budgets.sum() == total
        best = min(
            sum(float(c(n)) for c, n in zip(curves, choice, strict=True))
            for choice in product(*ranges)
            if sum(choice) == total
        )
        assert result.effect == pytest.approx(best, rel=1e-12)
        assert abs(result.gap(curves)) < 1e-12


def test_the_square_root_law() -> None:
    """sum D/n under sum n = B is minimal at n proportional to sqrt(D)."""
    scale = np.array([1.0, 4.0, 25.0, 100.0])
    n = np.arange(1, 4001)
    curves = [EffectCurve.below(n, d / n) for d in scale]
    result = allocate(curves, 3600)
    np.testing.assert_allclose(result.budgets, 3600 * np.sqrt(scale) / 18, atol=1)
    # the price of a token is the derivative D/n^2
    assert result.price == pytest.approx(1 / 200**2, rel=0.02)


def test_bounds_are_kept_and_what_nobody_can_use_is_left() -> None:
    curves = [EffectCurve.below([2, 10], np.array([1.0, 0.0])) for _ in range(3)]
    result = allocate(curves, 100)
    assert result.budgets.tolist() == [10, 10, 10]
    assert result.price == 0.0
    assert result.gap(curves) == pytest.approx(0.0)
    with pytest.raises(InputError, match="smallest possible budget is 6 tokens"):
        allocate(curves, 5)


def test_ties_go_to_the_first() -> None:
    curves = [EffectCurve.below([1, 5], np.array([1.0, 0.0])) for _ in range(3)]
    assert allocate(curves, 3 + 6).budgets.tolist() == [5, 3, 1]


def test_the_minorant_is_convex_and_below() -> None:
    rng = np.random.default_rng(1)
    sizes = np.arange(1, 60, 3)
    effects = 5 / sizes + 0.3 * rng.standard_normal(len(sizes))
    curve = EffectCurve.below(sizes, effects)
    slopes = np.diff(curve.effects) / np.diff(curve.sizes)
    assert np.all(np.diff(slopes) > 0)
    assert np.all(slopes <= 0)
    assert np.all(curve(sizes) <= np.minimum.accumulate(effects) + 1e-12)
    assert (curve.sizes[0], curve.sizes[-1]) == (1, 58)


def test_smallest_budget_within_a_tolerance() -> None:
    curves = [EffectCurve.below([1, 11, 21], np.array([2.0, 1.0, 0.5])) for _ in range(4)]
    result = smallest_within(curves, np.array([3.0, 1.55, 0.5, 0.4]))
    assert result.tolist() == [1, 6, 21, -1]
    assert float(curves[1](6)) <= 1.55 < float(curves[1](5))
