"""Cubic splines through values on a grid, and averages of them.

The spline is that of ``scipy.interpolate.CubicSpline`` with its default ends ("not a knot"). That
module takes a third of a second to import, half as long as all that theory predicts for a sweep;
and averages of a spline over many points are a matrix product here, which it does not offer.
"""

from __future__ import annotations

from functools import lru_cache
from typing import Any, NamedTuple

import numpy as np
import scipy
from numpy.typing import NDArray

from esscher.core.validation import Array
from esscher.math.coupling import Coupling
from esscher.math.theory.softmax_mean import (
    MARGIN,
    STRONGEST,
    LaplaceTable,
    dominant,
    laplace_table,
)
from esscher.math.theory.tilt_law import TiltLaw


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
        # slopes that make second derivatives continuous, and third ones next to the ends
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
        slopes = scipy.linalg.solve_banded((1, 1), bands, right, True, True, check_finite=False)
        self._slopes = np.asarray(slopes).reshape(values.shape)

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
            each = np.concatenate([(mass * part).ravel() for part in parts])
            weights[k] = np.bincount(places, each, weights.shape[1])
        both = np.concatenate([self._values, self._slopes])
        sums = weights.reshape(-1, 2 * count) @ both
        return np.asarray(sums.reshape(len(masses), rows, -1))

    def _parts(self, x: Array) -> tuple[NDArray[np.int64], list[Array]]:
        """Piece of the grid and what counts there: both values, then the slopes at both ends."""
        grid = self._grid
        at = np.clip(np.searchsorted(grid, x, side="right") - 1, 0, len(grid) - 2)
        width = grid[at + 1] - grid[at]
        u = (x - grid[at]) / width
        square, rest = u * u, 1 - u
        high = square * (3 - 2 * u)
        return at, [1 - high, high, width * u * rest * rest, -width * square * rest]


# Laplace integrals of attention with one key held fixed, as functions of that key's weight.
#
# At one query of tilt strength s, the n keys are: a fixed key of log-weight L, the query's own key
# (when tokens attend to each other), and the others, which are averaged out by ``softmax_mean``'s
# transform. With ``p`` the softmax weights and ``rest = sum over others p_j (x_j - s)`` the part of
# the error that the others contribute along the tilt, this file tabulates the expectations of
#
#     p_key, p_own, rest, p_key^2, p_key p_own, p_key rest, p_own^2, p_own rest, rest^2 (along),
#     and, across the tilt, the sum over others of p_j^2.
#
# Those without p_key have a limit as L falls, their level, that a fixed key changes little: among
# n = 10^24 tokens by 10^-24 of it, less than rounding. So the change is what is tabulated, from
# ``e^{-lambda w} - 1`` in place of ``e^{-lambda w}``, and the level is kept apart.

#: Largest spacing of the table in the fixed key's log-weight: everything varies on the scale 1.
SPACING = 0.25
#: exp(-exp(CUT)) vanishes in double precision.
CUT = 6.6
#: Steps of ell, in multiples of which matrices of kernels are kept.
KERNELS = 64


class Expectations(NamedTuple):
    """Expectations given the fixed key (see the module); all arrays of the same shape."""

    key: Array
    own: Array
    rest: Array
    key_key: Array
    key_own: Array
    key_rest: Array
    own_own: Array
    own_rest: Array
    along: Array
    across: Array


def _transforms(table: LaplaceTable, others: Array, own_logit: float | None) -> dict[str, Array]:
    """Products over all keys but the fixed one, on the table's grid (first axis: sizes)."""
    m = others[:, None]
    # clamped exponents only ever meet a factor m or m - 1 that is then zero
    phi0, phi1, phi2 = (np.exp(np.maximum(m - k, 0) * table.log_phi) for k in range(3))
    weight = np.zeros_like(table.ell)
    if own_logit is not None:
        weight = np.exp(np.minimum(table.ell + own_logit - table.strength**2 / 2, CUT))
    damp = np.exp(-weight)
    rest = damp * m * table.y1 * phi1
    none = damp * phi0
    return {
        "none": none,
        "own": weight * none,
        "rest": rest,
        "own_own": weight**2 * none,
        "own_rest": weight * rest,
        "along": damp * m * (table.y2 * phi1 + (m - 1) * table.y1**2 * phi2),
        "across": damp * m * table.w2 * phi1,
    }


def _powers(sums: NDArray[np.floating[Any]]) -> tuple[Array, Array, Array]:
    """``e^-w - 1``, ``w e^-w`` and ``w^2 e^-w`` at ``ln w = L + ell``."""
    weight = np.exp(np.minimum(sums, CUT))
    decay = np.exp(-weight)
    return np.expm1(-weight), weight * decay, weight * weight * decay


