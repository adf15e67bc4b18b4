"""Second order: what two drawn tokens do together to the average query.

Hajek's projection has single tokens. Two of them, j and k, do more than the sum of what each does,
above all to products of coordinates: a query that attends both has an error with ``e_j e_k'`` in
its square. For the sample's average, T, the next term of the expansion is

    sum over pairs of Delta_jk,   Delta_jk = E[T | j, k] - E[T | j] - E[T | k] + E T,

which adds ``n (n - 1) / 2 E |Delta_jk|^2`` to the squared error. With j and k held fixed and W the
weights of the other keys, an output differs from its limit by

    (w_j r_j + w_k r_k) / (W + w_j + w_k) + terms of the others,

and of these the first is kept. Its powers of ``1 / (W + s)`` are expected over W exactly, by the
integrals of :mod:`cloud_table`, ``E (W + s)^{-1} = int e^{-l s} f^m dl`` and ``E (W + s)^{-2} = int
l e^{-l s} f^m dl``; or, for more queries and with less work, W is taken for its mean. A random
token in place of k has f in place of ``e^{-l w_k}``. What tokens do that are queries themselves,
``Delta`` of a query and a key, is noise of single queries (:mod:`cloud_noise`), but for its product
with the above, which is added. Three tokens together are left out.

Pairs are drawn with chances near their share: half of them as tokens are that do much each, half
as pairs that the same queries attend, with chances proportional to ``(sum_x w_xj w_xk)^2``.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from esscher.core.validation import Array
from esscher.math.theory.cloud_query import OwnKey
from esscher.math.theory.cloud_table import STEP, Pairs, QueryTable, Single

Rows = NDArray[np.int64]

#: Share of the pairs that are chosen by what each of the two does.
ALONE = 0.5
#: Tokens n, at least, where the weights of the others are taken for their mean: of two there are no
#: others.
FEWEST = 2.5


@dataclass(frozen=True, eq=False)
class TokenPairs:
    """Pairs of tokens, drawn independently of each other.

    Attributes
    ----------
    first, second
        The tokens.
    weights
        What each counts for in a mean over all pairs.
    """

    first: Rows
    second: Rows
    weights: Array

    def covariance(self, values: Array) -> Array:
        """Covariance of means over all pairs, estimated as weighted sums of values [pair, k]."""
        centred = self.weights[:, None] * values
        centred = centred - centred.mean(axis=0)
        count = len(values)
        return np.asarray(count / (count - 1) * centred.T @ centred)


def choose_pairs(
    shares: Array, felt: Single, lengths: Array, count: int, rng: np.random.Generator
) -> TokenPairs:
    """Choose pairs of tokens.

    Parameters
    ----------
    shares
        Chance of each token, of those that are chosen by what each does.
    felt
        Weights that some queries (rows) give the tokens.
    lengths
        How far the tokens' values are from the mean output.
    count
        Number of pairs.
    rng
        Of the choice.
    """
    size = len(shares)
    scaled = felt * lengths.astype(np.float32)
    # queries x and x' are chosen by (sum_j w_xj w_x'j)^2, then j and k by w_xj w_x'j
    common = (scaled @ scaled.T).astype(np.float64) ** 2
    np.fill_diagonal(common, 0.0)
    total = float(common.sum())
    alone = count if total <= 0 else round(ALONE * count)
    ends = [rng.choice(size, size=(alone, 2), p=shares)]
    if alone < count:
        picks = rng.choice(common.size, size=count - alone, p=common.ravel() / total)
        x, other = np.unravel_index(picks, common.shape)
        ends.append(_by_weights(scaled[x] * scaled[other], rng))
    first, second = np.concatenate(ends).T
    chance = alone / count * shares[first] * shares[second]
    if alone < count:
        a, b = scaled[:, first].astype(np.float64), scaled[:, second].astype(np.float64)
        both = np.sum(a * b, axis=0) ** 2 - np.sum((a * b) ** 2, axis=0)
        chance = chance + (1 - alone / count) * np.maximum(both, 0.0) / total
    return TokenPairs(first, second, 1 / (chance * count * size**2))


def _by_weights(weights: Single, rng: np.random.Generator) -> Rows:
    """Two members of each row, chosen independently with chances that go with the weights."""
    sums = np.cumsum(weights, axis=1, dtype=np.float64)
    at = rng.random((len(weights), 2)) * sums[:, -1:]
    found = [np.searchsorted(row, level, side="right") for row, level in zip(sums, at, strict=True)]
    return np.asarray(np.minimum(found, weights.shape[1] - 1), dtype=np.int64)


@dataclass(frozen=True, eq=False)
class Factors:
    """What multiplies ``r_j``, ``r_k`` and their products, [7, query, size, pair of tokens].

    With ``I`` for ``E 1 / (W + w_j + w_k)``, ``I_j`` for the same with a random token in place of
    k, and squares alike: ``w_j (I - I_j)``, ``w_k (I - I_k)``, ``w_j w_k I^2``, ``w_j^2 (I^2 -
    I_j^2)``, ``w_k^2 (I^2 - I_k^2)``, ``w_j I`` and ``w_k I``.
    """

    values: Single

    @classmethod
    def typical(cls, first: Single, second: Single, n: Array) -> Factors:
        """For queries that give the tokens such weights, [query, pair]: W is its mean."""
        size = np.maximum(n, FEWEST)[:, None].astype(np.float32)
        w, w2 = first[:, None], second[:, None]
        both, one, two = 1 / (size + w + w2 - 2), 1 / (size + w - 1), 1 / (size + w2 - 1)
        lean, lean2 = w * (1 - w2) * both * one, w2 * (1 - w) * both * two
        bend, bend2 = w * lean * (both + one), w2 * lean2 * (both + two)
        return cls(np.stack([lean, lean2, w * w2 * both**2, bend, bend2, w * both, w2 * both]))

    @classmethod
    def of(cls, table: QueryTable, own: OwnKey, tokens: Sequence[Rows], others: Array) -> Single:
        """The values of one query, [7, size, pair]; ``others`` are keys beside its own."""
        once, twice, gap = (
            [np.take(rows, keys, axis=1) for keys in tokens]
            for rows in (table.weight, table.square, table.gap)
        )
        none = (STEP * table.powers(others - 2) * own.decay).astype(np.float32)
        # e^{-l w} - f, what a token has in place of a random one
        apart = [-np.expm1(table.log_f)[:, None].astype(np.float32) - rows for rows in gap]
        return np.stack(
            [
                none @ (once[0] * apart[1]),
                none @ (once[1] * apart[0]),
                none @ (once[0] * once[1]),
                none @ (twice[0] * apart[1]),
                none @ (twice[1] * apart[0]),
                none @ (once[0] * (1 - gap[1])),
                none @ (once[1] * (1 - gap[0])),
            ]
        )


def second_differences(
    factors: Factors,
    outputs: Array,
    share: Array,
    values: tuple[Single, Single],
    shifts: tuple[Single, Single],
    pairs: Pairs,
    n: Array,
) -> tuple[Array, Array]:
    """Sums over queries of what two tokens do together.

    Parameters
    ----------
    factors
        Of the queries.
    outputs, share
        Limits [query, d] and weights of the queries.
    values, shifts
        Of the tokens, [pair of tokens, d].
    pairs
        Coordinates a and b of the products.
    n
        Sizes.

    Returns
    -------
    on_mean, on_products
        [pair of tokens, size, d] and, of the shifted outputs, [pair of tokens, size, pair].
    """
    (a, b), (v, v2), (u, u2) = pairs, values, shifts
    y = outputs.astype(np.float32)
    d, count = y.shape[1], len(v)
    columns = np.hstack([np.ones((len(y), 1), dtype=np.float32), y, y[:, a] * y[:, b]])
    columns *= share.astype(np.float32)[:, None]
    on_mean = np.empty((count, len(n), d))
    on_products = np.empty((count, len(n), len(a)))
    for i, size in enumerate(n):
        lean, lean2, product, bend, bend2, once, once2 = (
            _Sums(one, columns, d, pairs) for one in factors.values[:, :, i]
        )
        # Delta of the error e, and of its product with y
        on_mean[:, i] = lean.about(v) + lean2.about(v2)
        along = lean.with_limit(v) + lean2.with_limit(v2)
        # of e e'
        along += product.with_each_other(v, v2)
        along += (bend.with_each_other(v, v) + bend2.with_each_other(v2, v2)) / 2
        # of e s' and s s'
        crossed = _pair(lean.about(v) + once2.about(v2), u, pairs)
        crossed += _pair(lean2.about(v2) + once.about(v), u2, pairs)
        shared = _pair(u, u2, pairs) * np.float32(share.sum() / size)
        on_products[:, i] = along - (crossed - shared) / np.float32(size)
    return on_mean, on_products


class _Sums:
    """Sums over queries with factors [query, pair of tokens], of 1, y and products of y."""

    def __init__(self, factors: Single, columns: Single, d: int, pairs: Pairs) -> None:
        total = factors.T @ columns
        self._one, self._y, self._yy = total[:, :1], total[:, 1 : 1 + d], total[:, 1 + d :]
        self._pairs = pairs

    def about(self, v: Single) -> Single:
        """Of ``r = v - y``."""
        return np.asarray(v * self._one - self._y)

    def with_limit(self, v: Single) -> Single:
        """Of ``r_a y_b + y_a r_b``."""
        return np.asarray(_pair(v, self._y, self._pairs) - 2 * self._yy)

    def with_each_other(self, v: Single, other: Single) -> Single:
        """Of ``r_a r'_b + r'_a r_b``."""
        products = _pair(v, other, self._pairs) * self._one
        return np.asarray(products - _pair(v + other, self._y, self._pairs) + 2 * self._yy)


def own_effects(
    weights: Array, outputs: Array, values: Array, shifts: Array, pairs: Pairs, n: Array
) -> tuple[Array, Array]:
    """What a key does to the output of a query that is itself one of the n tokens, over n.

    Parameters
    ----------
    weights
        Of the key for the query, [pair of tokens].
    outputs
        Limits of the query, [pair of tokens, d].
    values, shifts
        Of the key.
    pairs
        Coordinates of the products.
    n
        Sizes.
    """
    a, b = pairs
    on_mean, on_products = [], []
    for size in n:
        error = (weights / (size - 1 + weights))[:, None] * (values - outputs)
        on_mean.append(error / size)
        moved = error - shifts / size
        product = _pair(outputs, moved, pairs) + moved[:, a] * moved[:, b]
        on_products.append(product / size)
    return np.stack(on_mean, axis=1), np.stack(on_products, axis=1)


def _pair(p: Any, q: Any, pairs: Pairs) -> Any:
    """``p_a q_b + p_b q_a``, in the precision of both."""
    a, b = pairs
    return p[..., a] * q[..., b] + p[..., b] * q[..., a]
