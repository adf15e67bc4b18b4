"""Keys of some queries on a grid of weights: sums over thousands of keys, as sums over some points.

All there is of a key in the integrals of :mod:`cloud_table` is a function of ``l w``, times numbers
of the key that are the same for every query. With ``x = ln w`` such a function is smooth on the
scale 1. So it is tabulated at equally spaced points, and a key takes it from the four points about
it (Lagrange): a sparse matrix P [key, point] per query. For functions F and numbers c of the keys,

    sum_j F(l w_j) c_j = sum_k F(l W_k) (P' c)_k,
    sum_i a_i F(l_i w_j) = sum_k P_jk sum_i a_i F(l_i W_k),

and P' c is computed once for all nodes l and all functions F. Nodes are a whole number of spacings
apart, so that ``l W`` takes few values. Queries are taken together, side by side at every point:
the functions are the same for all of them.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
import scipy
from numpy.typing import NDArray

from esscher.core.validation import Array

if TYPE_CHECKING:
    from scipy.sparse import csr_array

Single = NDArray[np.float32]

#: Nodes are this far apart in ln l; the trapezoidal rule is then good to about 1e-4.
STEP = float(np.log(2.0))
#: Spacings of the grid between two nodes. A function that goes like the power a of l w is then good
#: to 5.4e-7 a^4 of itself: 9e-6 for a square.
BETWEEN = 10
SPACING = STEP / BETWEEN
#: Points from which a key takes a function.
AROUND = 4
#: ``e^{-l w}`` is nothing from this l w on.
GONE = 80.0


@dataclass(frozen=True, eq=False)
class Functions:
    """Functions of ``t = l w`` at the nodes (rows), for points of the grid (columns).

    Attributes
    ----------
    decay, gap
        ``e^{-t}`` and ``D = 1 - e^{-t}``.
    weight, square
        ``t e^{-t}`` and ``t^2 e^{-t}``.
    moment
        ``t D``.
    """

    decay: Array
    gap: Array
    weight: Array
    square: Array
    moment: Array

    def upto(self, count: int) -> Functions:
        """The first nodes alone."""
        return Functions(*(values[:count] for values in vars(self).values()))


@dataclass(frozen=True, eq=False)
class WeightGrid:
    """Keys of some queries placed on a grid of ``ln(l w)``, at the first node l.

    Attributes
    ----------
    first
        The first of the points from which a key takes a function of a query, [key, query].
    share
        How much it takes of each of them, [key, query, AROUND].
    points
        Places of the points on the grid, in spacings from ``l w = 1``; those without keys are left
        out.
    """

    first: NDArray[np.int32]
    share: Single
    points: NDArray[np.int64]

    @classmethod
    def of(cls, log_scaled: Array) -> WeightGrid:
        """Of the keys' ``ln(l w)`` at the first node, [key, query]."""
        place = log_scaled * (1 / SPACING)
        below = np.floor(place)
        share = lagrange((place - below).astype(np.float32))
        lowest = int(below.min()) - 1
        first = (below - (lowest + 1)).astype(np.int32)
        extent = int(first.max()) + AROUND
        begins = np.bincount(first.ravel(), minlength=extent) > 0
        taken = begins.copy()
        for i in range(1, AROUND):
            taken[i:] |= begins[:-i]
        if not taken.all():
            first = (np.cumsum(taken, dtype=np.int32) - np.int32(1))[first]
        return cls(first, share, np.flatnonzero(taken) + lowest)

    def placed(self) -> csr_array:
        """``P`` of all queries side by side, [key, point x query]."""
        keys, queries = self.first.shape
        side_by_side: NDArray[np.int32] = self.first * np.int32(queries)
        side_by_side += np.arange(queries, dtype=np.int32)
        around = _around(side_by_side, queries).reshape(keys, -1)
        return _sparse(around, self.share, len(self.points) * queries)

    def placed_tokens(self, keys: NDArray[np.int64]) -> csr_array:
        """``P`` of some keys, for each of them all queries, [key x query, point]."""
        around = _around(self.first[keys], 1).reshape(-1, AROUND)
        return _sparse(around, self.share[keys], len(self.points))

    def functions(self, count: int) -> Functions:
        """Functions at the first ``count`` nodes."""
        low, high = int(self.points[0]), int(self.points[-1]) + BETWEEN * (count - 1)
        t = np.exp(np.minimum(SPACING * np.arange(low, high + 1), np.log(GONE)))
        decay, gap = np.exp(-t), -np.expm1(-t)
        at = (self.points - low) + BETWEEN * np.arange(count)[:, None]
        weight = t * decay
        along = (decay, gap, weight, t * weight, t * gap)
        return Functions(*(np.take(values, at) for values in along))


def _around(first: NDArray[np.int32], apart: int) -> NDArray[np.int32]:
    """Numbers of a key's points, from the first on."""
    around = np.empty((*first.shape, AROUND), dtype=np.int32)
    for i in range(AROUND):  # many times faster than sums over a short last axis
        np.add(first, np.int32(i * apart), out=around[..., i])
    return around


def _sparse(around: NDArray[np.int32], share: Single, points: int) -> csr_array:
    """A matrix whose rows have as many entries each."""
    ends = around.shape[1] * np.arange(len(around) + 1, dtype=np.int32)
    shape = (len(around), points)
    return scipy.sparse.csr_array((share.ravel(), around.ravel(), ends), shape=shape)


def lagrange(part: Single) -> Single:
    """Shares of the four points about a key that lies a part of a spacing above the second."""
    after, before, beyond = part - 1, part + 1, part - 2
    out = np.empty((*part.shape, AROUND), dtype=np.float32)
    inner, outer = after * beyond, before * part
    out[..., 0] = part * inner / np.float32(-6)
    out[..., 1] = before * inner / np.float32(2)
    out[..., 2] = outer * beyond / np.float32(-2)
    out[..., 3] = outer * after / np.float32(6)
    return out
