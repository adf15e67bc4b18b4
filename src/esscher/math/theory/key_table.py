"""Laplace integrals of attention with one key held fixed, as functions of that key's weight.

At one query of tilt strength s, the n keys are: a fixed key of log-weight L, the query's own key
(when tokens attend to each other), and the others, which are averaged out by ``softmax_mean``'s
transform. With ``p`` the softmax weights and ``rest = sum over others p_j (x_j - s)`` the part of
the error that the others contribute along the tilt, this file tabulates the expectations of

    p_key, p_own, rest, p_key^2, p_key p_own, p_key rest, p_own^2, p_own rest, rest^2 (along),
    and, across the tilt, the sum over others of p_j^2.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
import scipy

from esscher.core.validation import Array
from esscher.math.theory.softmax_mean import LaplaceTable

#: Largest spacing of the table in the fixed key's log-weight: everything varies on the scale 1.
SPACING = 0.25
#: exp(-exp(CUT)) vanishes in double precision.
CUT = 6.6


#: Expectations by the power of the fixed key's weight in them, without and with the own key.
PLAIN, PLAIN_OWN = ("rest", "along", "across"), ("own", "own_own", "own_rest")
ONCE, ONCE_OWN = ("key", "key_rest"), ("key_own",)


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


@dataclass(frozen=True, eq=False)
class _Transforms:
    """Products over all keys but the fixed one, on the table's grid (first axis: sizes)."""

    none: Array
    own: Array
    rest: Array
    own_own: Array
    own_rest: Array
    along: Array
    across: Array

    @classmethod
    def build(cls, table: LaplaceTable, others: Array, own_logit: float | None) -> _Transforms:
        m = others[:, None]
        # clamped exponents only ever meet a factor m or m - 1 that is then zero
        phi0, phi1, phi2 = (np.exp(np.maximum(m - k, 0) * table.log_phi) for k in range(3))
        weight = np.zeros_like(table.ell)
        if own_logit is not None:
            weight = np.exp(np.minimum(table.ell + own_logit - table.strength**2 / 2, CUT))
        damp = np.exp(-weight)
        rest = damp * m * table.y1 * phi1
        none = damp * phi0
        return cls(
            none=none,
            own=weight * none,
            rest=rest,
            own_own=weight**2 * none,
            own_rest=weight * rest,
            along=damp * m * (table.y2 * phi1 + (m - 1) * table.y1**2 * phi2),
            across=damp * m * table.w2 * phi1,
        )


class KeyTable:
    """Expectations as functions of the fixed key's log-weight ``L = <a, eta> - s^2/2``.

    Parameters
    ----------
    table
        Single-token expectations at the query's tilt strength.
    sizes
        Numbers of tokens n.
    own_logit
        Logit of the query's own key, or None when the query is not one of the tokens.

    Attributes
    ----------
    fields
        Names of the expectations that are not zero, in the order of ``values``.
    """

    def __init__(self, table: LaplaceTable, sizes: Array, own_logit: float | None) -> None:
        self._table, self._sizes, self._own_logit = table, sizes, own_logit
        taken = 1.0 if own_logit is None else 2.0
        t = _Transforms.build(table, sizes - taken, own_logit)
        # The kernels depend on L + ell only. With a spacing in L that divides the step in ell they
        # are computed once per value of the sum, and a strided view lays them out as a matrix.
        ratio = max(1, int(np.ceil(table.step / SPACING)))
        spacing = table.step / ratio
        count = int(np.ceil((table.ell[-1] - table.ell[0] + 12) / spacing)) + 1
        self._grid = -table.ell[-1] - 8 + spacing * np.arange(count)
        span = ratio * (len(table.ell) - 1) + 1
        sums = self._grid[0] + table.ell[0] + spacing * np.arange(count + span - 1)
        weight = np.exp(np.minimum(sums, CUT))
        decay = np.exp(-weight)
        kernels = [
            # copied: products of overlapping rows do not go through the library
            np.ascontiguousarray(np.lib.stride_tricks.sliding_window_view(x, span)[:, ::ratio])
            for x in (decay, weight * decay, weight * weight * decay)
        ]
        plain = [t.rest, t.along, t.across]
        once = [t.none, t.rest]
        self.fields: tuple[str, ...] = (*PLAIN, *ONCE, "key_key")
        if own_logit is not None:
            plain += [t.own, t.own_own, t.own_rest]
            once += [t.own]
            self.fields = (*PLAIN, *PLAIN_OWN, *ONCE, *ONCE_OWN, "key_key")
        values = np.hstack(
            [
                kernels[0] @ np.concatenate(plain).T,
                kernels[1] @ np.concatenate(once).T,
                kernels[2] @ t.none.T,
            ]
        )
        self._spline = scipy.interpolate.CubicSpline(self._grid, table.step * values)

    def __call__(self, log_weights: Array) -> Expectations:
        """Expectations at log-weights; the last axis of each runs over the sizes."""
        parts = np.split(self.values(log_weights), len(self.fields), axis=-1)
        found = dict(zip(self.fields, parts, strict=True))
        absent = np.zeros_like(parts[0])
        return Expectations(*(found.get(name, absent) for name in Expectations._fields))

    def values(self, log_weights: Array) -> Array:
        """The same in one array, whose last axis runs over ``fields`` and, in each, the sizes."""
        return np.asarray(self._spline(np.clip(log_weights, self._grid[0], self._grid[-1])))

    def without_key(self) -> Expectations:
        """The same when no key is fixed: n keys (or n - 1 and the own one), all averaged out."""
        taken = 0.0 if self._own_logit is None else 1.0
        t = _Transforms.build(self._table, self._sizes - taken, self._own_logit)
        zero = np.zeros(len(self._sizes))
        sums = [
            self._table.step * x.sum(axis=1)
            for x in (t.own, t.rest, t.own_own, t.own_rest, t.along, t.across)
        ]
        own, rest, own_own, own_rest, along, across = sums
        return Expectations(zero, own, rest, zero, zero, zero, own_own, own_rest, along, across)