@lru_cache(maxsize=8)
def _kernels(step: float, ratio: int, steps: int) -> tuple[Array, ...]:
    """The same as matrices, rows of L by columns of ell, for a table of so many steps.

    They depend on L + ell only. With a spacing in L that divides the step in ell they are computed
    once per value of the sum, and a strided view lays them out as a matrix. The grid in L begins
    where the largest ell has a weight of e^-8 and ends at the table's ``heaviest``: but for where
    it begins nothing depends on the table, and one matrix serves all that are not longer.
    """
    spacing = step / ratio
    count = int(np.ceil((step * steps + 8 - MARGIN) / spacing)) + 1
    sums = -8 - step * steps + spacing * np.arange(count + ratio * steps)
    return tuple(
        # copied: products of overlapping rows do not go through the library
        np.ascontiguousarray(
            np.lib.stride_tricks.sliding_window_view(x, ratio * steps + 1)[:, ::ratio]
        )
        for x in _powers(sums)
    )


class KeyTable:
    """Expectations as functions of the fixed key's log-weight ``L = <a, eta> - s^2/2``.

    Parameters
    ----------
    strength
        Strength of the query's tilt.
    sizes
        Numbers of tokens n.
    step
        Trapezoidal step of the Laplace integrals.
    heaviest
        Largest log-weight that the fixed key will have.
    own_logit
        Logit of the query's own key, or None when the query is not one of the tokens.

    Attributes
    ----------
    fields
        Names of the expectations that are not zero, in the order of ``values``.
    levels
        Limits of the same as the fixed key's log-weight falls.
    """

    def __init__(
        self,
        strength: float,
        sizes: Array,
        step: float,
        heaviest: float,
        own_logit: float | None = None,
    ) -> None:
        half, largest = strength**2 / 2, float(sizes.max())
        if own_logit is not None:
            # beyond it the own key has all the attention anyway
            own_logit = min(own_logit, dominant(strength, largest) + half)
            heaviest = max(heaviest, own_logit - half)
        heaviest = min(heaviest, dominant(strength, largest))
        table = laplace_table(strength, largest, step, heaviest)
        self._table, self._sizes, self._own_logit = table, sizes, own_logit
        taken = 1.0 if own_logit is None else 2.0
        t = _transforms(table, sizes - taken, own_logit)
        # by the power of the fixed key's weight in them: 0, 1 and 2
        names, key_names = ["rest", "along", "across"], ["key", "key_rest"]
        once = [t["none"], t["rest"]]
        if own_logit is not None:
            names += ["own", "own_own", "own_rest"]
            key_names += ["key_own"]
            once += [t["own"]]
        self.fields = (*names, *key_names, "key_key")
        plain = [t[name] for name in names]
        # what meets the kernel's power 0, 1 and 2 of the fixed key's weight
        self._columns = [np.concatenate(plain).T, np.concatenate(once).T, t["none"].T]
        levels = [table.step * x.sum(axis=1) for x in plain]
        absent = np.zeros((len(self.fields) - len(plain)) * len(sizes))
        self.levels = np.concatenate([*levels, absent])
        self._ratio = max(1, int(np.ceil(table.step / SPACING)))
        spacing = table.step / self._ratio
        count = int(np.ceil((table.ell[-1] - table.ell[0] + 8 - MARGIN) / spacing)) + 1
        self._grid = -table.ell[-1] - 8 + spacing * np.arange(count)

    def _tabulate(self) -> Array:
        """Values minus levels on the grid."""
        steps, count = len(self._table.ell) - 1, len(self._grid)
        # a grid of a longer table begins earlier: this one is the end of it
        kernels = _kernels(self._table.step, self._ratio, -(-steps // KERNELS) * KERNELS)
        rows, columns = len(kernels[0]) - count, steps + 1
        parts = [k[rows:, :columns] @ x for k, x in zip(kernels, self._columns, strict=True)]
        return np.asarray(self._table.step * np.hstack(parts))

    def split(self, values: Array) -> Expectations:
        """Expectations from an array whose last axis runs over fields and, in each, the sizes."""
        parts = np.split(values, len(self.fields), axis=-1)
        present = dict(zip(self.fields, parts, strict=True))
        absent = np.zeros_like(parts[0])
        return Expectations(*(present.get(name, absent) for name in Expectations._fields))

    def __call__(self, log_weights: Array) -> Expectations:
        """Expectations at log-weights; the last axis of each runs over the sizes."""
        inside = np.clip(log_weights, self._grid[0], self._grid[-1])
        # at many points, all kept, this is faster than our own spline
        spline = scipy.interpolate.CubicSpline(self._grid, self._tabulate())
        return self.split(np.asarray(spline(inside) + self.levels))

    def averages(self, log_weights: Array, masses: Array) -> Array:
        """Averages of values minus levels over log-weights [row, point], by ``masses`` [k, point].

        Axes [k, row, field and size].
        """
        inside = np.clip(log_weights, self._grid[0], self._grid[-1])
        return Spline(self._grid, self._tabulate()).averages(inside, masses)

    def value(self, log_weight: float) -> Array:
        """Values [field and size] at one log-weight, summed there and not tabulated."""
        inside = float(np.clip(log_weight, self._grid[0], self._grid[-1]))
        kernels = _powers(inside + self._table.ell)
        parts = [kernel @ x for kernel, x in zip(kernels, self._columns, strict=True)]
        return np.asarray(self._table.step * np.concatenate(parts) + self.levels)

    def without_key(self) -> Expectations:
        """The same when no key is fixed: n keys (or n - 1 and the own one), all averaged out."""
        taken = 0.0 if self._own_logit is None else 1.0
        t = _transforms(self._table, self._sizes - taken, self._own_logit)
        zero = np.zeros(len(self._sizes))
        sums = {name: self._table.step * x.sum(axis=1) for name, x in t.items() if name != "none"}
        return Expectations(key=zero, key_key=zero, key_own=zero, key_rest=zero, **sums)


# Second order of the mean's error on the line: what pairs of tokens do beyond their sum.
#
# ``moment_curves`` projects the mean output on sums of functions of single tokens. The next term of
# Hoeffding's expansion is the part of ``E[mean_n | eta_1, eta_2]`` that no such sum carries,
#
#     h_2(eta_1, eta_2) = E[mean_n | eta_1, eta_2] - (its two projections) + E[mean_n],
#
# with the variance ``n (n - 1)/2 E h_2^2``. On the line the Laplace integrals with two keys held
# fixed are products of one function of each key, so that a table over pairs is a matrix product.

#: Tilt strengths with less mass than this do not matter.
LIGHT = 1e-10
#: Nodes of the rule over the norm of each token, and trapezoidal step: good to 1% of the variance,
#: which is itself at most a tenth of the whole.
NODES, STEP = 32, 0.7


def pair_variance(
    coupling: Coupling, h: float, n: Array, nodes: Array, masses: Array, queries: str
) -> Array:
    """Variance of the mean's error at each size that pairs of tokens add, ``M = h`` on the line.

    ``nodes`` and ``masses`` are a rule for averages over the norm of a token.
    """
    tokens = queries == "tokens"
    x = np.concatenate([-nodes[::-1], nodes])
    mass = np.concatenate([masses[::-1], masses]) / 2
    rule = TiltLaw(coupling).rule(float(n.max()))
    total = np.zeros((len(n), len(x), len(x)))
    for s, mass_s in zip(rule.strengths, rule.weights, strict=True):
        if mass_s < LIGHT:
            continue
        strength = min(float(s), STRONGEST)
        table = laplace_table(strength, float(n.max()), STEP)
        plain, pull = _fixed_kernels(table, x)
        for i, size in enumerate(n):
            # E[Gamma_n - s] given two keys (rows and columns), and the own key if there is one
            others = size - 3 if tokens else size - 2
            damp = table.step * table.powers(others)
            rest = table.step * others * table.y1 * table.powers(max(others - 1, 0.0))
            if tokens:
                own = strength / h
                weight = np.exp(
                    np.minimum(table.ell + strength * own - strength * strength / 2, CUT)
                )
                fade = np.exp(-weight)
                rest = (rest + damp * weight * (own - strength)) * fade
                damp = damp * fade
            pulled = plain.T @ (damp[:, None] * pull)
            along = pulled + pulled.T + plain.T @ (rest[:, None] * plain)
            # the query may point either way
            total[i] += mass_s * (along - along[::-1, ::-1]) / 2
    if tokens:
        # E[Gamma_n] at the query of one of the two tokens, summed over the two
        out = np.zeros((len(n), len(x), len(x)))
        last = len(x) - 1
        for k in range(len(x) // 2, len(x)):
            tilt = h * float(x[k])
            sign = 1.0 if tilt >= 0 else -1.0
            table = laplace_table(min(abs(tilt), STRONGEST), float(n.max()), STEP)
            plain, pull = _fixed_kernels(table, sign * x)
            for i, size in enumerate(n):
                others = size - 2
                damp = table.step * table.powers(others)
                rest = table.step * others * table.y1 * table.powers(max(others - 1, 0.0))
                row = pull.T @ (damp * plain[:, k])
                row = row + plain.T @ (damp * pull[:, k] + rest * plain[:, k])
                out[i, k] = sign * row
                out[i, last - k] = -sign * row[::-1]  # all signs reversed
        own_part = out + out.transpose(0, 2, 1)
        total = total * ((n - 2) / n)[:, None, None] + own_part / n[:, None, None]
    centred = total - np.einsum("nij,j->ni", total, mass)[:, :, None]
    centred -= np.einsum("nij,i->nj", centred, mass)[:, None, :]
    return np.asarray(n * (n - 1) / 2 * np.einsum("nij,i,j->n", centred**2, mass, mass))


def _fixed_kernels(table: LaplaceTable, x: Array) -> tuple[Array, Array]:
    """``e^-w`` and ``w (x - s) e^-w`` of a fixed key at each node x, [ell, node]."""
    s = table.strength
    weight = np.exp(np.minimum(table.ell[:, None] + s * x - s * s / 2, CUT))
    plain = np.exp(-weight)
    return plain, weight * (x - s) * plain
