"""Errors of queries to first order: what is nearly the exact error, for many queries.

The exact errors of :mod:`cloud_query` are known at some of the queries, and averages over them are
noisy where a few queries err much more than others. With ``f = w / (1 + w / n)``, the error of an
output is about ``(1/n) sum_j f_j r_j``, so that its mean is ``mu = (m/n) E[f r] + f_x r_x / n`` and

    E e e' ~ (m / n^2) (E[f^2 r r'] - E[f r] E[f r]') + mu mu',

with the query's own key x and m others. Averages are taken as ``exact over few + (this over many -
this over the same few)``, which has the right expectation whatever the first order leaves out.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from esscher.core.validation import Array
from esscher.math.theory.cloud_table import KeyColumns, Single

Rows = NDArray[np.int64]


@dataclass(frozen=True, eq=False)
class Asked:
    """Queries: weights of all keys [query, key], limits, and what is known of their own key.

    ``own_weight`` [query], ``residual`` and ``shift`` [query, d] are 0 where queries are not among
    the tokens drawn.
    """

    weights: Single
    outputs: Array
    own_weight: Array
    residual: Array
    shift: Array


@dataclass(frozen=True, eq=False)
class TypicalErrors:
    """Errors to first order.

    Attributes
    ----------
    mean
        ``E (e - s)``, [query, size, d].
    square
        ``E |e|^2``, [query, size].
    products
        What products of shifted outputs along pairs are larger than at the limit, [query, size,
        pair]; None unless asked for.
    second
        The same for all pairs, summed over the queries with their weights, [size, d, d].
    """

    mean: Array
    square: Array
    products: Array | None
    second: Array


def typical_errors(
    asked: Asked,
    share: Array,
    keys: KeyColumns,
    spread: Array,
    others: Array,
    sizes: Array,
    *,
    along: bool = False,
) -> TypicalErrors:
    """Errors of queries with ``others`` keys beside their own.

    Parameters
    ----------
    asked, share
        The queries, and their weights in sums.
    keys
        Values and shifts of all keys.
    spread
        Covariance of the shifts.
    others, sizes
        Numbers of other keys, and of all keys n.
    along
        Whether products along pairs are asked for.
    """
    (a, b), d, count = keys.pairs, keys.values.shape[1], len(keys.values)
    y, queries = asked.outputs, len(asked.outputs)
    v, u = keys.values, keys.shifts
    norms = np.sum(v * v, axis=1)[:, None]
    ones = np.ones((count, 1), dtype=np.float32)
    once_columns = keys.mixed if along else np.hstack([v, u, ones])
    twice_columns = keys.squared if along else np.hstack([v, norms, ones])
    skipped = len(a) if along else 0
    mean = np.empty((queries, len(sizes), d))
    square = np.empty((queries, len(sizes)))
    products = np.empty((queries, len(sizes), len(a))) if along else None
    second = np.empty((len(sizes), d, d))
    part = share.astype(np.float32)
    for i, (m, n) in enumerate(zip(others, sizes, strict=True)):
        felt = asked.weights / (1 + asked.weights / np.float32(n))
        once = (felt @ once_columns).astype(np.float64) / count
        one_v, one_u = once[:, skipped : skipped + d], once[:, skipped + d : skipped + 2 * d]
        along_felt = part @ felt
        np.multiply(felt, felt, out=felt)
        twice = (felt @ twice_columns).astype(np.float64) / count
        two_v, two_norm, two = twice[:, skipped : skipped + d], twice[:, -2], twice[:, -1:]
        along_square = part @ felt
        drift = one_v - once[:, -1:] * y
        own = (asked.own_weight / (1 + asked.own_weight / n))[:, None] * asked.residual / n
        mu = m / n * drift + own
        left = mu - asked.shift / n
        variance = two_norm - 2 * np.sum(two_v * y, axis=1) + two[:, 0] * np.sum(y * y, axis=1)
        mean[:, i] = left
        square[:, i] = m / n**2 * (variance - np.sum(drift**2, axis=1)) + np.sum(mu * mu, axis=1)
        # sums over keys of f^2 r r' and f r u', over the queries
        matrix = (v * along_square[:, None]).T @ v / count
        matrix = (
            matrix + (share[:, None] * two * y).T @ y - _symmetric((share[:, None] * two_v).T @ y)
        )
        crossed = (v * along_felt[:, None]).T @ u / count - (share[:, None] * y).T @ one_u
        matrix = (
            matrix - _symmetric(crossed) + share.sum() * spread - (share[:, None] * drift).T @ drift
        )
        far = (share[:, None] * left).T @ left + _symmetric((share[:, None] * y).T @ left)
        second[i] = m / n**2 * matrix + far
        if products is not None:
            inside = twice[:, : len(a)] - _pair(two_v, y, a, b) + two * (y[:, a] * y[:, b])
            inside -= once[:, : len(a)] - _pair(one_u, y, a, b)
            inside += spread[a, b] - drift[:, a] * drift[:, b]
            far_along = left[:, a] * left[:, b] + _pair(left, y, a, b)
            products[:, i] = m / n**2 * inside + far_along
    return TypicalErrors(mean, square, products, second)


def _symmetric(matrix: Array) -> Array:
    return np.asarray(matrix + matrix.T)


def _pair(p: Array, q: Array, a: Rows, b: Rows) -> Array:
    """``p_a q_b + p_b q_a``."""
    return np.asarray(p[:, a] * q[:, b] + p[:, b] * q[:, a])
