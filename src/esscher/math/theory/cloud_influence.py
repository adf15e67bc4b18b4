"""Influence of tokens on outputs to first order: cheap, so that many queries can be used.

The exact influence of :func:`influence` costs dozens of passes per query, and a hundred
queries leave noise in its average. To first order a token z of weight w among n changes a query's
output by ``w' (v_z - y) / n``, ``w' = w / (1 + w / n)``, which is one pass. It is nearly the
exact influence, so the noise of the queries is nearly the same in both: the average of the exact
one is taken as ``exact over few + (first order over many - first order over the same few)``.
That has the right expectation whatever the first order leaves out.
"""

from __future__ import annotations

import numpy as np
import scipy
from numpy.typing import NDArray

from esscher.core.validation import Array
from esscher.math.theory.cloud_table import (
    AROUND,
    STEP,
    KeyColumns,
    KeySums,
    Pairs,
    QueryTable,
    Single,
)


def key_weights(logits: Array) -> Single:
    """Weights of all keys, of mean 1 for every query (rows)."""
    weights = (logits - logits.max(axis=1, keepdims=True)).astype(np.float32)
    np.exp(weights, out=weights)
    weights /= weights.mean(axis=1, dtype=np.float64, keepdims=True).astype(np.float32)
    return np.asarray(weights)


def first_order(
    weights: Array | Single,
    values: Array,
    shifts: Array,
    pairs: Pairs,
    sizes: Array,
    outputs: Array,
    share: Array,
) -> tuple[Array, Array]:
    """Sums over queries of first-order influences on outputs and on products of shifted outputs.

    Parameters
    ----------
    weights
        Of the tokens, [query, token].
    values, shifts
        Of the tokens, [token, d].
    pairs
        Coordinates a and b of the products.
    sizes
        Numbers of tokens n.
    outputs, share
        Limits [query, d] and weights of the queries.

    Returns
    -------
    on_mean, on_products
        [token, size, d] and [token, size, pair], times n.
    """
    a, b = pairs
    v, u = values.astype(np.float32), shifts.astype(np.float32)
    w, y = weights.astype(np.float32), outputs.astype(np.float32)
    columns = np.hstack([y, y[:, a] * y[:, b], np.ones((len(y), 1), dtype=np.float32)])
    columns *= share.astype(np.float32)[:, None]
    d = y.shape[1]
    on_mean = np.empty((len(v), len(sizes), d))
    on_products = np.empty((len(v), len(sizes), len(a)))
    products = v[:, a] * v[:, b], u[:, a] * u[:, b]
    felt = np.empty_like(w)
    for i, n in enumerate(sizes):
        np.multiply(w, np.float32(1 / n), out=felt)
        felt += 1
        np.divide(w, felt, out=felt)
        once = felt.T @ columns
        np.multiply(felt, felt, out=felt)
        twice = felt.T @ columns
        change = once[:, -1:] * v - once[:, :d]
        along = v[:, a] * once[:, b] + v[:, b] * once[:, a] - 2 * once[:, d:-1]
        # (change - shift) times itself, over n
        square = products[0] * twice[:, -1:] + twice[:, d:-1]
        square -= v[:, a] * twice[:, b] + v[:, b] * twice[:, a]
        square += products[1] - u[:, a] * change[:, b] - u[:, b] * change[:, a]
        on_mean[:, i] = change
        on_products[:, i] = along + square / np.float32(n)
    return on_mean, on_products


# How much a squared error varies from sample to sample: what makes its expected root smaller.
#
# To first order a squared error of n drawn tokens is ``Q = |b + (1/n) sum_i phi(z_i)|^2``, with the
# bias b; for the map it is ``(1/n^2) sum_ij k(z_i, z_j)``, with k(z, z') the average over queries
# of the product of what two tokens do to the output. Everything is known at the sampled tokens, so
# Q is simulated: tokens are drawn again from them, with the chances that their weights stand for.
# What is kept is ``E sqrt(Q) / sqrt(E Q)``: less than 1 where the error has few directions, or
# hangs on tokens that are rare and do much.

#: Samples that are drawn. The ratio is known to about 1/3 of the Q's relative spread over the root
#: of this number: to half a percent.
DRAWS = 400
#: The shape of larger samples is that of this size.
LARGEST = 10**9


def redraw(weights: Array, sizes: Array, rng: np.random.Generator) -> tuple[list[Array], Array]:
    """Shares of tokens, or queries, in samples drawn again with chances as their weights.

    Returns
    -------
    shares, chances
        One array [draw, token] for each size; the expectation of its rows.
    """
    chances = weights / weights.sum()
    counts = [int(min(n, LARGEST)) for n in sizes]
    return [rng.multinomial(n, chances, size=DRAWS) / n for n in counts], chances


