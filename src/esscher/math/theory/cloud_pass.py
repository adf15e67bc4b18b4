"""Samples of a finite population with chances near each member's share, and their sums.

Members whose share is large are taken for certain, the others by systematic sampling. Sums weigh a
member by the inverse of its chance (Horvitz and Thompson); their variance is Hajek's.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from esscher.core.validation import Array
from esscher.math.coupling import RowMoments
from esscher.math.theory.cloud_influence import (
    FirstOrder,
    QueryNoise,
    Redrawn,
    TokenPairs,
    influence,
    key_weights,
)
from esscher.math.theory.cloud_table import (
    TOGETHER,
    KeyColumns,
    OwnKey,
    Pairs,
    Single,
    query_errors,
    query_table,
    square_errors,
    symmetric,
)

#: Share of the chances that is uniform: no member weighs more than its inverse times the average.
UNIFORM = 0.3


@dataclass(frozen=True, eq=False)
class Chosen:
    """Members of a population that were chosen, and the chance that each had."""

    members: NDArray[np.int64]
    chances: Array

    def total(self, values: Array) -> Array:
        """Estimate of the population's sum of values, whose first axis is the chosen members."""
        return np.asarray(np.tensordot(1 / self.chances, values, axes=1))

    def covariance(self, values: Array) -> Array:
        """Covariance of such estimates, for values [member, k]; 0 if all members were chosen."""
        doubt = (1 - self.chances)[:, None]
        count = int(np.sum(self.chances < 1))
        if count < 2:
            return np.zeros((values.shape[1], values.shape[1]))
        weighed = values / self.chances[:, None]
        centred = weighed - np.sum(doubt * weighed, axis=0) / doubt.sum()
        return np.asarray(count / (count - 1) * (doubt * centred).T @ centred)


@dataclass(frozen=True, eq=False)
class Calibrated:
    """Chosen members whose sums are scaled so that the sums of a guess come out right.

    Where values go with the guess, their sums are known far better (the ratio estimator).

    Attributes
    ----------
    chosen
        The members.
    guess
        What was guessed of them, [member, k].
    factor
        Sums of the guess over the population, over their estimates by the members, [k].
    """

    chosen: Chosen
    guess: Array
    factor: Array

    @classmethod
    def of(cls, chosen: Chosen, guess: Array) -> Calibrated:
        """Of chosen members, and the guess of all members of the population."""
        mine = guess[chosen.members]
        return cls(chosen, mine, _ratio(guess.sum(axis=0), chosen.total(mine)))

    @property
    def weights(self) -> Array:
        """What a member counts for in a sum, [k, member]."""
        return np.asarray(self.factor[:, None] / self.chosen.chances)

    def covariance(self, values: Array) -> Array:
        """Covariance of sums of values [member, k]: of what does not go with the guess."""
        ratio = _ratio(self.chosen.total(values), self.chosen.total(self.guess), 0.0)
        apart = self.chosen.covariance(values - self.guess * ratio)
        return np.asarray(apart * np.outer(self.factor, self.factor))


def _ratio(above: Array, below: Array, otherwise: float = 1.0) -> Array:
    return np.divide(above, below, out=np.full_like(below, otherwise), where=below > 0)


