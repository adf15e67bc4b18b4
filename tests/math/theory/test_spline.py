"""Splines against those of scipy."""

from __future__ import annotations

import numpy as np
import pytest
from scipy.interpolate import CubicSpline

from esscher.math.theory.gaussian_tables import Spline


@pytest.mark.parametrize("count", [4, 5, 40])
def test_it_is_the_spline_of_scipy(count):
    rng = np.random.default_rng(count)
    grid = np.cumsum(rng.uniform(0.2, 1.0, count))
    values = rng.normal(size=(count, 3))
    # beyond the grid as well, where the last piece goes on
    x = np.linspace(grid[0] - 0.5, grid[-1] + 0.5, 201)
    expected = CubicSpline(grid, values)(x)
    size = np.abs(expected).max()
    np.testing.assert_allclose(Spline(grid, values)(x), expected, atol=1e-12 * size)
    one = Spline(grid, values[:, 0])(x)
    np.testing.assert_allclose(one, expected[:, 0], atol=1e-12 * size)
