"""Samples of a finite population with chances near each member's share, and their sums.

Members whose share is large are taken for certain, the others by systematic sampling. Sums weigh a
member by the inverse of its chance (Horvitz and Thompson); their variance is Hajek's.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace

import numpy as np
import scipy
from numpy.typing import NDArray

from esscher.core.validation import Array
from esscher.math.coupling import RowMoments
from esscher.math.theory.cloud_table import (
    AROUND,
    STEP,
    TOGETHER,
    KeyColumns,
    KeySums,
    Pairs,
    QueryTable,
    Single,
    query_errors,
    square_errors,
    symmetric,
)

#: Share of the chances that is uniform: no member weighs more than its inverse times the average.
UNIFORM = 0.3


@dataclass(frozen=True, eq=False)
class Sample:
    """Members of a population that were drawn, and the chance that each had.

    With a ``guess`` [member, k], sums are scaled by ``factor`` [k] so that those of the guess come
    out right: where values go with the guess, their sums are known far better (the ratio
    estimator).
    """

    members: NDArray[np.int64]
    chances: Array
    guess: Array | None = None
    factor: Array | None = None

    def calibrated(self, guess: Array) -> Sample:
        """The same members, with a guess of the values of the whole population."""
        mine = guess[self.members]
        return replace(self, guess=mine, factor=_ratio(guess.sum(axis=0), self.total(mine)))

    @property
    def weights(self) -> Array:
        """Weight of a member in a sum: [member], or [k, member] with a guess."""
        weights = 1 / self.chances
        return weights if self.factor is None else self.factor[:, None] / self.chances

    def total(self, values: Array) -> Array:
        """Plain estimate of the population's sum of values, whose first axis is the members."""
        return np.asarray(np.tensordot(1 / self.chances, values, axes=1))

    def covariance(self, values: Array) -> Array:
        """Covariance of such sums, for values [member, k]; 0 if all members were drawn.

        With a guess it is that of what does not go with the guess.
        """
        if self.guess is not None and self.factor is not None:
            ratio = _ratio(self.total(values), self.total(self.guess), 0.0)
            plain = Sample(self.members, self.chances)
            apart = plain.covariance(values - self.guess * ratio)
            return np.asarray(apart * np.outer(self.factor, self.factor))
        doubt = (1 - self.chances)[:, None]
        count = int(np.sum(self.chances < 1))
        if count < 2:
            return np.zeros((values.shape[1], values.shape[1]))
        weighed = values / self.chances[:, None]
        centred = weighed - np.sum(doubt * weighed, axis=0) / doubt.sum()
        return np.asarray(count / (count - 1) * (doubt * centred).T @ centred)


def _ratio(above: Array, below: Array, otherwise: float = 1.0) -> Array:
    return np.divide(above, below, out=np.full_like(below, otherwise), where=below > 0)


def choose(
    shares: Array, count: int, rng: np.random.Generator, order: NDArray[np.int64] | None = None
) -> Sample:
    """Draw about ``count`` members with chances near their shares (not negative, any scale).

    Neighbours in ``order`` are rarely drawn together; a random order unless one
    is given.
    """
    size = len(shares)
    if count >= size:
        return Sample(np.arange(size), np.ones(size))
    total = float(shares.sum())
    known = shares / total if total > 0 else np.full(size, 1 / size)
    part = UNIFORM / size + (1 - UNIFORM) * known
    certain = np.zeros(size, dtype=bool)
    while True:
        left = count - int(certain.sum())
        chances = np.where(certain, 1.0, left * part / part[~certain].sum())
        more = (chances >= 1) & ~certain
        if not more.any():
            break
        certain |= more
    order = rng.permutation(size) if order is None else order
    steps = np.floor(np.cumsum(chances[order]) + rng.random())
    taken = np.diff(steps, prepend=0.0) >= 1
    members = np.sort(order[taken])
    return Sample(members.astype(np.int64), chances[members])