def root_ratios(squares: Array | list[Array]) -> Array:
    """``E sqrt(Q) / sqrt(E Q)`` of drawn squares, for each size."""
    kept = np.maximum(squares, 0.0)
    level = np.sqrt(kept.mean(axis=1))
    roots = np.sqrt(kept).mean(axis=1)
    return np.asarray(np.divide(roots, level, out=np.ones_like(level), where=level > 0))


# Second order: the noise that each query has for itself.
#
# To first order a token moves all outputs at once, by its influence averaged over the queries. But
# one query may attend a few of the drawn tokens, and another others: what a token does to a query
# beyond that average is noise of its own, which no sum over single tokens carries. Averages over m
# queries keep 1/m of it: if p is the output of a query, or the products of its coordinates,
#
#     (1/m) { mean over queries of Var p  -  the part of it that all queries share },
#
# where the shared part is that of the first order, ``E |influence|^2 / n``. Here m = n where the
# tokens drawn are the queries: a share ``E w^2 / n`` of the first order, hence much for heads that
# attend few tokens. The variance of an output is exact; that of products is taken from the
# covariance S of the output as if it were Gaussian, with mean y,
#
#     sum_ab Var(p_a p_b) = 2 |y|^2 tr S + 2 y' S y + (tr S)^2 + tr S^2.
#
# Left out is what two queries have in common beyond the average one, as when two tokens attend to
# each other.


def query_noise(
    table: QueryTable,
    keys: KeyColumns,
    y: Array,
    mean: Array,
    errors: tuple[Array, Array, Array, Array],
    sizes: Array,
) -> tuple[Array, KeySums, KeySums]:
    """Noise of single queries.

    Parameters
    ----------
    table, keys
        The queries' table, and the keys.
    y, mean
        Limits [query, d], and ``E (e - s)`` [query, size, d].
    errors
        What :func:`query_errors` returns.
    sizes
        Numbers of tokens n.

    Returns
    -------
    noise
        [4, query, size]: variance of the output, ``E |e - E e|^2``; the same of the shifted output;
        its variance along the limit, ``y' S y``; ``|y|^2`` of the expected shifted output.
    squares, products
        Sums over the keys with the weights ``a_j`` and ``b_j`` of :func:`query_errors`.
    """
    expected, square, crossed, factors = errors
    over = factors / sizes[:, None]
    squares = KeySums(factors @ table.by_square.total, keys)
    products = KeySums(over @ table.by_weight.total, keys)
    limit = y[..., None]
    trace = np.trace(crossed, axis1=2, axis2=3) + squares.norms(y)
    trace = trace - 2 * (products.inner - (products.shift @ limit)[..., 0])
    single = y.astype(np.float32).T
    r = keys.values @ single - np.sum(single * single, axis=0)
    # numbers of keys and queries at the points of the grid, [query, point, number]
    numbers = np.stack([r * r, r * (keys.shifts @ single)], axis=2)
    count, queries, k = numbers.shape
    ends = AROUND * np.arange(count * queries + 1, dtype=np.int32)
    placed, shape = table.placed, (count * queries, table.placed.shape[1])
    each = scipy.sparse.csr_array((placed.data, placed.indices, ends), shape=shape)
    at_points = (each.T @ numbers.reshape(-1, k)).reshape(-1, queries, k)
    by_points = np.asarray(at_points.swapaxes(0, 1).astype(np.float64))
    lengths, mixed = by_points[..., :1], by_points[..., 1:]
    along = ((crossed @ limit[:, None])[..., 0] @ limit)[..., 0]
    along = along + (factors @ (table.functions["square"] @ lengths))[..., 0]
    along = along - 2 * (over @ (table.functions["weight"] @ mixed))[..., 0]
    noise = np.stack(
        [
            square - np.sum(expected**2, axis=2),
            np.maximum(trace - np.sum(mean**2, axis=2), 0.0),
            np.maximum(along - (mean @ limit)[..., 0] ** 2, 0.0),
            np.sum((y[:, None] + mean) ** 2, axis=2),
        ]
    )
    return noise, squares, products


