"""Expected errors of queries over a cloud: of their outputs, of products of the coordinates.

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
from numpy.typing import NDArray

from esscher.core.validation import Array, as_sizes
from esscher.math.theory.cloud_grid import STEP
from esscher.math.theory.cloud_table import KeyColumns, QueryTable, query_table

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
