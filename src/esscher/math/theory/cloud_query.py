"""Expected errors of one query over a cloud: of its output, of products of its coordinates.

The error of the output is ``e = output - y``. The covariance over queries does not change if every
output is shifted by the same vector, so it is looked at after taking off ``s = mean of the drawn
shifts``. With shifts u that say what a key does to the mean output, s is the noise that all queries
share: where they attend alike, nearly all of e. With ``a = w_x r_x`` of the query's own key and m
other keys,

    E e    = int   e^{-l w_x} { a f^m + m g f^{m-1} } dl
    E e e' = int l e^{-l w_x} { a a' f^m + m (a g' + g a' + G) f^{m-1} + m (m-1) g g' f^{m-2} } dl
    E e s' = (1/n) int e^{-l w_x} { a u_x' f^m + m (a h' + g u_x' + J) f^{m-1}
                                    + m (m-1) g h' f^{m-2} } dl,      J = E[w r u' e^{-l w}].
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from esscher.core.validation import Array, as_sizes
from esscher.math.theory.cloud_table import STEP, KeyColumns, QueryTable, query_table


@dataclass(frozen=True, eq=False)
class OwnKey:
    """A query's own key: ``r_x``, ``u_x``, and ``l w_x`` and ``e^{-l w_x}`` at the nodes."""

    weight: Array
    residual: Array
    shift: Array
    decay: Array

    @classmethod
    def of(cls, table: QueryTable, key: int, residual: Array, shift: Array) -> OwnKey:
        """Of a key of the cloud."""
        weight = np.minimum(table.nodes * float(table.weights[key]), 700.0)
        return cls(weight, residual, shift, np.exp(-weight))

    @classmethod
    def none(cls, table: QueryTable, d: int) -> OwnKey:
        """A key without weight, where queries are not among the tokens drawn."""
        nodes = len(table.nodes)
        return cls(np.zeros(nodes), np.zeros(d), np.zeros(d), np.ones(nodes))


@dataclass(frozen=True, eq=False)
class QueryErrors:
    """Expected errors of one query.

    ``E (e - s)(e - s)'`` is ``crossed`` plus sums over the keys, ``sum_j squares_j r_j r_j' -
    sum_j products_j (r_j u_j' + u_j r_j')``.

    Attributes
    ----------
    mean
        ``E e``, [size, d].
    square
        ``E |e|^2``, [size].
    crossed
        [size, d, d].
    squares, products
        Factors of ``table.square`` and ``table.weight``, whose sums over the nodes are the weights
        ``squares_j`` and ``products_j`` of the keys, [size, node].
    """

    mean: Array
    square: Array
    crossed: Array
    squares: Array
    products: Array


def square_errors(table: QueryTable, own: OwnKey, others: Array) -> Array:
    """``E |e|^2`` with ``others`` keys beside the query's own, at each number of them."""
    m = others[:, None]
    weight = own.weight
    body = weight**2 * float(own.residual @ own.residual) * table.powers(others)
    along = 2 * weight * (table.first @ own.residual) + table.second
    body += m * along * table.powers(others - 1)
    body += m * (m - 1) * np.sum(table.first**2, axis=1) * table.powers(others - 2)
    return np.asarray(STEP * body @ own.decay)


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
        self._tables = [
            query_table(row, keys, y - origin, fewest, most)
            for row, y in zip(logits, outputs, strict=True)
        ]
        self._ends = fewest, most
        self._none = [OwnKey.none(table, values.shape[1]) for table in self._tables]

    def __call__(self, sizes: Array) -> Array:
        """Axes [query, size]; sizes of at least 2, between the ends."""
        n = as_sizes(sizes, smallest=2)
        assert self._ends[0] <= n[0], "the tables end above the smallest size"
        assert n[-1] <= self._ends[1], "the tables end below the largest size"
        rows = zip(self._tables, self._none, strict=True)
        return np.array([square_errors(table, none, n) for table, none in rows])


def query_errors(
    table: QueryTable, own: OwnKey, others: Array, sizes: Array, spread: Array
) -> QueryErrors:
    """Expected errors with ``others`` keys beside the query's own.

    Parameters
    ----------
    table, own
        The query.
    others, sizes
        Numbers of other keys, and of all keys n.
    spread
        Covariance of the shifts, [d, d].
    """
    m, n = others[:, None], sizes[:, None, None]
    none, one, two = (table.powers(others - k) * own.decay * STEP for k in range(3))
    weight, g, h = own.weight, table.first, table.zeroth
    r, u = own.residual, own.shift
    alone = (none @ weight)[:, None]
    rest = m * (one @ g)
    squares = (none @ weight**2)[:, None, None] * np.outer(r, r)
    squares = squares + symmetric((m * (one * weight) @ g)[:, :, None] * r)
    squares = squares + np.matmul((m * (m - 1) * two)[:, None, :] * g.T, g)
    shared = alone[:, :, None] * np.outer(r, u) + rest[:, :, None] * u
    shared = shared + (m * (one * weight) @ h)[:, None, :] * r[:, None]
    shared = shared + np.matmul((m * (m - 1) * two)[:, None, :] * g.T, h)
    common = (np.outer(u, u) + others[:, None, None] * spread) / n**2
    per_key = m * one / len(table.weights)
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
