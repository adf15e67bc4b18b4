"""What one drawn token does to the outputs of a query, on average over the other tokens.

Beside its own key and m others, the query attends a token z. In the integrals of
:mod:`cloud_query` this puts ``a = w_x r_x + w_z r_z``, ``e^{-l (w_x + w_z)}`` and ``u_x + u_z`` in
place of the query's own. As functions of z they are sums over the nodes of three features of z,

    1 - e^{-l w_z},      l w_z e^{-l w_z},      (l w_z)^2 e^{-l w_z},

times products of ``1``, ``v_z`` and ``u_z``. So the influence of all tokens, added up over many
queries, is one matrix product: features times coefficients.
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
    """Influence of tokens z on sums over queries, up to constants: polynomials in v and u of z.

    Of the outputs: ``plain + scale v``. Of products of the shifted outputs along pairs (a, b) of
    coordinates: ``product + v_a slope_b + u_a lean_b + v_a v_b curvature + v_a u_b twist`` and the
    same with a and b exchanged (``product`` and ``curvature`` once), plus ``u_a u_b level``.

    Attributes
    ----------
    plain, slope, lean
        [token, size, d].
    scale, curvature, twist
        [token, size].
    product
        [token, size, pair].
    level
        [size], the same for all tokens.
    """

    plain: Single
    scale: Single
    slope: Single
    lean: Single
    curvature: Single
    twist: Single
    product: Single
    level: Array

    @classmethod
    def of(cls, columns: Single, shared: Shared, d: int) -> Influence:
        """Of features times coefficients, [token, size x column], and what all tokens share."""
        parts = columns.reshape(len(columns), len(shared.level), -1)
        plain, scale, slope, lean, curvature, twist, product = np.split(
            parts, np.cumsum([d, 1, d, d, 1, 1]), axis=2
        )
        lean = lean + shared.lean.astype(np.float32)
        return cls(
            plain, scale[..., 0], slope, lean, curvature[..., 0], twist[..., 0], product,
            shared.level,
        )  # fmt: skip

    def on_mean(self, values: Array) -> Array:
        """Influence on the output, [token, size, d], of tokens with these values."""
        return np.asarray(self.plain + self.scale[..., None] * values[:, None])

    def on_products(self, values: Array, shifts: Array, pairs: Pairs) -> Array:
        """Influence on products of the shifted output along pairs, [token, size, pair]."""
        a, b = pairs
        v, u = values[:, None], shifts[:, None]
        out = self.product + v[..., a] * self.slope[..., b] + v[..., b] * self.slope[..., a]
        out = out + u[..., a] * self.lean[..., b] + u[..., b] * self.lean[..., a]
        out = out + (v[..., a] * v[..., b]) * self.curvature[..., None]
        out = out + _pair(v, u, a, b) * self.twist[..., None]
        return np.asarray(out + (u[..., a] * u[..., b]) * self.level[:, None])


@dataclass(frozen=True, eq=False)
class Shared:
    """What all tokens share of ``lean`` [size, d], and ``level`` [size]."""

    lean: Array
    level: Array

    def __add__(self, other: Shared) -> Shared:
        return Shared(self.lean + other.lean, self.level + other.level)

    def scaled(self, factor: float) -> Shared:
        """All of it times a factor."""
        return Shared(factor * self.lean, factor * self.level)


def features(table: QueryTable, tokens: NDArray[np.int64]) -> Single:
    """Features of some tokens at every node, [3 x node, token]."""
    rows = (table.gap, table.weight, table.square)
    return np.concatenate([np.take(row, tokens, axis=1) for row in rows])


def coefficients(
    table: QueryTable, own: OwnKey, sizes: Array, others: Array, output: Array, pairs: Pairs
) -> tuple[Single, Shared]:
    """What multiplies the features, [3 x node, size x column], and what all tokens share.

    Parameters
    ----------
    table, own
        The query.
    sizes, others
        Numbers of keys n, and of those beside the query's own and the token z.
    output
        The limit y at the query, in coordinates where the mean output is 0.
    pairs
        Coordinates a and b of the products.
    """
    a, b = pairs
    d, count = len(output), len(table.nodes)
    m, n = others[None, :, None], sizes[None, :, None]
    none, one, two = ((STEP * table.powers(others - k) * own.decay).T[..., None] for k in range(3))
    mine = (own.weight[:, None] * own.residual)[:, None]
    g, h, u, y = table.first[:, None], table.zeroth[:, None], own.shift, output
    # of E e: what all but z make of it; of E e s': what z's weight is multiplied with
    rest = none * mine + m * one * g
    lift = none * u + m * one * h
    # E e e' and E (e s' + s e') along pairs, without z's own value and shift
    squares = none * (mine[..., a] * mine[..., b])
    squares = squares + m * one * (_pair(mine, g, a, b) + table.second_pairs[:, None])
    squares = squares + m * (m - 1) * two * (g[..., a] * g[..., b])
    crossed = none * _pair(mine, u, a, b)
    mixed = _pair(mine, h, a, b) + _pair(g, u, a, b) + table.mixed_pairs[:, None]
    crossed = crossed + m * one * mixed + m * (m - 1) * two * _pair(g, h, a, b)
    # products of shifted outputs y + e - s
    turned = rest + none * y - lift / n

    out = np.zeros((3, count, len(sizes), 3 * d + 3 + len(a)), dtype=np.float32)
    plain, scale, slope = slice(0, d), d, slice(d + 1, 2 * d + 1)
    lean, curvature, twist = slice(2 * d + 1, 3 * d + 1), 3 * d + 1, 3 * d + 2
    product = slice(3 * d + 3, None)
    out[0, ..., plain] = -rest
    out[1, ..., plain] = -none * y
    out[1, ..., scale] = none[..., 0]
    out[0, ..., product] = -(squares + _pair(rest, y, a, b) - crossed / n)
    out[1, ..., product] = -_pair(turned, y, a, b)
    out[2, ..., product] = none * (y[a] * y[b])
    out[1, ..., slope] = turned
    out[2, ..., slope] = -none * y
    out[0, ..., lean] = rest / n
    out[1, ..., lean] = none * y / n
    out[1, ..., twist] = -none[..., 0] / n[..., 0]
    out[2, ..., curvature] = none[..., 0]
    n = sizes[:, None]
    shared = Shared(lean=-rest.sum(axis=0) / n - y / n + u / n**2, level=1 / sizes**2)
    return out.reshape(3 * count, -1), shared


def _pair(p: Array, q: Array, a: NDArray[np.int64], b: NDArray[np.int64]) -> Array:
    """``p_a q_b + p_b q_a``."""
    return np.asarray(p[..., a] * q[..., b] + p[..., b] * q[..., a])
