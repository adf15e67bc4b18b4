"""What one drawn token does to the outputs of a query, on average over the other tokens.

Beside its own key and m others, the query attends a token z. In the integrals of
:mod:`cloud_query` this puts ``a = w_x r_x + w_z r_z``, ``e^{-l (w_x + w_z)}`` and ``u_x + u_z`` in
place of the query's own. As functions of z they are sums over the nodes of three features of z,

    D = 1 - e^{-l w_z},      W = l w_z e^{-l w_z},      S = (l w_z)^2 e^{-l w_z},

times products of ``1``, ``v_z`` and ``u_z``. So the influence of all tokens, added up over many
queries, is a few matrix products: features times coefficients. Where a coefficient is that of
``f^m`` alone, times something of the query, the sum over the nodes comes first, and that over
queries after it.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from esscher.core.validation import Array
from esscher.math.theory.cloud_grid import STEP, Single
from esscher.math.theory.cloud_query import OwnKey
from esscher.math.theory.cloud_table import Pairs, QueryTable


class TokenPairs:
    """Products of values and shifts of some tokens along pairs of coordinates."""

    def __init__(self, values: Array, shifts: Array, pairs: Pairs) -> None:
        a, b = self.pairs = pairs
        v, u = (x.astype(np.float32)[:, None] for x in (values, shifts))
        self.values = v
        self.v_a, self.v_b, self.u_a, self.u_b = v[..., a], v[..., b], u[..., a], u[..., b]
        self.v_v, self.u_u = self.v_a * self.v_b, self.u_a * self.u_b
        self.v_u = self.v_a * self.u_b + self.v_b * self.u_a


@dataclass(frozen=True, eq=False)
class Influence:
    """Influence of tokens z on sums over queries, up to constants: polynomials in v and u of z.

    Of the outputs: ``plain + scale v``. Of products of the shifted outputs along pairs (a, b) of
    coordinates: ``product + v_a slope_b + u_a lean_b + v_a v_b scale' - v_a u_b scale / n`` and the
    same with a and b exchanged (``product`` and ``v_a v_b`` once), plus ``u_a u_b level``, with
    ``scale'`` the curvature and ``lean = shared lean - plain / n``.

    Attributes
    ----------
    plain, slope
        [token, size, d].
    scale, curvature
        [token, size].
    product
        [token, size, pair].
    shared
        What all tokens share.
    sizes
        The numbers n.
    """

    plain: Single
    scale: Single
    slope: Single
    curvature: Single
    product: Single
    shared: Shared
    sizes: Array

    def on_mean(self, tokens: TokenPairs) -> Single:
        """Influence on the output, [token, size, d]."""
        return np.asarray(self.plain + self.scale[..., None] * tokens.values)

    def on_products(self, tokens: TokenPairs) -> Single:
        """Influence on products of the shifted output along pairs, [token, size, pair]."""
        a, b = tokens.pairs
        over = (1 / self.sizes).astype(np.float32)[:, None]
        lean = self.shared.lean.astype(np.float32) - over * self.plain
        out = self.product + tokens.v_a * self.slope[..., b]
        out += tokens.v_b * self.slope[..., a]
        out += tokens.u_a * lean[..., b]
        out += tokens.u_b * lean[..., a]
        out += tokens.v_v * self.curvature[..., None]
        out -= tokens.v_u * (over[:, 0] * self.scale)[..., None]
        out += tokens.u_u * self.shared.level.astype(np.float32)[:, None]
        return np.asarray(out)


@dataclass(frozen=True, eq=False)
class Shared:
    """What all tokens share of ``lean`` [size, d], and ``level`` [size]."""

    lean: Array
    level: Array


def influence(
    table: QueryTable,
    own: OwnKey,
    outputs: Array,
    share: Array,
    *,
    tokens: NDArray[np.int64],
    sizes: Array,
    others: Array,
    pairs: Pairs,
) -> Influence:
    """Influence of tokens on sums over queries.

    Parameters
    ----------
    table, own
        The queries.
    outputs, share
        Their limits y, in coordinates where the mean output is 0, and what each counts for.
    tokens
        Rows of the keys that are the tokens.
    sizes, others
        Numbers of keys n, and of those beside a query's own and the token z.
    pairs
        Coordinates a and b of the products.
    """
    (a, b), d, shape = pairs, outputs.shape[1], (len(tokens), len(sizes), -1)
    placed = table.grid.placed_tokens(tokens)
    functions = table.functions
    gaps, weights, squares = (
        np.asarray(placed @ rows.T.astype(np.float32, order="C")).reshape(len(tokens), -1)
        for rows in (functions.gap, functions.weight, functions.square)
    )
    none, by_gap, by_weight, lean = _coefficients(table, own, outputs, share, sizes, others, pairs)
    rest, turned = gaps @ by_gap[0], weights @ by_weight[0]
    product = gaps @ by_gap[1] + weights @ by_weight[1]
    # what goes with f^m alone: over the nodes, then over the queries
    y = outputs.astype(np.float32)
    columns = np.hstack([y, y[:, a] * y[:, b], np.ones((len(y), 1), dtype=np.float32)])
    once, twice = (
        np.matmul(
            np.matmul(x.reshape(len(tokens), len(y), -1).swapaxes(0, 1), none)
            .transpose(1, 2, 0)
            .reshape(-1, len(y)),
            columns,
        ).reshape(shape)
        for x in (weights, squares)
    )
    return Influence(
        plain=-rest.reshape(shape) - once[..., :d],
        scale=once[..., -1],
        slope=turned.reshape(shape) - twice[..., :d],
        curvature=twice[..., -1],
        product=twice[..., d:-1] - product.reshape(shape),
        shared=Shared(lean, share.sum() / sizes**2),
        sizes=sizes,
    )


def _coefficients(
    table: QueryTable,
    own: OwnKey,
    outputs: Array,
    share: Array,
    sizes: Array,
    others: Array,
    pairs: Pairs,
) -> tuple[Single, tuple[Single, Single], tuple[Single, Single], Array]:
    """What multiplies the features of a token, times the share of each query.

    Returns
    -------
    none
        Of W and S alone, [query, node, size].
    by_gap, by_weight
        [query x node, size x column]: of D, ``E e`` without z, and the products made of it along
        the pairs; of W, the shifted output without z, and its products with y.
    lean
        What all tokens share, [size, d].
    """
    a, b = pairs
    d, p, y, u = outputs.shape[1], len(a), outputs[:, None], own.shift[:, None]
    g, h = table.first, table.zeroth
    queries, nodes = table.log_f.shape
    mine = own.weight[..., None] * own.residual[:, None]
    m = others[:, None]
    decay = share[:, None, None] * (STEP * own.decay[:, None])
    none, one, two = (table.powers(others - k) * decay for k in range(3))
    powers = np.stack([none, m * one, m * (m - 1) * two], axis=-1)
    # six factors that depend on the size, times what does not: powers of f, and the same over n
    by_size = np.concatenate([powers, powers / sizes[:, None, None]], axis=-1)
    by_size = by_size.swapaxes(1, 2).astype(np.float32)
    fixed = np.zeros((queries, nodes, 6, 2 * (d + p)), dtype=np.float32)
    rest, product, turned, along = np.split(fixed, np.cumsum([d, p, d]), axis=3)
    rest[:, :, 0] = mine
    rest[:, :, 1] = g
    turned[:, :, 0] = mine + y
    turned[:, :, 1] = g
    turned[:, :, 3] = -u
    turned[:, :, 4] = -h
    # E e e' and E (e s' + s e') along pairs, without z's own value and shift
    along_g = _pair(g, y, a, b)
    product[:, :, 0] = mine[..., a] * mine[..., b] + _pair(mine, y, a, b)
    product[:, :, 1] = _pair(mine, g, a, b) + table.second_pairs + along_g
    product[:, :, 2] = g[..., a] * g[..., b]
    product[:, :, 3] = -_pair(mine, u, a, b)
    product[:, :, 4] = -(_pair(mine, h, a, b) + _pair(g, u, a, b) + table.mixed_pairs)
    product[:, :, 5] = -_pair(g, h, a, b)
    along[:, :, 0] = _pair(mine + y, y, a, b)
    along[:, :, 1] = along_g
    along[:, :, 3] = -_pair(u, y, a, b)
    along[:, :, 4] = -_pair(h, y, a, b)
    found = np.matmul(by_size, fixed)
    parts = np.split(found, np.cumsum([d, p, d]), axis=3)
    by_gap, by_product, by_weight, by_along = (
        part.reshape(queries * nodes, len(sizes) * part.shape[-1]) for part in parts
    )
    n = sizes[:, None]
    lean = -np.sum(found[..., :d], axis=(0, 1), dtype=np.float64) / n
    lean = lean + share @ outputs / -n + share @ own.shift / n**2
    return (
        none.swapaxes(1, 2).astype(np.float32),
        (by_gap, by_product),
        (by_weight, by_along),
        lean,
    )


def _pair(p: Array, q: Array, a: NDArray[np.int64], b: NDArray[np.int64]) -> Array:
    """``p_a q_b + p_b q_a``."""
    return np.asarray(p[..., a] * q[..., b] + p[..., b] * q[..., a])
