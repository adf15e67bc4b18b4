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

from collections.abc import Callable
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


class WeightGrid:
    """Keys of some queries placed on a grid of ``ln(l w)``, at the first node l.

    Parameters
    ----------
    log_scaled
        The keys' ``ln(l w)`` at the first node, [key, query].

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

    def __init__(self, log_scaled: Array) -> None:
        place = log_scaled * (1 / SPACING)
        below = np.floor(place)
        # Lagrange's shares of four points about a key, a part of a spacing above the second
        part = (place - below).astype(np.float32)
        after, before, beyond = part - 1, part + 1, part - 2
        inner, outer = after * beyond, before * part
        self.share: Single = np.empty((*part.shape, AROUND), dtype=np.float32)
        self.share[..., 0] = part * inner / np.float32(-6)
        self.share[..., 1] = before * inner / np.float32(2)
        self.share[..., 2] = outer * beyond / np.float32(-2)
        self.share[..., 3] = outer * after / np.float32(6)
        lowest = int(below.min()) - 1
        self.first: NDArray[np.int32] = (below - (lowest + 1)).astype(np.int32)
        extent = int(self.first.max()) + AROUND
        begins = np.bincount(self.first.ravel(), minlength=extent) > 0
        taken = begins.copy()
        for i in range(1, AROUND):
            taken[i:] |= begins[:-i]
        if not taken.all():
            self.first = (np.cumsum(taken, dtype=np.int32) - np.int32(1))[self.first]
        self.points = np.flatnonzero(taken) + lowest

    def placed(self) -> csr_array:
        """``P`` of all queries side by side, [key, point x query]."""
        keys, queries = self.first.shape
        side_by_side: NDArray[np.int32] = self.first * np.int32(queries)
        side_by_side += np.arange(queries, dtype=np.int32)
        return _sparse(side_by_side, queries, self.share, (keys, len(self.points) * queries))

    def placed_tokens(self, keys: NDArray[np.int64]) -> csr_array:
        """``P`` of some keys, for each of them all queries, [key x query, point]."""
        first = self.first[keys]
        return _sparse(first, 1, self.share[keys], (first.size, len(self.points)))

    def functions(self, count: int) -> dict[str, Array]:
        """Functions of ``t = l w`` at the first ``count`` nodes (rows), for all points (columns).

        ``decay`` is ``e^{-t}``, ``gap`` is ``D = 1 - e^{-t}``, ``weight`` and ``square`` are
        ``t e^{-t}`` and ``t^2 e^{-t}``, and ``moment`` is ``t D``.
        """
        low, high = int(self.points[0]), int(self.points[-1]) + BETWEEN * (count - 1)
        t = np.exp(np.minimum(SPACING * np.arange(low, high + 1), np.log(GONE)))
        decay, gap = np.exp(-t), -np.expm1(-t)
        at = (self.points - low) + BETWEEN * np.arange(count)[:, None]
        weight = t * decay
        along = {"decay": decay, "gap": gap, "weight": weight, "square": t * weight}
        along["moment"] = t * gap
        return {name: np.take(values, at) for name, values in along.items()}


def _sparse(
    first: NDArray[np.int32], apart: int, share: Single, shape: tuple[int, int]
) -> csr_array:
    """A matrix with as many entries in each row: shares of a key's points, from the first on."""
    around = np.empty((*first.shape, AROUND), dtype=np.int32)
    for i in range(AROUND):  # many times faster than sums over a short last axis
        np.add(first, np.int32(i * apart), out=around[..., i])
    ends = around.size // shape[0] * np.arange(shape[0] + 1, dtype=np.int32)
    return scipy.sparse.csr_array((share.ravel(), around.ravel(), ends), shape=shape)


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
#: Least f whose logarithm is taken.
LEAST = 1e-300
#: Logits further apart than this in all have gaps, which are cut to ``GAP``: keys e^-25 times
#: lighter play no part until all heavier ones are missed.
FAR, GAP = 60.0, 25.0


