"""Cubic splines through values on a grid, and averages of them.

The spline is that of ``scipy.interpolate.CubicSpline`` with its default ends ("not a knot"). That
module takes a third of a second to import, half as long as all that theory predicts for a sweep;
and averages of a spline over many points are a matrix product here, which it does not offer.
"""

from __future__ import annotations

import numpy as np
import scipy
from numpy.typing import NDArray

from esscher.core.validation import Array


class Spline:
    """A function on the line with known values on a grid.

    Parameters
    ----------
    grid
        At least four points, increasing.
    values
        The first axis runs along the grid; further ones are further functions.
    """

    def __init__(self, grid: Array, values: Array) -> None:
        self._grid, self._values = grid, values
        self._slopes = _slopes(grid, values)

    def __call__(self, x: Array) -> Array:
        """Values at the points of an array of one axis; beyond the grid its ends are continued."""
        at, parts = self._parts(x)
        low, high, slope, next_slope = (
            part.reshape(-1, *(1,) * (self._values.ndim - 1)) for part in parts
        )
        ends = low * self._values[at] + high * self._values[at + 1]
        return np.asarray(ends + slope * self._slopes[at] + next_slope * self._slopes[at + 1])

    def averages(self, x: Array, masses: Array) -> Array:
        """Averages over points, [k, row, ...], for values of two axes.

        Parameters
        ----------
        x
            Points [row, point].
        masses
            Weights of the points, [k, point].
        """
        rows, count = len(x), len(self._grid)
        at, parts = self._parts(x)
        # a row of weights of the values, then of the slopes
        first = (at + 2 * count * np.arange(rows)[:, None]).ravel()
        places = np.concatenate([first, first + 1, first + count, first + count + 1])
        weights = np.empty((len(masses), rows * 2 * count))
        for k, mass in enumerate(masses):
            found = np.concatenate([(mass * part).ravel() for part in parts])
            weights[k] = np.bincount(places, found, weights.shape[1])
        both = np.concatenate([self._values, self._slopes])
        found = weights.reshape(-1, 2 * count) @ both
        return np.asarray(found.reshape(len(masses), rows, -1))

    def _parts(self, x: Array) -> tuple[NDArray[np.int64], list[Array]]:
        """Piece of the grid and what counts there: both values, then the slopes at both ends."""
        grid = self._grid
        at = np.clip(np.searchsorted(grid, x, side="right") - 1, 0, len(grid) - 2)
        width = grid[at + 1] - grid[at]
        u = (x - grid[at]) / width
        square, rest = u * u, 1 - u
        high = square * (3 - 2 * u)
        return at, [1 - high, high, width * u * rest * rest, -width * square * rest]


def _slopes(grid: Array, values: Array) -> Array:
    """Slopes that make second derivatives continuous, and third ones next to the ends."""
    flat = values.reshape(len(values), -1)
    dx = np.diff(grid)
    slope = np.diff(flat, axis=0) / dx[:, None]
    wide = dx[:, None]
    first, last = grid[2] - grid[0], grid[-1] - grid[-3]
    bands = np.zeros((3, len(grid)))
    bands[1, 1:-1] = 2 * (dx[:-1] + dx[1:])
    bands[0, 2:], bands[2, :-2] = dx[:-1], dx[1:]
    bands[1, 0], bands[0, 1] = dx[1], first
    bands[1, -1], bands[2, -2] = dx[-2], last
    right = np.empty_like(flat)
    right[1:-1] = 3 * (wide[1:] * slope[:-1] + wide[:-1] * slope[1:])
    right[0] = ((dx[0] + 2 * first) * dx[1] * slope[0] + dx[0] ** 2 * slope[1]) / first
    right[-1] = (dx[-1] ** 2 * slope[-2] + (2 * last + dx[-1]) * dx[-2] * slope[-1]) / last
    found = scipy.linalg.solve_banded((1, 1), bands, right, True, True, check_finite=False)
    return np.asarray(found).reshape(values.shape)
