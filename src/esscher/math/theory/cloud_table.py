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

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

import numpy as np
import scipy
from numpy.typing import NDArray

from esscher.core.validation import Array, as_sizes

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


# Laplace integrals of queries over a cloud of keys: what every n has in common.
#
# A query attends n keys drawn with replacement from a cloud of N. Its weights over the cloud are
# ``w_j`` (mean 1), its limit is ``y``, and ``r_j = v_j - y``. Each key has a shift ``u_j`` (mean
# 0), see :func:`query_errors`. Since ``1/Z = int e^{-l Z} dl``, every expectation over the draws is
# an integral over l of products of single-key expectations,
#
#     f = E e^{-l w},               h = E[u e^{-l w}],            g = E[w r e^{-l w}],
#     J = E[w r u' e^{-l w}],       G = E[w^2 r r' e^{-l w}],
#
# and n enters only through powers of f. The nodes in l double. Expectations are sums over points of
# a grid of weights (:class:`WeightGrid`), with ``D = 1 - e^{-l w}`` where l is small. Where no key
# of middling weight stands between heavy and light ones, how much lighter these are does not
# matter, and the weights are moved together.

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


# Expected errors of queries over a cloud: of their outputs, of products of the coordinates.
#
# The error of the output is ``e = output - y``. The covariance over queries does not change if
# every output is shifted by the same vector, so it is looked at after taking off ``s = mean of the
# drawn shifts``. With shifts u that say what a key does to the mean output, s is the noise that all
# queries share: where they attend alike, nearly all of e. With ``a = w_x r_x`` of the query's own
# key and m other keys,
#
#     E e    = int   e^{-l w_x} { a f^m + m g f^{m-1} } dl
#     E e e' = int l e^{-l w_x} { a a' f^m + m (a g' + g a' + G) f^{m-1} + m (m-1) g g' f^{m-2} } dl
#     E e s' = (1/n) int e^{-l w_x} { a u_x' f^m + m (a h' + g u_x' + J) f^{m-1}
#                                     + m (m-1) g h' f^{m-2} } dl,      J = E[w r u' e^{-l w}].

#: Queries that are tabulated together: memory is some numbers per query and key.
TOGETHER = 32


@dataclass(frozen=True, eq=False)
class OwnKey:
    """Own keys: ``r_x`` and ``u_x`` [query, d], ``l w_x`` and ``e^{-l w_x}`` [query, node]."""

    weight: Array
    residual: Array
    shift: Array
    decay: Array

    @classmethod
    def of(
        cls, table: QueryTable, keys: NDArray[np.int64], residual: Array, shift: Array
    ) -> OwnKey:
        """Of keys of the cloud, one per query."""
        own = table.weights[np.arange(len(keys)), keys]
        weight = np.minimum(table.nodes * own[:, None], 700.0)
        return cls(weight, residual, shift, np.exp(-weight))

    @classmethod
    def none(cls, table: QueryTable, d: int) -> OwnKey:
        """A key without weight, where queries are not among the tokens drawn."""
        shape = table.log_f.shape
        nothing = np.zeros((shape[0], d))
        return cls(np.zeros(shape), nothing, nothing, np.ones(shape))


@dataclass(frozen=True, eq=False)
class QueryErrors:
    """Expected errors of queries.

    ``E (e - s)(e - s)'`` is ``crossed`` plus sums over the keys, ``sum_j squares_j r_j r_j' -
    sum_j products_j (r_j u_j' + u_j r_j')``.

    Attributes
    ----------
    mean
        ``E e``, [query, size, d].
    square
        ``E |e|^2``, [query, size].
    crossed
        [query, size, d, d].
    squares, products
        Factors of ``(l w)^2 e^{-l w}`` and ``l w e^{-l w}``, whose sums over the nodes are the
        weights ``squares_j`` and ``products_j`` of the keys, [query, size, node].
    """

    mean: Array
    square: Array
    crossed: Array
    squares: Array
    products: Array