class KeyColumns:
    """Columns that sums over keys are made of: v and u, their norms, and products along pairs.

    Sums with any weights give those of ``r = v - y`` of every query.

    Parameters
    ----------
    values, shifts
        v and u of all keys, [key, d]; u has no columns for the map error alone.
    pairs
        Coordinates a and b.

    Attributes
    ----------
    columns
        ``v_a v_b``, ``|v|^2``, v, 1, u, ``<v, u>`` and ``v_a u_b + v_b u_a``, [key, column].
    """

    def __init__(self, values: Array, shifts: Array, pairs: Pairs) -> None:
        a, b = self.pairs = pairs
        one, norms = np.ones((len(values), 1)), np.sum(values**2, axis=1)[:, None]
        inner = np.zeros_like(one)
        if shifts.shape[1]:
            inner = np.sum(values * shifts, axis=1)[:, None]
        crossed = values[:, a] * shifts[:, b] + values[:, b] * shifts[:, a]
        parts = [values[:, a] * values[:, b], norms, values, one, shifts, inner, crossed]
        self.columns: Single = np.hstack(parts).astype(np.float32)
        self.values, self.shifts = values.astype(np.float32), shifts.astype(np.float32)


class KeySums:
    """Weighted sums over columns of :class:`KeyColumns`, [query, row, column].

    Attributes
    ----------
    value, one, shift, inner
        Sums of v, of the weights, of u and of ``<v, u>``.
    """

    def __init__(self, total: Array, keys: KeyColumns) -> None:
        self.total, self.keys = total, keys
        d, shifted = keys.values.shape[1], keys.shifts.shape[1]
        sizes = len(keys.pairs[0]), 1, d, 1, shifted, 1
        self._pairs, self._norms, self.value, one, self.shift, inner, self._crossed = np.split(
            total, np.cumsum(sizes), axis=-1
        )
        self.one, self.inner = one[..., 0], inner[..., 0]

    def centred(self, y: Array) -> Array:
        """Sums of ``r = v - y`` for limits y, [query, d]."""
        return np.asarray(self.value - self.one[..., None] * y[:, None])

    def norms(self, y: Array) -> Array:
        """Sums of ``|r|^2``."""
        norms = self._norms[..., 0] + self.one * np.sum(y * y, axis=1)[:, None]
        return np.asarray(norms - 2 * (self.value @ y[..., None])[..., 0])

    def products(self, y: Array) -> Array:
        """Sums of ``r_a r_b`` along the pairs."""
        (a, b), value, limit = self.keys.pairs, self.value, y[:, None]
        linear = value[..., a] * limit[..., b] + value[..., b] * limit[..., a]
        square = self.one[..., None] * (limit[..., a] * limit[..., b])
        return np.asarray(self._pairs - linear + square)

    def mixed(self, y: Array) -> Array:
        """Sums of ``r_a u_b + r_b u_a`` along the pairs."""
        (a, b), shift, limit = self.keys.pairs, self.shift, y[:, None]
        crossed = self._crossed - shift[..., a] * limit[..., b]
        return np.asarray(crossed - shift[..., b] * limit[..., a])


