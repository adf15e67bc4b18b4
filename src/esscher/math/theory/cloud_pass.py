"""One pass over sampled queries of a cloud: sums, group by group, of what all errors are made of.

See :mod:`cloud`. Coordinates are the principal axes of the outputs, about their mean.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray
from scipy.special import logsumexp

from esscher.core.validation import Array
from esscher.math.coupling import row_covariance
from esscher.math.theory.cloud_influence import Influence, Shared, coefficients, features
from esscher.math.theory.cloud_query import (
    OwnKey,
    QueryErrors,
    query_errors,
    square_errors,
    symmetric,
)
from esscher.math.theory.cloud_sampling import Chosen, choose, near_order
from esscher.math.theory.cloud_table import KeyColumns, Pairs, Single, query_table

Rows = NDArray[np.int64]


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
    """

    values: Array
    outputs: Array
    logits: Callable[[Rows], Array]
    own: Rows | None


@dataclass(frozen=True)
class Effort:
    """How much is sampled: queries, groups of them (3 or more), tokens z, pairs of coordinates."""

    queries: int = 128
    groups: int = 8
    tokens: int = 512
    pairs: int = 32


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
    mean, products
        Of each query: ``E (e - s)`` [query, size, d], and what products of its shifted output
        along the pairs are larger than at the limit, [query, size, pair].
    squares, map_squares
        ``E |e|^2`` of each query at ``n`` and at ``grid``.
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
        variances, axes = np.linalg.eigh(row_covariance(cloud.outputs))
        self.outputs = (cloud.outputs - origin) @ axes
        self.values = (cloud.values - origin) @ axes
        self.rows, self.group, self.share = self._choose_queries(effort, rng)
        self._logits = np.asarray(cloud.logits(self.rows), dtype=np.float64)
        influence = self._first_influence()
        self.shifts = influence - influence.mean(axis=0)
        self._spread = row_covariance(self.shifts)
        whole = self.outputs + influence[self._own] if self.tokens else influence
        self.z = choose(np.sum(whole**2, axis=1), effort.tokens, rng)
        self.pairs, self.chosen_pairs = self._choose_pairs(variances, effort.pairs, rng)
        self._keys = KeyColumns.of(self.values, self.shifts, self.pairs)
        members = self.z.members
        self.keys = self._own[np.concatenate([members, self.rows])] if self.tokens else members
        groups, s, p = effort.groups, len(n), len(self.pairs[0])
        self.mean = np.empty((len(self.rows), s, d))
        self.products = np.empty((len(self.rows), s, p))
        self.squares = np.empty((len(self.rows), s))
        self.map_squares = np.empty((len(self.rows), len(grid)))
        self.second = np.zeros((groups, s, d, d))
        self.on_mean = np.empty((groups, len(self.keys), s, d))
        self.on_products = np.empty((groups, len(self.keys), s, p))
        for g in range(groups):
            self._add(g, np.flatnonzero(self.group == g))

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

    def _choose_queries(self, effort: Effort, rng: np.random.Generator) -> tuple[Rows, Rows, Array]:
        """Queries of each group, all over the outputs; those far out are likelier, and weigh less.

        Groups are chosen independently of each other. Returns queries, groups and weights, which
        sum to 1 in each group.
        """
        far = np.sum(self.outputs**2, axis=1)
        order = near_order(self.outputs)
        size = effort.queries // effort.groups
        chosen = [choose(far, size, rng, order) for _ in range(effort.groups)]
        weights = [1 / part.chances / np.sum(1 / part.chances) for part in chosen]
        group = np.repeat(np.arange(effort.groups), [len(part.members) for part in chosen])
        rows = np.concatenate([part.members for part in chosen])
        return rows, group, np.concatenate(weights)

    def _first_influence(self) -> Array:
        """What each key does to the mean output at the middle size, to first order, [key, d]."""
        weights = np.exp(self._logits - logsumexp(self._logits, axis=1, keepdims=True))
        weights *= weights.shape[1]
        weights /= 1 + weights / np.exp(np.log(self.n).mean())
        share = self.share / self.share.sum()
        influence = (share @ weights)[:, None] * self.values
        return np.asarray(influence - weights.T @ (share[:, None] * self.outputs[self.rows]))

    def _choose_pairs(
        self, variances: Array, count: int, rng: np.random.Generator
    ) -> tuple[Pairs, Chosen]:
        """Pairs of coordinates, with chances near their share of the covariance's error."""
        a, b = np.triu_indices(len(variances))
        noise = self.values.var(axis=0) / np.exp(np.log(self.n).mean())
        along = np.maximum(variances, 0) + noise
        chosen = choose(along[a] * along[b] * np.where(a == b, 1, 2), count, rng)
        return (a[chosen.members], b[chosen.members]), chosen

    def _add(self, group: int, members: Rows) -> None:
        """Add the queries of a group."""
        s, d = len(self.n), self.values.shape[1]
        columns: list[tuple[Single, Single]] = []
        shared = Shared(np.zeros((s, d)), np.zeros(s))
        squares, products = np.zeros((2, s, len(self.values)), dtype=np.float32)
        for i in members:
            more, above, at = self._query(int(i), group)
            share = float(self.share[i])
            columns.append((more[0], np.float32(share) * more[1]))
            shared = shared + above.scaled(share)
            squares += np.float32(share) * at.squares
            products += np.float32(share) * at.products
        seen, weights = (np.concatenate(parts) for parts in zip(*columns, strict=True))
        influence = Influence.of(seen.T @ weights, shared, d)
        factor = (self.n - 1 if self.tokens else self.n)[:, None]
        self.on_mean[group] = factor * influence.on_mean(self.z_values)
        along = influence.on_products(self.z_values, self.z_shifts, self.pairs)
        self.on_products[group] = factor * along
        if self.tokens:
            limits = self.outputs[np.concatenate([self.z.members, self.rows])]
            a, b = self.pairs
            self.on_mean[group] += limits[:, None]
            self.on_products[group] += (limits[:, a] * limits[:, b])[:, None]
        v, u = self._keys.values, self._keys.shifts
        self.second[group] += [(v * w[:, None]).T @ v for w in squares]
        self.second[group] -= symmetric(np.array([(v * w[:, None]).T @ u for w in products]))

    def _query(self, i: int, group: int) -> tuple[tuple[Single, Single], Shared, QueryErrors]:
        """Add a query; return what its group sums over tokens and over keys."""
        row, n = int(self.rows[i]), self.n
        y = self.outputs[row]
        ends = min(n[0], self.grid[0]), max(n[-1], self.grid[-1])
        table = query_table(self._logits[i], self._keys, y, *ends)
        own = OwnKey.none(table, len(y))
        if self.tokens:
            key = int(self._own[row])
            own = OwnKey.of(table, key, self.values[key] - y, self.shifts[key])
        at = query_errors(table, own, self._others, n, self._spread)
        self.mean[i] = at.mean - own.shift / n[:, None]
        self.squares[i] = at.square
        others = self.grid - 1 if self.tokens else self.grid
        self.map_squares[i] = square_errors(table, own, others)
        crossed = at.crossed + symmetric(y[:, None] * self.mean[i][:, None, :])
        squares, products = self._keys.sums(at.squares), self._keys.sums(at.products)
        along = squares.squares_along(y) - products.mixed_along(y)
        self.products[i] = crossed[:, *self.pairs] + along
        # but for v v' and v u', whose matrices are the same for all queries
        linear = symmetric((products.shift - squares.value)[:, :, None] * y)
        linear = linear + squares.one[:, None, None] * np.outer(y, y)
        self.second[group] += self.share[i] * (crossed + linear)
        weights, shared = coefficients(table, own, n, self._others - 1, y, self.pairs)
        return (features(table, self.keys), weights), shared, at