def square_errors(table: QueryTable, own: OwnKey, others: Array) -> Array:
    """``E |e|^2`` with ``others`` keys beside the own, at each number of them, [query, number]."""
    m = others[:, None]
    weight, first = own.weight, table.first
    mine = weight**2 * np.sum(own.residual**2, axis=1)[:, None]
    along = 2 * weight * (first @ own.residual[..., None])[..., 0] + table.second
    body = mine[:, None] * table.powers(others)
    body += m * along[:, None] * table.powers(others - 1)
    body += m * (m - 1) * np.sum(first**2, axis=2)[:, None] * table.powers(others - 2)
    # rounding may leave less than nothing of an error that vanishes
    return np.asarray(np.maximum(STEP * (body @ own.decay[..., None])[..., 0], 0.0))


class MapErrors:
    """``E |e|^2`` of some queries at any n, without own keys: nothing but the map error.

    Good to 1e-4 of itself (the rule), and to about 1e-7 of the values' variance (single precision),
    which is more where a query attends one key and n is so large that it never misses it.

    Parameters
    ----------
    logits
        Of each query over all keys of the cloud.
    values
        One row per key.
    outputs
        Attention over all keys, one row per query.
    fewest, most
        Smallest and largest n that will be asked for.
    """

    def __init__(
        self, logits: Array, values: Array, outputs: Array, fewest: float, most: float
    ) -> None:
        nothing = np.zeros(0, dtype=np.int64)
        # about the middle of the values: sums over keys are in single precision
        origin = values.mean(axis=0)
        keys = KeyColumns.of(values - origin, np.zeros((len(values), 0)), (nothing, nothing))
        starts = range(0, len(logits), TOGETHER)
        parts = [slice(start, start + TOGETHER) for start in starts]
        self._tables = [
            query_table(logits[part], keys, outputs[part] - origin, fewest, most) for part in parts
        ]
        self._ends = fewest, most
        self._none = [OwnKey.none(table, values.shape[1]) for table in self._tables]

    def __call__(self, sizes: Array) -> Array:
        """Axes [query, size]; sizes of at least 2, between the ends."""
        n = as_sizes(sizes, smallest=2)
        assert self._ends[0] <= n[0], "the tables end above the smallest size"
        assert n[-1] <= self._ends[1], "the tables end below the largest size"
        rows = zip(self._tables, self._none, strict=True)
        return np.concatenate([square_errors(table, none, n) for table, none in rows])


def query_errors(
    table: QueryTable, own: OwnKey, others: Array, sizes: Array, spread: Array
) -> QueryErrors:
    """Expected errors with ``others`` keys beside a query's own.

    Parameters
    ----------
    table, own
        The queries.
    others, sizes
        Numbers of other keys, and of all keys n.
    spread
        Covariance of the shifts, [d, d].
    """
    m, n = others[:, None], sizes[:, None, None]
    decay = STEP * own.decay[:, None]
    none, one, two = (table.powers(others - k) * decay for k in range(3))
    weight, g, h = own.weight, table.first, table.zeroth
    r, u = own.residual[:, None], own.shift[:, None]
    alone = none @ weight[..., None]
    rest = m * (one @ g)
    lifted = m * (one * weight[:, None]) @ np.concatenate([g, h], axis=2)
    lifted_g, lifted_h = np.split(lifted, 2, axis=2)
    # sums over the nodes of g g' and g h'
    factors = (m * (m - 1) * two)[..., None] * g[:, None]
    pulled = np.matmul(factors.swapaxes(2, 3), np.concatenate([g, h], axis=2)[:, None])
    pulled_g, pulled_h = np.split(pulled, 2, axis=3)
    squares = (none @ weight[..., None] ** 2)[..., None] * (r[..., None] * r[:, :, None])
    squares = squares + symmetric(lifted_g[..., None] * r[:, :, None]) + pulled_g
    shared = (alone * r + rest)[..., None] * u[:, :, None]
    shared = shared + lifted_h[:, :, None] * r[..., None] + pulled_h
    common = (u[..., None] * u[:, :, None] + others[:, None, None] * spread) / n**2
    per_key = m * one / table.weights.shape[1]
    return QueryErrors(
        mean=alone * r + rest,
        square=square_errors(table, own, others),
        crossed=squares - symmetric(shared) / n + common,
        squares=per_key,
        products=per_key / n[..., 0],
    )


def symmetric(matrices: Array) -> Array:
    """Matrices plus their transposes."""
    return np.asarray(matrices + matrices.swapaxes(-1, -2))