class QueryTable:
    """Single-key expectations of some queries at the nodes, for all n from ``fewest`` to ``most``.

    Everything is made dimensionless by powers of l, so that no number is large.

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
    own
        Each query's own key, its residual ``r_x`` and shift ``u_x`` [query, d]; None where queries
        are not among the tokens drawn.

    Attributes
    ----------
    count
        Number of keys.
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
    own_weight, own_decay, own_residual, own_shift
        Of the own key ``l w_x`` and ``e^{-l w_x}`` [query, node], ``r_x`` and ``u_x`` [query, d].
    """

    def __init__(
        self,
        logits: Array,
        keys: KeyColumns,
        outputs: Array,
        fewest: float,
        most: float,
        own: tuple[NDArray[np.int64], Array, Array] | None = None,
    ) -> None:
        queries, self.count = logits.shape
        w, log_w = _weights(logits)
        log_node = -max(float(np.log(most)), float(log_w.max())) - BELOW
        self.grid = WeightGrid(np.ascontiguousarray((log_w + log_node).T))
        self.placed = self.grid.placed()
        # [point, query x column]
        points = (self.placed.T @ keys.columns).reshape(len(self.grid.points), -1)
        dims = keys.values.shape[1], keys.shifts.shape[1]

        def sums(rows: Array) -> KeySums:
            total = (rows.astype(np.float32) @ points).reshape(len(rows), queries, -1)
            return KeySums(total.swapaxes(0, 1).astype(np.float64), keys)

        share = points.reshape(len(self.grid.points), queries, -1)
        share = share[..., len(keys.pairs[0]) + 1 + dims[0]].astype(np.float64) / self.count
        # as many nodes as are needed, and ln f at them
        for tried in range(TRIED, MOST_NODES + TRIED, TRIED):
            functions = self.grid.functions(tried)
            missing, left = functions["gap"] @ share, functions["decay"] @ share
            # rounding may leave less than nothing of f
            log_f = np.log(np.maximum(left, LEAST))
            some = missing < 0.5
            log_f[some] = np.log1p(-missing[some])
            # beyond, f^n is nothing
            past = max(fewest - 2, 0.25) * log_f.max(axis=1) < -ABOVE
            if past.any():
                break
        nodes = int(np.argmax(past)) if past.any() else MOST_NODES
        self.functions = {name: values[:nodes] for name, values in functions.items()}
        self.log_f = np.ascontiguousarray(log_f[:nodes].T)
        l = np.exp(log_node + STEP * np.arange(self.log_f.shape[1]))
        self.by_weight = sums(self.functions["weight"])
        self.by_square = sums(self.functions["square"])
        first = self.by_weight.centred(outputs)
        # E[w r] = 0: while l is small, g is better seen as a difference from that
        small = l * np.mean(w * w, axis=1)[:, None] < 0.5
        early = int(small.sum(axis=1).max())
        apart = -sums(self.functions["moment"][:early]).centred(outputs)
        first[:, :early] = np.where(small[:, :early, None], apart, first[:, :early])
        self.first = first / self.count
        self.zeroth = -sums(self.functions["gap"]).shift / self.count
        self.second = self.by_square.norms(outputs) / self.count
        self.mixed_pairs = self.by_weight.mixed(outputs) / self.count
        self.second_pairs = self.by_square.products(outputs) / self.count
        self.own_weight = np.zeros(self.log_f.shape)
        self.own_residual = self.own_shift = np.zeros((queries, dims[0]))
        if own is not None:
            rows, self.own_residual, self.own_shift = own
            own_w = w[np.arange(len(rows)), rows]
            self.own_weight = np.minimum(l * own_w[:, None], 700.0)
        self.own_decay = np.exp(-self.own_weight)

    def powers(self, counts: Array) -> Array:
        """``f^count`` for each count (negative ones count as 0), [query, count, node]."""
        return np.asarray(np.exp(np.maximum(counts, 0.0)[:, None] * self.log_f[:, None]))


def _weights(logits: Array) -> tuple[Array, Array]:
    """Weights of mean 1, [query, key], and their logarithms, with gaps cut."""
    below = logits - logits.max(axis=1, keepdims=True)
    # scipy's logsumexp takes longer than all that follows, for a small cloud
    w = np.exp(below)
    mean = w.mean(axis=1, keepdims=True)
    w /= mean
    below -= np.log(mean)
    for i in np.flatnonzero(np.ptp(below, axis=1) >= FAR):
        order = np.argsort(-below[i])
        steps = np.minimum(-np.diff(below[i, order], prepend=below[i, order[0]]), GAP)
        below[i, order] = below[i, order[0]] - np.cumsum(steps)
        w[i] = np.exp(below[i])
    return w, below


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


