"""Laplace integrals of queries over a cloud of keys: what every n has in common.

A query attends n keys drawn with replacement from a cloud of N. Its weights over the cloud are
``w_j`` (mean 1), its limit is ``y``, and ``r_j = v_j - y``. Each key has a shift ``u_j`` (mean 0),
see :mod:`cloud_query`. Since ``1/Z = int e^{-l Z} dl``, every expectation over the draws is an
integral over l of products of single-key expectations,

    f = E e^{-l w},               h = E[u e^{-l w}],            g = E[w r e^{-l w}],
    J = E[w r u' e^{-l w}],       G = E[w^2 r r' e^{-l w}],

and n enters only through powers of f. The nodes in l double. Expectations are sums over points of a
grid of weights (:mod:`cloud_grid`), with ``D = 1 - e^{-l w}`` where l is small. Where no key of
middling weight stands between heavy and light ones, how much lighter these are does not matter, and
the weights are moved together.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

import numpy as np
import scipy
from numpy.typing import NDArray

from esscher.core.validation import Array
from esscher.math.theory.cloud_grid import AROUND, STEP, Functions, Single, WeightGrid

if TYPE_CHECKING:
    from scipy.sparse import csr_array

Pairs = tuple[NDArray[np.int64], NDArray[np.int64]]

#: The integrals are cut where what is left is e to minus this power of them: below, where they fall
#: at least like l, and above, where they fall like f^n.
BELOW, ABOVE = 11.0, 14.0
#: Most nodes of a query, whatever its weights.
MOST_NODES = 1000
#: Nodes that are tried at a time.
TRIED = 48
#: f is not looked at below this.
LEAST = 1e-300
#: Logits further apart than this in all have gaps, which are cut to ``GAP``: keys e^-25 times
#: lighter play no part until all heavier ones are missed.
FAR, GAP = 60.0, 25.0


@dataclass(frozen=True, eq=False)
class KeyColumns:
    """What sums over keys are made of: v and u, their norms, and products along pairs.

    Sums with any weights give those of ``r = v - y`` of every query.

    Attributes
    ----------
    columns
        ``v_a v_b``, ``|v|^2``, v, 1, u, ``<v, u>`` and ``v_a u_b + v_b u_a``, [key, column].
    values, shifts
        v and u, [key, d]; u has no columns where only the map error is asked for.
    pairs
        Coordinates a and b.
    """

    columns: Single
    values: Single
    shifts: Single
    pairs: Pairs

    @classmethod
    def of(cls, values: Array, shifts: Array, pairs: Pairs) -> KeyColumns:
        """Of the values and shifts of all keys."""
        a, b = pairs
        one, norms = np.ones((len(values), 1)), np.sum(values**2, axis=1)[:, None]
        inner = np.zeros_like(one)
        if shifts.shape[1]:
            inner = np.sum(values * shifts, axis=1)[:, None]
        crossed = values[:, a] * shifts[:, b] + values[:, b] * shifts[:, a]
        parts = [values[:, a] * values[:, b], norms, values, one, shifts, inner, crossed]
        columns = np.hstack(parts).astype(np.float32)
        return cls(columns, values.astype(np.float32), shifts.astype(np.float32), pairs)


@dataclass(frozen=True, eq=False)
class KeySums:
    """Weighted sums over columns of :class:`KeyColumns`, [query, row, column].

    ``dim`` is that of the values, and ``shifted`` that of the shifts. Limits y are [query, d].
    """

    total: Array
    dim: int
    shifted: int
    pairs: Pairs

    def weighed(self, factors: Array) -> KeySums:
        """Sums with weights that are sums of these, with factors [query, new row, row]."""
        return replace(self, total=factors @ self.total)

    @property
    def _first(self) -> int:
        return len(self.pairs[0]) + 1

    @property
    def value(self) -> Array:
        """Sums of v."""
        return self.total[..., self._first : self._first + self.dim]

    @property
    def one(self) -> Array:
        """Sums of the weights."""
        return self.total[..., self._first + self.dim]

    @property
    def shift(self) -> Array:
        """Sums of u."""
        start = self._first + self.dim + 1
        return self.total[..., start : start + self.shifted]

    @property
    def inner(self) -> Array:
        """Sums of ``<v, u>``."""
        return self.total[..., self._first + self.dim + 1 + self.shifted]

    def about(self, y: Array) -> Array:
        """Sums of ``r = v - y``."""
        return np.asarray(self.value - self.one[..., None] * y[:, None])

    def norms_about(self, y: Array) -> Array:
        """Sums of ``|r|^2``."""
        norms = self.total[..., self._first - 1] + self.one * np.sum(y * y, axis=1)[:, None]
        return np.asarray(norms - 2 * (self.value @ y[..., None])[..., 0])

    def products(self, y: Array) -> Array:
        """Sums of ``r_a r_b`` along the pairs."""
        (a, b), value, limit = self.pairs, self.value, y[:, None]
        linear = value[..., a] * limit[..., b] + value[..., b] * limit[..., a]
        square = self.one[..., None] * (limit[..., a] * limit[..., b])
        return np.asarray(self.total[..., : len(a)] - linear + square)

    def mixed(self, y: Array) -> Array:
        """Sums of ``r_a u_b + r_b u_a`` along the pairs."""
        (a, b), shift, limit = self.pairs, self.shift, y[:, None]
        crossed = self.total[..., self.total.shape[-1] - len(a) :]
        return np.asarray(crossed - shift[..., a] * limit[..., b] - shift[..., b] * limit[..., a])


@dataclass(frozen=True, eq=False)
class QueryTable:
    """Single-key expectations of some queries at the nodes.

    Everything is made dimensionless by powers of l, so that no number is large.

    Attributes
    ----------
    nodes
        The values of l.
    weights
        Weights of the keys, of mean 1, [query, key].
    grid, placed, functions
        The keys on a grid of weights, the matrix that places them, and functions at its points.
    log_f
        ``ln f``, [query, node].
    zeroth, first
        ``h`` and ``l g``, [query, node, d].
    second
        ``l^2 tr G``, [query, node].
    mixed_pairs, second_pairs
        ``l (J_ab + J_ba)`` and ``l^2 G_ab`` along pairs of coordinates, [query, node, pair].
    by_weight, by_square
        Sums over the keys with ``l w e^{-l w}`` and ``(l w)^2 e^{-l w}`` as weights.
    """

    nodes: Array
    weights: Array
    grid: WeightGrid
    placed: csr_array
    functions: Functions
    log_f: Array
    zeroth: Array
    first: Array
    second: Array
    mixed_pairs: Array
    second_pairs: Array
    by_weight: KeySums
    by_square: KeySums

    def powers(self, counts: Array) -> Array:
        """``f^count`` for each count (negative ones count as 0), [query, count, node]."""
        return np.asarray(np.exp(np.maximum(counts, 0.0)[:, None] * self.log_f[:, None]))

    def at_keys(self, functions: Array) -> Single:
        """Functions at the points of the grid, [query, k, point], at the keys, [key, k].

        Every key takes them as its weight says, and they are summed over the queries.
        """
        columns = functions.transpose(2, 0, 1).astype(np.float32, order="C")
        return np.asarray(self.placed @ columns.reshape(-1, columns.shape[-1]))

    def points_of(self, numbers: Single) -> Array:
        """Numbers of keys and queries, [key, query, k], at the points, [query, point, k]."""
        keys, queries, k = numbers.shape
        placed = self.placed
        each = scipy.sparse.csr_array(
            (placed.data, placed.indices, AROUND * np.arange(keys * queries + 1, dtype=np.int32)),
            shape=(keys * queries, placed.shape[1]),
        )
        found = (each.T @ numbers.reshape(-1, k)).reshape(-1, queries, k)
        return np.asarray(found.swapaxes(0, 1).astype(np.float64))


def query_table(
    logits: Array, keys: KeyColumns, outputs: Array, fewest: float, most: float
) -> QueryTable:
    """Tabulate queries, for all n from ``fewest`` to ``most``.

    Parameters
    ----------
    logits
        Of the keys of the cloud, [query, key].
    keys
        Their values and shifts.
    outputs
        The limits y, [query, d].
    fewest, most
        Smallest and largest number of keys.
    """
    queries, count = logits.shape
    w, log_w = _weights(logits)
    log_node = -max(float(np.log(most)), float(log_w.max())) - BELOW
    grid = WeightGrid.of(np.ascontiguousarray((log_w + log_node).T))
    placed = grid.placed()
    # [point, query x column]
    points = (placed.T @ keys.columns).reshape(len(grid.points), -1)
    dims = keys.values.shape[1], keys.shifts.shape[1]

    def sums(rows: Array) -> KeySums:
        total = (rows.astype(np.float32) @ points).reshape(len(rows), queries, -1)
        return KeySums(total.swapaxes(0, 1).astype(np.float64), *dims, keys.pairs)

    one = points.reshape(len(grid.points), queries, -1)[..., len(keys.pairs[0]) + 1 + dims[0]]
    functions, log_f = _functions(grid, one.astype(np.float64) / count, fewest)
    nodes = np.exp(log_node + STEP * np.arange(log_f.shape[1]))
    by_weight, by_square = sums(functions.weight), sums(functions.square)
    first = by_weight.about(outputs)
    # E[w r] = 0: while l is small, g is better seen as a difference from that
    small = nodes * np.mean(w * w, axis=1)[:, None] < 0.5
    early = int(small.sum(axis=1).max())
    apart = -sums(functions.moment[:early]).about(outputs)
    first[:, :early] = np.where(small[:, :early, None], apart, first[:, :early])
    return QueryTable(
        nodes=nodes,
        weights=w,
        grid=grid,
        placed=placed,
        functions=functions,
        log_f=log_f,
        zeroth=-sums(functions.gap).shift / count,
        first=first / count,
        second=by_square.norms_about(outputs) / count,
        mixed_pairs=by_weight.mixed(outputs) / count,
        second_pairs=by_square.products(outputs) / count,
        by_weight=by_weight,
        by_square=by_square,
    )


def _functions(grid: WeightGrid, share: Array, fewest: float) -> tuple[Functions, Array]:
    """Functions at the nodes that are needed, and ``ln f`` of all queries, [query, node].

    ``share`` is that of the points, [point, query].
    """
    for tried in range(TRIED, MOST_NODES + TRIED, TRIED):
        functions = grid.functions(tried)
        missing, left = functions.gap @ share, functions.decay @ share
        # rounding may leave less than nothing of f
        log_f = np.log(np.maximum(left, LEAST))
        some = missing < 0.5
        log_f[some] = np.log1p(-missing[some])
        # beyond, f^n is nothing
        past = max(fewest - 2, 0.25) * log_f.max(axis=1) < -ABOVE
        if past.any():
            break
    count = int(np.argmax(past)) if past.any() else MOST_NODES
    return functions.upto(count), np.ascontiguousarray(log_f[:count].T)


def _weights(logits: Array) -> tuple[Array, Array]:
    """Weights of mean 1, [query, key], and their logarithms, with gaps cut."""
    below = logits - logits.max(axis=1, keepdims=True)
    # scipy's logsumexp takes longer than all that follows, for a small cloud
    w = np.exp(below)
    mean = w.mean(axis=1, keepdims=True)
    w /= mean
    below -= np.log(mean)
    for i in np.flatnonzero(np.ptp(below, axis=1) >= FAR):
        below[i] = _near(below[i])
        w[i] = np.exp(below[i])
    return w, below


def _near(log_w: Array) -> Array:
    """Logarithms of weights that are far apart, with gaps cut."""
    order = np.argsort(-log_w)
    steps = np.minimum(-np.diff(log_w[order], prepend=log_w[order[0]]), GAP)
    near = np.empty_like(log_w)
    near[order] = log_w[order[0]] - np.cumsum(steps)
    return near
