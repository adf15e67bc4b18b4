"""What one drawn token does to the outputs of a query, on average over the other tokens.

Beside its own key and m others, the query attends a token z. In the integrals of
:mod:`cloud_query` this puts ``a = w_x r_x + w_z r_z``, ``e^{-l (w_x + w_z)}`` and ``u_x + u_z`` in
place of the query's own. As functions of z they are sums over the nodes of three features of z,

    1 - e^{-l w_z},      l w_z e^{-l w_z},      (l w_z)^2 e^{-l w_z},

times ``1``, ``v_z`` and ``v_z v_z'``. So the influence of all tokens, added up over many queries,
is one matrix product: features times coefficients.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from esscher.core.validation import Array
from esscher.math.theory.cloud_query import OwnKey
from esscher.math.theory.cloud_table import STEP, Pairs, QueryTable, Single


@dataclass(frozen=True, eq=False)
class Influence:
    """Influence of tokens z on sums over queries, up to constants: polynomials in ``v_z``.

    Of the outputs: ``plain + scale v``. Of products of the shifted outputs along pairs (a, b) of
    coordinates: ``product + v_a slope_b + v_b slope_a + v_a v_b curvature``.

    Attributes
    ----------
    plain, scale
        [token, size, d] and [token, size].
    product, slope, curvature
        [token, size, pair], [token, size, d] and [token, size].
    """

    plain: Single
    scale: Single
    product: Single
    slope: Single
    curvature: Single

    @classmethod
    def of(cls, columns: Single, level: Level, d: int) -> Influence:
        """Of features times coefficients, [token, size x column], and what all tokens share."""
        parts = columns.reshape(len(columns), len(level.curvature), -1)
        plain, scale, slope, curvature, product = np.split(parts, np.cumsum([d, 1, d, 1]), axis=2)
        return cls(
            plain=plain,
            scale=scale[..., 0],
            product=product,
            slope=slope + level.slope.astype(np.float32),
            curvature=curvature[..., 0] + level.curvature.astype(np.float32),
        )

    def on_mean(self, values: Array) -> Array:
        """Influence on the output, [token, size, d], of tokens with these values."""
        return np.asarray(self.plain + self.scale[..., None] * values[:, None])

    def on_products(self, values: Array, pairs: Pairs) -> Array:
        """Influence on products of the shifted output along pairs, [token, size, pair]."""
        a, b = pairs
        va, vb = values[:, None, a], values[:, None, b]
        out = self.product + va * self.slope[..., b] + vb * self.slope[..., a]
        return np.asarray(out + va * vb * self.curvature[..., None])


@dataclass(frozen=True, eq=False)
class Level:
    """Parts of ``slope`` [size, d] and ``curvature`` [size] that all tokens share."""

    slope: Array
    curvature: Array

    def __add__(self, other: Level) -> Level:
        return Level(self.slope + other.slope, self.curvature + other.curvature)

    def scaled(self, factor: float) -> Level:
        """All of it times a factor."""
        return Level(factor * self.slope, factor * self.curvature)


def features(table: QueryTable, tokens: NDArray[np.int64]) -> Single:
    """Features of some tokens at every node, [3 x node, token]."""
    rows = (table.gap, table.weight, table.square)
    return np.concatenate([np.take(row, tokens, axis=1) for row in rows])


def coefficients(
    table: QueryTable,
    own: OwnKey,
    sizes: Array,
    others: Array,
    output: Array,
    mean_value: Array,
    pairs: Pairs,
) -> tuple[Single, Level]:
    """What multiplies the features, [3 x node, size x column], and what all tokens share.

    Parameters
    ----------
    table, own
        The query.
    sizes, others
        Numbers of keys n, and of those beside the query's own and the token z.
    output, mean_value
        The limit y at the query and the mean value, in coordinates where the mean output is 0.
    pairs
        Coordinates a and b of the products.
    """
    a, b = pairs
    d, count = len(output), len(table.nodes)
    m, n = others[None, :, None], sizes[None, :, None]
    none, one, two = ((STEP * table.powers(others - k) * own.decay).T[..., None] for k in range(3))
    mine = ((table.nodes * own.weight)[:, None] * own.residual)[:, None]
    g, h, u, y = table.first[:, None], table.zeroth[:, None], own.centred, output
    # of E e: what all but z make of it; of E e s': what z's weight is multiplied with
    rest = none * mine + m * one * g
    lift = none * (u - mean_value) + m * one * h
    # E e e' and E (e s' + s e') along pairs, without z's own value
    squares = none * (mine[..., a] * mine[..., b])
    squares = squares + m * one * (_pair(mine, g, a, b) + table.second_pairs[:, None])
    squares = squares + m * (m - 1) * two * (g[..., a] * g[..., b])
    shared = none * _pair(mine, u, a, b)
    mixed = _pair(mine, h, a, b) + _pair(g, u, a, b) + table.mixed_pairs[:, None]
    shared = shared + m * one * mixed
    shared = shared + m * (m - 1) * two * _pair(g, h, a, b) - _pair(rest, mean_value, a, b)
    # products of shifted outputs y + e - s
    lean = rest + none * y - lift / n

    out = np.zeros((3, count, len(sizes), 2 * d + 2 + len(a)), dtype=np.float32)
    plain, scale = slice(0, d), d
    slope, curvature, product = slice(d + 1, 2 * d + 1), 2 * d + 1, slice(2 * d + 2, None)
    out[0, ..., plain] = -rest
    out[1, ..., plain] = -none * y
    out[1, ..., scale] = none[..., 0]
    out[0, ..., product] = -(squares + _pair(rest, y, a, b) - shared / n)
    out[1, ..., product] = -_pair(lean, y, a, b)
    out[2, ..., product] = none * (y[a] * y[b])
    out[0, ..., slope] = rest / n
    out[1, ..., slope] = lean + none * y / n
    out[2, ..., slope] = -none * y
    out[1, ..., curvature] = -2 * none[..., 0] / n[..., 0]
    out[2, ..., curvature] = none[..., 0]
    n = sizes[:, None]
    level = Level(
        slope=-rest.sum(axis=0) / n - y / n + (u - mean_value) / n**2, curvature=1 / sizes**2
    )
    return out.reshape(3 * count, -1), level


def _pair(p: Array, q: Array, a: NDArray[np.int64], b: NDArray[np.int64]) -> Array:
    """``p_a q_b + p_b q_a``."""
    return np.asarray(p[..., a] * q[..., b] + p[..., b] * q[..., a])