def square_errors(table: QueryTable, others: Array) -> Array:
    """``E |e|^2`` with ``others`` keys beside the own, at each number of them, [query, number]."""
    m = others[:, None]
    weight, first = table.own_weight, table.first
    mine = weight**2 * np.sum(table.own_residual**2, axis=1)[:, None]
    along = 2 * weight * (first @ table.own_residual[..., None])[..., 0] + table.second
    body = mine[:, None] * table.powers(others)
    body += m * along[:, None] * table.powers(others - 1)
    body += m * (m - 1) * np.sum(first**2, axis=2)[:, None] * table.powers(others - 2)
    # rounding may leave less than nothing of an error that vanishes
    return np.asarray(np.maximum(STEP * (body @ table.own_decay[..., None])[..., 0], 0.0))


def map_errors(
    logits: Array, values: Array, outputs: Array, fewest: float, most: float
) -> Callable[[Array], Array]:
    """Tabulate ``E |e|^2`` of some queries without own keys: nothing but the map error.

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
        Smallest and largest n of the calls.

    Returns
    -------
    Callable
        From sizes n between these, and of at least 2, to errors [query, size].
    """
    nothing = np.zeros(0, dtype=np.int64)
    # about the middle of the values: sums over keys are in single precision
    origin = values.mean(axis=0)
    keys = KeyColumns(values - origin, np.zeros((len(values), 0)), (nothing, nothing))
    parts = [slice(start, start + TOGETHER) for start in range(0, len(logits), TOGETHER)]
    tables = [
        QueryTable(logits[part], keys, outputs[part] - origin, fewest, most) for part in parts
    ]

    def at(sizes: Array) -> Array:
        n = as_sizes(sizes, smallest=2)
        assert fewest <= n[0], "the tables end above the smallest size"
        assert n[-1] <= most, "the tables end below the largest size"
        return np.concatenate([square_errors(table, n) for table in tables])

    return at


def query_errors(
    table: QueryTable, others: Array, sizes: Array, spread: Array
) -> tuple[Array, Array, Array, Array]:
    """Expected errors of queries with ``others`` keys beside a query's own.

    Parameters
    ----------
    table
        The queries.
    others, sizes
        Numbers of other keys, and of all keys n.
    spread
        Covariance of the shifts, [d, d].

    Returns
    -------
    mean, square
        ``E e``, [query, size, d], and ``E |e|^2``, [query, size].
    crossed, squares
        [query, size, d, d] and [query, size, node]: ``E (e - s)(e - s)'`` is ``crossed`` plus sums
        over the keys, ``sum_j a_j r_j r_j' - sum_j b_j (r_j u_j' + u_j r_j')``. The weights ``a_j``
        are sums over the nodes of ``squares (l w)^2 e^{-l w}``, and ``b_j`` of
        ``squares / n l w e^{-l w}``.
    """
    m, n = others[:, None], sizes[:, None, None]
    decay = STEP * table.own_decay[:, None]
    none, one, two = (table.powers(others - k) * decay for k in range(3))
    weight, g, h = table.own_weight, table.first, table.zeroth
    r, u = table.own_residual[:, None], table.own_shift[:, None]
    alone = none @ weight[..., None]
    rest = m * (one @ g)
    lifted = m * (one * weight[:, None]) @ np.concatenate([g, h], axis=2)
    lifted_g, lifted_h = np.split(lifted, 2, axis=2)
    # sums over the nodes of g g' and g h'
    factors = (m * (m - 1) * two)[..., None] * g[:, None]
    pulled = np.matmul(factors.swapaxes(2, 3), np.concatenate([g, h], axis=2)[:, None])
    pulled_g, pulled_h = np.split(pulled, 2, axis=3)
    outer = (none @ weight[..., None] ** 2)[..., None] * (r[..., None] * r[:, :, None])
    outer = outer + symmetric(lifted_g[..., None] * r[:, :, None]) + pulled_g
    shared = (alone * r + rest)[..., None] * u[:, :, None]
    shared = shared + lifted_h[:, :, None] * r[..., None] + pulled_h
    common = (u[..., None] * u[:, :, None] + others[:, None, None] * spread) / n**2
    crossed = outer - symmetric(shared) / n + common
    return alone * r + rest, square_errors(table, others), crossed, m * one / table.count


def symmetric(matrices: Array) -> Array:
    """Matrices plus their transposes."""
    return np.asarray(matrices + matrices.swapaxes(-1, -2))