# What one drawn token does to the outputs of a query, on average over the other tokens.
#
# Beside its own key and m others, the query attends a token z. In the integrals of
# :func:`query_errors` this puts ``a = w_x r_x + w_z r_z``, ``e^{-l (w_x + w_z)}`` and ``u_x + u_z``
# in place of the query's own. As functions of z they are sums over the nodes of three features of
# z,
#
#     D = 1 - e^{-l w_z},      W = l w_z e^{-l w_z},      S = (l w_z)^2 e^{-l w_z},
#
# times products of ``1``, ``v_z`` and ``u_z``. So the influence of all tokens, added up over many
# queries, is a few matrix products: features times coefficients. Where a coefficient is that of
# ``f^m`` alone, times something of the query, the sum over the nodes comes first, and that over
# queries after it.


def influence(
    table: QueryTable,
    outputs: Array,
    share: Array,
    *,
    tokens: NDArray[np.int64],
    values: Array,
    shifts: Array,
    sizes: Array,
    others: Array,
    pairs: Pairs,
) -> tuple[Single, Single]:
    """Influence of tokens z on sums over queries, up to constants.

    Of the outputs: ``plain + scale v``. Of products of the shifted outputs along pairs (a, b) of
    coordinates: ``product + v_a slope_b + u_a lean_b + v_a v_b curvature - v_a u_b scale / n`` and
    the same with a and b exchanged (``product`` and ``v_a v_b`` once), plus ``u_a u_b level``.

    Parameters
    ----------
    table
        The queries.
    outputs, share
        Their limits y, in coordinates where the mean output is 0, and what each counts for.
    tokens, values, shifts
        Rows of the keys that are the tokens z, and their v and u.
    sizes, others
        Numbers of keys n, and of those beside a query's own and the token z.
    pairs
        Coordinates a and b of the products.

    Returns
    -------
    on_mean, on_products
        [token, size, d] and [token, size, pair].
    """
    (a, b), d, shape = pairs, outputs.shape[1], (len(tokens), len(sizes), -1)
    placed = table.grid.placed_tokens(tokens)
    gaps, weights, squares = (
        np.asarray(placed @ table.functions[name].T.astype(np.float32, order="C")).reshape(
            len(tokens), -1
        )
        for name in ("gap", "weight", "square")
    )
    none, by_gap, by_weight, shared = _coefficients(table, outputs, share, sizes, others, pairs)
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
    plain, scale = -rest.reshape(shape) - once[..., :d], once[..., -1]
    slope, curvature = turned.reshape(shape) - twice[..., :d], twice[..., -1]
    v, u = (x.astype(np.float32)[:, None] for x in (values, shifts))
    v_a, v_b, u_a, u_b = v[..., a], v[..., b], u[..., a], u[..., b]
    over = (1 / sizes).astype(np.float32)[:, None]
    level = (share.sum() / sizes**2).astype(np.float32)
    lean = shared.astype(np.float32) - over * plain
    on_products = twice[..., d:-1] - product.reshape(shape) + v_a * slope[..., b]
    on_products += v_b * slope[..., a]
    on_products += u_a * lean[..., b]
    on_products += u_b * lean[..., a]
    on_products += v_a * v_b * curvature[..., None]
    on_products -= (v_a * u_b + v_b * u_a) * (over[:, 0] * scale)[..., None]
    on_products += u_a * u_b * level[:, None]
    return np.asarray(plain + scale[..., None] * v), np.asarray(on_products)


def _coefficients(
    table: QueryTable, outputs: Array, share: Array, sizes: Array, others: Array, pairs: Pairs
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
    d, p, y, u = outputs.shape[1], len(a), outputs[:, None], table.own_shift[:, None]
    g, h = table.first, table.zeroth
    queries, nodes = table.log_f.shape
    mine = table.own_weight[..., None] * table.own_residual[:, None]
    m = others[:, None]
    decay = share[:, None, None] * (STEP * table.own_decay[:, None])
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
    columns = np.matmul(by_size, fixed)
    by_gap, by_product, by_weight, by_along = (
        part.reshape(queries * nodes, len(sizes) * part.shape[-1])
        for part in np.split(columns, np.cumsum([d, p, d]), axis=3)
    )
    n = sizes[:, None]
    lean = -np.sum(columns[..., :d], axis=(0, 1), dtype=np.float64) / n
    lean = lean + share @ outputs / -n + share @ table.own_shift / n**2
    alone: Single = none.swapaxes(1, 2).astype(np.float32)
    return alone, (by_gap, by_product), (by_weight, by_along), lean


def _pair(p: Array, q: Array, a: NDArray[np.int64], b: NDArray[np.int64]) -> Array:
    """``p_a q_b + p_b q_a``."""
    return np.asarray(p[..., a] * q[..., b] + p[..., b] * q[..., a])