def choose(
    shares: Array, count: int, rng: np.random.Generator, order: NDArray[np.int64] | None = None
) -> Chosen:
    """Choose about ``count`` members with chances near their shares (not negative, any scale).

    Members that are neighbours in ``order`` are rarely chosen together; a random order unless one
    is given.
    """
    size = len(shares)
    if count >= size:
        return Chosen(np.arange(size), np.ones(size))
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
    return Chosen(members.astype(np.int64), chances[members])


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
    asked
        Queries over which outputs are averaged then; infinitely many for averages over a law.
    """

    values: Array
    outputs: Array
    logits: Callable[[Rows], Array]
    own: Rows | None
    asked: float = np.inf


@dataclass(frozen=True)
class Effort:
    """How much is sampled: queries, groups of them (3 or more), tokens z, pairs of coordinates.

    ``more`` queries are asked to first order only, to take noise off the average over the others.
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
    rows, group, share
        The sampled queries, the group of each, and its weight there.
    z, pairs, chosen_pairs
        The sampled tokens, and pairs of coordinates.
    redrawn, rng
        Samples of those tokens, and of whatever else is drawn.
    mean, products
        Of each query: ``E (e - s)`` [query, size, d], and what products of its shifted output
        along the pairs are larger than at the limit, [query, size, pair].
    squares, map_squares
        ``E |e|^2`` of each query at ``n`` and at ``grid``.
    noise
        Variances of the outputs of each query.
    second
        Means over the queries of each group of what products are larger, [group, size, d, d].
    on_mean, on_products
        ``phi_n`` of the tokens z (and, behind them, of the queries) by group of queries, for the
        mean output, and along the pairs for products of shifted outputs; without what attending
        n instead of all tokens changes in a token's own output.
    """

    def __init__(
        self, cloud: CloudHead, n: Array, grid: Array, effort: Effort, rng: np.random.Generator
    ) -> None:
        self.cloud, self.n, self.grid = cloud, n, grid
        d = cloud.outputs.shape[1]
        self.tokens = cloud.own is not None
        self._own = np.arange(len(cloud.values)) if cloud.own is None else cloud.own
        self._others = n - 1 if self.tokens else n
        origin = cloud.outputs.mean(axis=0)
        _, axes = np.linalg.eigh(RowMoments.of(cloud.outputs).covariance)
        self.outputs = (cloud.outputs - origin) @ axes
        self.values = (cloud.values - origin) @ axes
        self.rows, self.group, self.share = self._choose_queries(effort.queries, effort.groups, rng)
        self._logits = np.asarray(cloud.logits(self.rows), dtype=np.float64)
        self._weights = key_weights(self._logits)
        self._middle = float(np.exp(np.log(n).mean()))
        influence = self._first_influence()
        self.shifts = influence - influence.mean(axis=0)
        self._spread = RowMoments.of(self.shifts).covariance
        self.z = choose(self._shares(influence), effort.tokens, rng)
        self.pairs, self.chosen_pairs = self._choose_pairs(effort.pairs, rng)
        self._keys = KeyColumns.of(self.values, self.shifts, self.pairs)
        members = self.z.members
        self.keys = self._own[np.concatenate([members, self.rows])] if self.tokens else members
        self._z_pairs = TokenPairs(self.z_values, self.z_shifts, self.pairs)
        groups, s, p = effort.groups, len(n), len(self.pairs[0])
        self.mean = np.empty((len(self.rows), s, d))
        self.products = np.empty((len(self.rows), s, p))
        self.squares = np.empty((len(self.rows), s))
        self.map_squares = np.empty((len(self.rows), len(grid)))
        self.noise = QueryNoise.empty(len(self.rows), s)
        self.second = np.zeros((groups, s, d, d))
        self.on_mean = np.empty((groups, len(self.keys), s, d))
        self.on_products = np.empty((groups, len(self.keys), s, p))
        more = self._choose_queries(effort.more, groups, rng) if effort.more else None
        for g in range(groups):
            members = np.flatnonzero(self.group == g)
            self._add(g, members)
            if more is not None:
                self._ask_more(g, members, more[0][more[1] == g], more[2][more[1] == g])
        self.rng = rng
        self.redrawn = Redrawn(1 / self.z.chances, n, rng)

    @property
    def averaged(self) -> Array:
        """Number of queries over which outputs are averaged, by size."""
        return self.n if self.tokens else np.full(len(self.n), self.cloud.asked)

    @property
    def z_limits(self) -> Array:
        """Limits at the tokens whose influence is known; 0 where they are no queries."""
        if not self.tokens:
            return np.zeros((len(self.keys), self.values.shape[1]))
        return np.asarray(self.outputs[np.concatenate([self.z.members, self.rows])])

    @property
    def z_values(self) -> Array:
        """Values of the tokens whose influence is known."""
        return np.asarray(self.values[self.keys])

    @property
    def population(self) -> int:
        """Number of tokens among which z were chosen."""
        return len(self._own)

    @property
    def z_shifts(self) -> Array:
        """Shifts of the tokens whose influence is known."""
        return np.asarray(self.shifts[self.keys])

    def mean_shift(self) -> Array:
        """``E s`` at the sampled queries, [query, size, d]: their own key is one of n."""
        if not self.tokens:
            return np.zeros_like(self.mean)
        return np.asarray(self.shifts[self._own[self.rows]][:, None] / self.n[:, None])

    def map_kernels(self) -> Single:
        """What pairs of tokens do together to the sampled queries' outputs, to first order.

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

    def _choose_queries(
        self, count: int, groups: int, rng: np.random.Generator
    ) -> tuple[Rows, Rows, Array]:
        """Queries of each group, all over the outputs; those far out are likelier, and weigh less.

        Groups are chosen independently of each other. Returns queries, groups and weights, which
        sum to 1 in each group.
        """
        far = np.sum(self.outputs**2, axis=1)
        order = near_order(self.outputs)
        chosen = [choose(far, count // groups, rng, order) for _ in range(groups)]
        weights = [1 / part.chances / np.sum(1 / part.chances) for part in chosen]
        group = np.repeat(np.arange(groups), [len(part.members) for part in chosen])
        rows = np.concatenate([part.members for part in chosen])
        return rows, group, np.concatenate(weights)

    def _first_influence(self) -> Array:
        """What each key does to the mean output at the middle size, to first order, [key, d]."""
        weights = self._weights / (1 + self._weights / self._middle)
        share = self.share / self.share.sum()
        influence = (share @ weights)[:, None] * self.values
        return np.asarray(influence - weights.T @ (share[:, None] * self.outputs[self.rows]))

    def _shares(self, influence: Array) -> Array:
        """About how much of the errors of mean and covariance is due to each token.

        For the covariance the influence on products is bounded by ``y y' + v m' + m v'``, with m
        the sum of the outputs that attend to a token.
        """
        felt = self._weights / (1 + self._weights / self._middle)
        share = (self.share / self.share.sum())[:, None]
        m = (felt.T @ (share * self.outputs[self.rows]))[self._own]
        v = self.values[self._own]
        norms = [np.sum(x * x, axis=1) for x in (v, m)]
        square = 2 * norms[0] * norms[1] + 2 * np.sum(v * m, axis=1) ** 2
        whole = influence[self._own]
        if self.tokens:
            y = self.outputs
            whole = whole + y
            square += np.sum(y * y, axis=1) ** 2 + 4 * np.sum(y * v, axis=1) * np.sum(y * m, axis=1)
        first, second = np.sum(whole**2, axis=1), np.maximum(square, 0.0)
        return np.asarray(first / max(first.sum(), TINY) + second / max(second.sum(), TINY))

    def _choose_pairs(self, count: int, rng: np.random.Generator) -> tuple[Pairs, Calibrated]:
        """Pairs of coordinates, with chances near their share of the covariance's error.

        The share is that of the variance of the tokens' influence, to first order: of some of the
        tokens, and a product of two halves of the queries, lest their noise is taken for it.
        """
        every = np.triu_indices(self.values.shape[1])
        some = slice(None, None, max(1, len(self.z.members) // GUESSED_BY))
        members = self.z.members[some]
        keys = self._own[members] if self.tokens else members
        first = FirstOrder.of(self.values[keys], self.shifts[keys], every, self.n)
        weights = 1 / self.z.chances[some]
        weights /= weights.sum()
        halves = []
        for half in (0, 1):
            of = self.group % 2 == half
            share = self.share[of] / self.share[of].sum()
            along = first(self._weights[of][:, keys], self.outputs[self.rows[of]], share)[1]
            if self.tokens:
                limits = self.outputs[members]
                along += (limits[:, every[0]] * limits[:, every[1]])[:, None]
            along -= np.tensordot(weights, along, axes=1)
            halves.append(along)
        variance = np.einsum("z,zsp,zsp->ps", weights, *halves)
        guess = np.maximum(variance, 0.0) * np.where(every[0] == every[1], 1, 2)[:, None]
        total = guess.sum(axis=0)
        shares = guess / np.where(total > 0, total, 1.0)
        chosen = choose(shares.sum(axis=1), count, rng)
        pairs = every[0][chosen.members], every[1][chosen.members]
        return pairs, Calibrated.of(chosen, guess)

    def _add(self, group: int, members: Rows) -> None:
        """Add the queries of a group."""
        limits, (a, b) = self.z_limits, self.pairs
        self.on_mean[group] = limits[:, None]
        self.on_products[group] = (limits[:, a] * limits[:, b])[:, None]
        weights = np.zeros((len(self.values), 2 * len(self.n)), dtype=np.float32)
        for start in range(0, len(members), TOGETHER):
            weights += self._queries(members[start : start + TOGETHER], group)
        v, u = self._keys.values, self._keys.shifts
        for i in range(len(self.n)):
            square, product = weights[:, i, None], weights[:, len(self.n) + i, None]
            half = v.T @ (np.float32(0.5) * square * v - product * u)
            self.second[group, i] += symmetric(half.astype(np.float64))

    def _ask_more(self, group: int, members: Rows, rows: Rows, share: Array) -> None:
        """Take off the noise of a group's queries that more queries show to first order."""
        first = FirstOrder.of(self.z_values, self.z_shifts, self.pairs, self.n)
        few = first(
            self._weights[np.ix_(members, self.keys)],
            self.outputs[self.rows[members]],
            self.share[members],
        )
        many = first(key_weights(self.cloud.logits(rows))[:, self.keys], self.outputs[rows], share)
        self.on_mean[group] += many[0] - few[0]
        self.on_products[group] += many[1] - few[1]

    def _queries(self, some: Rows, group: int) -> Single:
        """Add queries; return the weights of the keys in what their products are larger.

        Those of ``r r'``, and then those of ``r u' + u r'``, at each size, [key, 2 x size].
        """
        rows, n, share = self.rows[some], self.n, self.share[some]
        y = self.outputs[rows]
        ends = min(n[0], self.grid[0]), max(n[-1], self.grid[-1])
        table = query_table(self._logits[some], self._keys, y, *ends)
        own = OwnKey.none(table, y.shape[1])
        if self.tokens:
            keys = self._own[rows]
            own = OwnKey.of(table, keys, self.values[keys] - y, self.shifts[keys])
        at = query_errors(table, own, self._others, n, self._spread)
        mean = at.mean - own.shift[:, None] / n[:, None]
        self.mean[some], self.squares[some] = mean, at.square
        others = self.grid - 1 if self.tokens else self.grid
        self.map_squares[some] = square_errors(table, own, others)
        crossed = at.crossed + symmetric(y[:, None, :, None] * mean[:, :, None])
        squares, products = self.noise.put(some, y, mean, at, self._keys, table)
        self.products[some] = crossed[:, :, *self.pairs] + squares.products(y) - products.mixed(y)
        # but for v v' and v u', whose matrices are the same for all queries
        linear = symmetric((products.shift - squares.value)[..., None] * y[:, None, None])
        linear = linear + squares.one[..., None, None] * (y[:, :, None] * y[:, None])[:, None]
        self.second[group] += np.tensordot(share, crossed + linear, axes=1)
        found = influence(
            table,
            own,
            y,
            share,
            tokens=self.keys,
            sizes=n,
            others=self._others - 1,
            pairs=self.pairs,
        )
        factor = (n - 1 if self.tokens else n)[:, None]
        self.on_mean[group] += factor * found.on_mean(self._z_pairs)
        self.on_products[group] += factor * found.on_products(self._z_pairs)
        by_square = at.squares @ table.functions.square
        by_weight = at.products @ table.functions.weight
        both = np.concatenate([by_square, by_weight], axis=1)
        return table.at_keys(share[:, None, None] * both)