def near_order(points: Array, bits: int = 4, axes: int = 6) -> NDArray[np.int64]:
    """Order in which neighbours in space stand near each other: Morton's, of ranks along axes.

    ``points`` has its coordinates in columns, of which the last ``axes`` are looked at, the last
    one first.
    """
    ranks = [np.argsort(np.argsort(points[:, -1 - a])) for a in range(min(axes, points.shape[1]))]
    levels = [rank * 2**bits // len(points) for rank in ranks]
    code = np.zeros(len(points), dtype=np.int64)
    for bit in range(bits - 1, -1, -1):
        for level in levels:
            code = 2 * code + (level >> bit & 1)
    return np.argsort(code, kind="stable")


# One pass over sampled queries of a cloud: sums, group by group, of what all errors are made of.
#
# See :mod:`cloud`. Coordinates are the principal axes of the outputs, about their mean.

Rows = NDArray[np.int64]

#: Less than any sum of squares.
TINY = 1e-300
#: Tokens by which it is guessed which pairs of coordinates matter.
GUESSED_BY = 128


@dataclass(frozen=True, eq=False)
class CloudHead:
    """A head over a cloud of tokens.

    Attributes
    ----------
    values
        One row per key.
    outputs
        Attention over all keys, one row per query.
    logits
        Logits of some queries (rows) over all keys.
    own
        The key of each query's own token; None where queries are not among the tokens drawn.
    averaged
        Queries over which outputs are averaged then; infinitely many for averages over a law.
    """

    values: Array
    outputs: Array
    logits: Callable[[Rows], Array]
    own: Rows | None
    averaged: float = np.inf


@dataclass(frozen=True)
class Effort:
    """How much is sampled: queries, groups of them (3 or more), tokens z, pairs of coordinates.

    ``more`` queries are used to first order only, to take noise off the average over the others.
    """

    queries: int = 128
    groups: int = 8
    tokens: int = 512
    pairs: int = 32
    more: int = 1024


class CloudPass:
    """The sampled queries, tokens and pairs of a cloud, and the sums over the queries.

    Attributes
    ----------
    n, grid
        Numbers of tokens of all errors, and of the map error.
    tokens, averaged, population
        Whether the queries are the tokens drawn; number of queries over which outputs are averaged,
        by size; number of tokens among which z were drawn.
    rows, group, share
        The sampled queries, the group of each, and its weight there.
    z, pairs, pair_sample
        The sampled tokens, the sampled pairs of coordinates, and the sample that these are.
    keys, z_values, z_shifts, z_limits
        Keys of the tokens whose influence is known (z and, behind them, the queries), their values
        and shifts, and the limits there; 0 where they are no queries.
    moved, rng
        Deviations of the shares of z in samples drawn again from 1/population, by size; the stream
        of whatever else is drawn.
    mean, mean_shift, products
        Of each query: ``E (e - s)`` and ``E s`` [query, size, d], and what products of its shifted
        output along the pairs are larger than at the limit, [query, size, pair].
    squares, map_squares
        ``E |e|^2`` of each query at ``n`` and at ``grid``.
    noise
        Variances of the outputs of each query, see :func:`query_noise`.
    second
        Means over the queries of each group of what products are larger, [group, size, d, d].
    on_mean, on_products
        ``phi_n`` of the tokens by group of queries, for the mean output, and along the pairs for
        products of shifted outputs; without what attending n instead of all tokens changes in a
        token's own output.
    """

    def __init__(
        self, cloud: CloudHead, n: Array, grid: Array, effort: Effort, rng: np.random.Generator
    ) -> None:
        self.cloud, self.n, self.grid, self.rng = cloud, n, grid, rng
        d, s = cloud.outputs.shape[1], len(n)
        self.tokens = cloud.own is not None
        self._own = np.arange(len(cloud.values)) if cloud.own is None else cloud.own
        self.population = len(self._own)
        self.averaged = n if self.tokens else np.full(s, cloud.averaged)
        self._others = n - 1 if self.tokens else n
        origin = cloud.outputs.mean(axis=0)
        _, axes = np.linalg.eigh(RowMoments.of(cloud.outputs).covariance)
        self.outputs = (cloud.outputs - origin) @ axes
        self.values = (cloud.values - origin) @ axes
        self.rows, self.group, self.share = self._choose_queries(effort.queries, effort.groups)
        self._logits = np.asarray(cloud.logits(self.rows), dtype=np.float64)
        self._weights = key_weights(self._logits)
        # what each key does to the mean output at the middle size, to first order, [key, d]
        middle = float(np.exp(np.log(n).mean()))
        felt = self._weights / (1 + self._weights / middle)
        share = self.share / self.share.sum()
        influenced = (share @ felt)[:, None] * self.values
        influenced = influenced - felt.T @ (share[:, None] * self.outputs[self.rows])
        self.shifts = influenced - influenced.mean(axis=0)
        self._spread = RowMoments.of(self.shifts).covariance
        self.z = choose(self._token_shares(influenced, felt, share), effort.tokens, rng)
        self.pairs, self.pair_sample = self._choose_pairs(effort.pairs)
        self._columns = KeyColumns(self.values, self.shifts, self.pairs)
        members = self.z.members
        self.keys = self._own[np.concatenate([members, self.rows])] if self.tokens else members
        self.z_values = np.asarray(self.values[self.keys])
        self.z_shifts = np.asarray(self.shifts[self.keys])
        self.z_limits = np.zeros((len(self.keys), d))
        if self.tokens:
            self.z_limits = self.outputs[np.concatenate([members, self.rows])]
        groups, queries, p = effort.groups, len(self.rows), len(self.pairs[0])
        self.mean = np.empty((queries, s, d))
        self.mean_shift = np.zeros((queries, s, d))
        if self.tokens:  # a query's own key is one of n
            self.mean_shift = self.shifts[self._own[self.rows]][:, None] / n[:, None]
        self.products = np.empty((queries, s, p))
        self.squares = np.empty((queries, s))
        self.map_squares = np.empty((queries, len(grid)))
        self.noise = np.zeros((4, queries, s))
        self.second = np.zeros((groups, s, d, d))
        self.on_mean = np.empty((groups, len(self.keys), s, d))
        self.on_products = np.empty((groups, len(self.keys), s, p))
        more = self._choose_queries(effort.more, groups) if effort.more else None
        for g in range(groups):
            members = np.flatnonzero(self.group == g)
            self._add_group(g, members)
            if more is not None:
                # take off the noise of the group's queries that more queries show to first order
                tokens = self.z_values, self.z_shifts, self.pairs, n
                weights = self._weights[np.ix_(members, self.keys)]
                outputs = self.outputs[self.rows[members]]
                few = first_order(weights, *tokens, outputs, self.share[members])
                rows, share = more[0][more[1] == g], more[2][more[1] == g]
                weights = key_weights(cloud.logits(rows))[:, self.keys]
                many = first_order(weights, *tokens, self.outputs[rows], share)
                self.on_mean[g] += many[0] - few[0]
                self.on_products[g] += many[1] - few[1]
        drawn, chances = redraw(1 / self.z.chances, n, rng)
        self.moved = [shares - chances for shares in drawn]

    def map_kernels(self) -> Single:
        """Effect of pairs of tokens on the sampled queries' outputs, to first order.

        ``sum_x share_x w_z w_z' <v_z - y_x, v_z' - y_x>`` of the tokens z, [size, token, token].
        """
        keys = self.keys[: len(self.z.members)]
        v = self.values[keys].astype(np.float32)
        y = self.outputs[self.rows].astype(np.float32)
        w = self._weights[:, keys].astype(np.float32)
        share = (self.share / self.share.sum()).astype(np.float32)[:, None]
        norms, inner, products = np.sum(y**2, axis=1)[:, None], y @ v.T, v @ v.T
        kernels = np.empty((len(self.n), len(v), len(v)), dtype=np.float32)
        for i, n in enumerate(self.n):
            felt = w / (1 + w / np.float32(n))
            crossed = (share * felt * inner).T @ felt
            kernels[i] = products * ((share * felt).T @ felt) - crossed - crossed.T
            kernels[i] += (share * norms * felt).T @ felt
        return kernels

    def _choose_queries(self, count: int, groups: int) -> tuple[Rows, Rows, Array]:
        """Queries of each group, all over the outputs; those far out are likelier, and weigh less.

        Groups are drawn independently of each other. Returns queries, groups and weights, which
        sum to 1 in each group.
        """
        far = np.sum(self.outputs**2, axis=1)
        order = near_order(self.outputs)
        parts = [choose(far, count // groups, self.rng, order) for _ in range(groups)]
        weights = [part.weights / np.sum(part.weights) for part in parts]
        group = np.repeat(np.arange(groups), [len(part.members) for part in parts])
        rows = np.concatenate([part.members for part in parts])
        return rows, group, np.concatenate(weights)

    def _token_shares(self, influenced: Array, felt: Array, share: Array) -> Array:
        """Rough share of each token in the errors of mean and covariance.

        For the covariance the influence on products is bounded by ``y y' + v m' + m v'``, with m
        the sum of the outputs that attend to a token.
        """
        m = (felt.T @ (share[:, None] * self.outputs[self.rows]))[self._own]
        v = self.values[self._own]
        norms = [np.sum(x * x, axis=1) for x in (v, m)]
        square = 2 * norms[0] * norms[1] + 2 * np.sum(v * m, axis=1) ** 2
        whole = influenced[self._own]
        if self.tokens:
            y = self.outputs
            whole = whole + y
            square += np.sum(y * y, axis=1) ** 2 + 4 * np.sum(y * v, axis=1) * np.sum(y * m, axis=1)
        first, second = np.sum(whole**2, axis=1), np.maximum(square, 0.0)
        return np.asarray(first / max(first.sum(), TINY) + second / max(second.sum(), TINY))

    def _choose_pairs(self, count: int) -> tuple[Pairs, Sample]:
        """Pairs of coordinates, with chances near their share of the covariance's error.

        The share is that of the variance of the tokens' influence, to first order: of some of the
        tokens, and a product of two halves of the queries, lest their noise is taken for it.
        """
        every = np.triu_indices(self.values.shape[1])
        some = slice(None, None, max(1, len(self.z.members) // GUESSED_BY))
        members = self.z.members[some]
        keys = self._own[members] if self.tokens else members
        weights = self.z.weights[some]
        weights /= weights.sum()
        halves = []
        for half in (0, 1):
            of = self.group % 2 == half
            share = self.share[of] / self.share[of].sum()
            felt, outputs = self._weights[of][:, keys], self.outputs[self.rows[of]]
            tokens = self.values[keys], self.shifts[keys], every, self.n
            along = first_order(felt, *tokens, outputs, share)[1]
            if self.tokens:
                limits = self.outputs[members]
                along += (limits[:, every[0]] * limits[:, every[1]])[:, None]
            along -= np.tensordot(weights, along, axes=1)
            halves.append(along)
        variance = np.einsum("z,zsp,zsp->ps", weights, *halves)
        guess = np.maximum(variance, 0.0) * np.where(every[0] == every[1], 1, 2)[:, None]
        total = guess.sum(axis=0)
        shares = guess / np.where(total > 0, total, 1.0)
        sample = choose(shares.sum(axis=1), count, self.rng)
        pairs = every[0][sample.members], every[1][sample.members]
        return pairs, sample.calibrated(guess)

    def _add_group(self, group: int, members: Rows) -> None:
        """Add the queries of a group."""
        limits, (a, b) = self.z_limits, self.pairs
        self.on_mean[group] = limits[:, None]
        self.on_products[group] = (limits[:, a] * limits[:, b])[:, None]
        # of the keys in what the queries' products are larger: of r r', then of r u' + u r'
        weights = np.zeros((len(self.values), 2 * len(self.n)), dtype=np.float32)
        for start in range(0, len(members), TOGETHER):
            weights += self._add_queries(members[start : start + TOGETHER], group)
        v, u = self._columns.values, self._columns.shifts
        for i in range(len(self.n)):
            square, product = weights[:, i, None], weights[:, len(self.n) + i, None]
            half = v.T @ (np.float32(0.5) * square * v - product * u)
            self.second[group, i] += symmetric(half.astype(np.float64))

    def _add_queries(self, some: Rows, group: int) -> Single:
        """Add queries; return the weights of the keys in what their products are larger.

        Those of ``r r'``, and then those of ``r u' + u r'``, at each size, [key, 2 x size].
        """
        rows, n, share = self.rows[some], self.n, self.share[some]
        y = self.outputs[rows]
        ends = min(n[0], self.grid[0]), max(n[-1], self.grid[-1])
        own = None
        if self.tokens:
            keys = self._own[rows]
            own = keys, self.values[keys] - y, self.shifts[keys]
        table = QueryTable(self._logits[some], self._columns, y, *ends, own)
        errors = query_errors(table, self._others, n, self._spread)
        expected, square, crossed, factors = errors
        mean = expected - table.own_shift[:, None] / n[:, None]
        self.mean[some], self.squares[some] = mean, square
        others = self.grid - 1 if self.tokens else self.grid
        self.map_squares[some] = square_errors(table, others)
        crossed = crossed + symmetric(y[:, None, :, None] * mean[:, :, None])
        self.noise[:, some], squares, products = query_noise(
            table, self._columns, y, mean, errors, n
        )
        self.products[some] = crossed[:, :, *self.pairs] + squares.products(y) - products.mixed(y)
        # but for v v' and v u', whose matrices are the same for all queries
        linear = symmetric((products.shift - squares.value)[..., None] * y[:, None, None])
        linear = linear + squares.one[..., None, None] * (y[:, :, None] * y[:, None])[:, None]
        self.second[group] += np.tensordot(share, crossed + linear, axes=1)
        on_mean, on_products = influence(
            table,
            y,
            share,
            tokens=self.keys,
            values=self.z_values,
            shifts=self.z_shifts,
            sizes=n,
            others=self._others - 1,
            pairs=self.pairs,
        )
        factor = (n - 1 if self.tokens else n)[:, None]
        self.on_mean[group] += factor * on_mean
        self.on_products[group] += factor * on_products
        by_square = factors @ table.functions["square"]
        by_weight = (factors / n[:, None]) @ table.functions["weight"]
        both = share[:, None, None] * np.concatenate([by_square, by_weight], axis=1)
        # functions at the points of the grid, at the keys, summed over the queries
        columns = both.transpose(2, 0, 1).astype(np.float32, order="C")
        return np.asarray(table.placed @ columns.reshape(-1, columns.shape[-1]))


# Influence of tokens on outputs to first order: cheap, so that many queries can be used.
#
# The exact influence of influence costs dozens of passes per query, and a hundred
# queries leave noise in its average. To first order a token z of weight w among n changes a query's
# output by w' (v_z - y) / n, w' = w / (1 + w / n), which is one pass. It is nearly the
# exact influence, so the noise of the queries is nearly the same in both: the average of the exact
# one is taken as exact over few + (first order over many - first order over the same few).
# That has the right expectation whatever the first order leaves out.


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
    """Coefficients of the features of a token, times the share of each query.

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
