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

from esscher.core.validation import Array
from esscher.math.theory.cloud_table import STEP, QueryTable, Single


@dataclass(frozen=True, eq=False)
class OwnKey:
    """A query's own key: ``w_x``, ``r_x``, ``u_x``, and ``e^{-l w_x}`` at the nodes."""

    weight: float
    residual: Array
    shift: Array
    decay: Array

    @classmethod
    def of(cls, table: QueryTable, key: int, residual: Array, shift: Array) -> OwnKey:
        """Of a key of the cloud."""
        weight = float(table.weights[key])
        decay = np.exp(-np.minimum(table.nodes * weight, 700.0))
        return cls(weight, residual, shift, decay)

    @classmethod
    def none(cls, table: QueryTable, d: int) -> OwnKey:
        """A key without weight, where queries are not among the tokens drawn."""
        return cls(0.0, np.zeros(d), np.zeros(d), np.ones(len(table.nodes)))


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
        [size, key].
    """

    mean: Array
    square: Array
    crossed: Array
    squares: Single
    products: Single


def square_errors(table: QueryTable, own: OwnKey, others: Array) -> Array:
    """``E |e|^2`` with ``others`` keys beside the query's own, at each number of them."""
    m = others[:, None]
    weight = table.nodes * own.weight
    body = weight**2 * float(own.residual @ own.residual) * table.powers(others)
    along = 2 * weight * (table.first @ own.residual) + table.second
    body += m * along * table.powers(others - 1)
    body += m * (m - 1) * np.sum(table.first**2, axis=1) * table.powers(others - 2)
    return np.asarray(STEP * body @ own.decay)


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
    weight, g, h = table.nodes * own.weight, table.first, table.zeroth
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
    per_key = (m * one).astype(np.float32) / np.float32(len(table.weights))
    return QueryErrors(
        mean=alone * r + rest,
        square=square_errors(table, own, others),
        crossed=squares - symmetric(shared) / n + common,
        squares=(per_key @ table.square).astype(np.float32, copy=False),
        products=((per_key / n[..., 0]).astype(np.float32) @ table.weight).astype(
            np.float32, copy=False
        ),
    )


def symmetric(matrices: Array) -> Array:
    """Matrices plus their transposes."""
    return np.asarray(matrices + matrices.swapaxes(-1, -2))
