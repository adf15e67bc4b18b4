"""Laplace integrals of one query over a cloud of keys: what every n has in common.

A query attends n keys drawn with replacement from a cloud of N. Its weights over the cloud are
``w_j`` (mean 1), its limit is ``y``, and ``r_j = v_j - y``. Each key has a shift ``u_j`` (mean 0),
see :mod:`cloud_query`. Since ``1/Z = int e^{-l Z} dl``, every expectation over the draws is an
integral over l of products of single-key expectations,

    f = E e^{-l w},               h = E[u e^{-l w}],            g = E[w r e^{-l w}],
    J = E[w r u' e^{-l w}],       G = E[w^2 r r' e^{-l w}],

and n enters only through powers of f. The nodes in l double: ``D = 1 - e^{-l w}`` then obeys
``D(2 l) = D (2 - D)``, which keeps its relative accuracy where l is small. Where no key of middling
weight stands between heavy and light ones, how much lighter these are does not matter, and the
weights are moved together.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Self

import numpy as np
from numpy.typing import NDArray

from esscher.core.validation import Array

Single = NDArray[np.float32]
Pairs = tuple[NDArray[np.int64], NDArray[np.int64]]

#: Nodes are this far apart in ln l; the trapezoidal rule is then good to about 1e-4.
STEP = float(np.log(2.0))
#: The integrals are cut where what is left is e to minus this power of them: below, where they fall
#: at least like l, and above, where they fall like f^n.
BELOW, ABOVE = 11.0, 14.0
#: ``e^{-l w}`` is nothing from this l w on.
GONE = 80.0
#: Most nodes of a query, whatever its weights.
MOST_NODES = 1000
#: Nodes after which D is computed anew: what was too small for single precision may count by now.
ANEW = 40
#: Rows of memory that are there from the beginning, and beyond what is needed.
SPARE = 48
#: Logits further apart than this in all have gaps, which are cut to ``GAP``: keys e^-25 times
#: lighter play no part until all heavier ones are missed.
FAR, GAP = 60.0, 25.0


@dataclass(frozen=True, eq=False)
class KeyColumns:
    """What sums over keys are made of: v and u, their norms, and products along pairs.

    Sums with any weights give those of ``r = v - y`` of every query.

    Attributes
    ----------
    mixed
        ``v_a u_b + v_b u_a``, ``v``, ``u`` and 1, [key, column].
    squared
        ``v_a v_b``, ``v``, ``|v|^2`` and 1, [key, column].
    values, shifts
        v and u, [key, d]; u has no columns where only the map error is asked for.
    pairs
        Coordinates a and b.
    inner
        ``<v, u>``, [key]; 0 without shifts.
    """

    mixed: Single
    squared: Single
    values: Single
    shifts: Single
    pairs: Pairs
    inner: Single

    @classmethod
    def of(cls, values: Array, shifts: Array, pairs: Pairs) -> KeyColumns:
        """Of the values and shifts of all keys."""
        a, b = pairs
        one, norms = np.ones((len(values), 1)), np.sum(values**2, axis=1)[:, None]
        crossed = values[:, a] * shifts[:, b] + values[:, b] * shifts[:, a]
        mixed = np.hstack([crossed, values, shifts, one]).astype(np.float32)
        squared = np.hstack([values[:, a] * values[:, b], values, norms, one]).astype(np.float32)
        v, u = values.astype(np.float32), shifts.astype(np.float32)
        inner = np.sum(v * u, axis=1) if u.shape[1] else np.zeros(len(v), dtype=np.float32)
        return cls(mixed, squared, v, u, pairs, inner)

    def mixed_sums(self, weights: Single) -> MixedSums:
        """Sums over the keys with weights [row, key], of products with shifts."""
        total = (weights @ self.mixed).astype(np.float64)
        return MixedSums(total, self.values.shape[1], self.pairs)

    def squared_sums(self, weights: Single) -> SquaredSums:
        """Sums over the keys with weights [row, key], of squares."""
        total = (weights @ self.squared).astype(np.float64)
        return SquaredSums(total, self.values.shape[1], self.pairs)


@dataclass(frozen=True, eq=False)
class _KeySums:
    """Weighted sums over columns of :class:`KeyColumns`, [row, column]: pairs, v, others, and 1.

    ``dim`` is that of the values.
    """

    total: Array
    dim: int
    pairs: Pairs

    def combined(self, factors: Array) -> Self:
        """Sums with weights that are sums of these, with factors [new row, row]."""
        return replace(self, total=factors @ self.total)

    @property
    def value(self) -> Array:
        """Sums of v."""
        first = len(self.pairs[0])
        return self.total[:, first : first + self.dim]

    @property
    def one(self) -> Array:
        """Sums of the weights."""
        return self.total[:, -1]


class MixedSums(_KeySums):
    """Sums over the columns ``mixed``."""

    @property
    def shift(self) -> Array:
        """Sums of u."""
        return self.total[:, len(self.pairs[0]) + self.dim : -1]

    def about(self, y: Array) -> Array:
        """Sums of ``r = v - y``."""
        return np.asarray(self.value - self.one[:, None] * y)

    def along(self, y: Array) -> Array:
        """Sums of ``r_a u_b + r_b u_a`` along the pairs."""
        (a, b), shift = self.pairs, self.shift
        return np.asarray(self.total[:, : len(a)] - shift[:, a] * y[b] - shift[:, b] * y[a])


class SquaredSums(_KeySums):
    """Sums over the columns ``squared``."""

    def norms_about(self, y: Array) -> Array:
        """Sums of ``|r|^2``, ``r = v - y``."""
        return np.asarray(self.total[:, -2] - 2 * self.value @ y + self.one * float(y @ y))

    def along(self, y: Array) -> Array:
        """Sums of ``r_a r_b`` along the pairs."""
        (a, b), value = self.pairs, self.value
        linear = value[:, a] * y[b] + value[:, b] * y[a]
        return np.asarray(self.total[:, : len(a)] - linear + self.one[:, None] * (y[a] * y[b]))


class Room:
    """Memory for rows of numbers, one per key: a query leaves it to the next.

    Fresh memory for every query would cost more than the arithmetic done on it: the system clears
    every page of it.
    """

    def __init__(self) -> None:
        self._arrays: dict[str, Single] = {}

    def rows(self, name: str, count: int, keys: int) -> Single:
        """Rows with anything in them; what has the same name is overwritten."""
        array = self._arrays.get(name)
        if array is None or len(array) < count or array.shape[1] != keys:
            array = self._arrays[name] = np.empty((count + SPARE, keys), dtype=np.float32)
        return array[:count]


@dataclass(frozen=True, eq=False)
class QueryTable:
    """Single-key expectations of one query, one row per node.

    Everything is made dimensionless by powers of l, so that no number is large.

    Attributes
    ----------
    nodes
        The values of l.
    weights
        Weights of the keys, of mean 1.
    gap, weight, square
        ``D``, ``l w e^{-l w}`` and ``(l w)^2 e^{-l w}`` of every key, [node, key].
    log_f
        ``ln f``.
    zeroth, first
        ``h`` and ``l g``, [node, d].
    second
        ``l^2 tr G``.
    mixed_pairs, second_pairs
        ``l (J_ab + J_ba)`` and ``l^2 G_ab`` along pairs of coordinates, [node, pair].
    by_weight, by_square
        Sums over the keys with these two as weights.
    """

    nodes: Array
    weights: Array
    gap: Single
    weight: Single
    square: Single
    log_f: Array
    zeroth: Array
    first: Array
    second: Array
    mixed_pairs: Array
    second_pairs: Array
    by_weight: MixedSums
    by_square: SquaredSums

    def powers(self, counts: Array) -> Array:
        """``f^count`` at each node for each count (negative ones count as 0), [count, node]."""
        return np.asarray(np.exp(np.maximum(counts, 0.0)[:, None] * self.log_f))


def query_table(
    logits: Array,
    keys: KeyColumns,
    output: Array,
    fewest: float,
    most: float,
    room: Room | None = None,
) -> QueryTable:
    """Tabulate a query, for all n from ``fewest`` to ``most``.

    Parameters
    ----------
    logits
        Of the keys of the cloud.
    keys
        Their values and shifts.
    output
        The limit y.
    fewest, most
        Smallest and largest number of keys.
    room
        Memory for what there is of every key: it is gone when the next query is tabulated there.
    """
    count = len(logits)
    top = logits.max()
    # scipy's logsumexp takes longer than all that follows, for a small cloud
    log_w = _near(logits - top - np.log(np.exp(logits - top).mean()))
    w = np.exp(log_w)
    node = float(np.exp(-max(float(np.log(most)), float(log_w.max())) - BELOW))
    room = room or Room()
    gap, missing = _gaps(node, w, fewest, room)
    nodes = np.asarray(node * 2.0 ** np.arange(len(gap)))
    scaled = _scaled(nodes, w, room)
    weight, square = (room.rows(name, len(nodes), count) for name in ("weight", "square"))
    np.exp(np.negative(scaled, out=weight), out=weight)
    weight *= scaled
    np.multiply(scaled, weight, out=square)
    by_weight, by_square = keys.mixed_sums(weight), keys.squared_sums(square)
    # E[w r] = 0: while l is small, g is better seen as a difference from that
    early = int(np.searchsorted(nodes * float(np.mean(w * w)), 0.5))
    first = by_weight.about(output)
    moment = np.multiply(scaled[:early], gap[:early], out=scaled[:early])
    total = moment.sum(axis=1, dtype=np.float64)[:, None]
    first[:early] = total * output - (moment @ keys.values).astype(np.float64)
    return QueryTable(
        nodes=nodes,
        weights=w,
        gap=gap,
        weight=weight,
        square=square,
        log_f=np.log1p(-missing),
        zeroth=-(gap @ keys.shifts).astype(np.float64) / count,
        first=first / count,
        second=by_square.norms_about(output) / count,
        mixed_pairs=by_weight.along(output) / count,
        second_pairs=by_square.along(output) / count,
        by_weight=by_weight,
        by_square=by_square,
    )


def _gaps(node: float, w: Array, fewest: float, room: Room) -> tuple[Single, Array]:
    """``D`` at nodes from the first on, [node, key], and its mean over the keys."""
    gaps = room.rows("gap", SPARE, len(w))
    gaps[0] = -np.expm1(-node * w)
    missing: list[float] = []
    while len(missing) < MOST_NODES:
        at = len(missing)
        share = float(np.add.reduce(gaps[at], dtype=np.float64)) / len(w)
        if share >= 1.0 or max(fewest - 2, 0.25) * np.log1p(-share) < -ABOVE:
            break
        missing.append(share)
        if at + 1 == len(gaps):
            before, gaps = gaps, room.rows("gap", 2 * len(gaps), len(w))
            gaps[: len(before)] = before
        if (at + 1) % ANEW:
            np.subtract(2, gaps[at], out=gaps[at + 1])
            gaps[at + 1] *= gaps[at]
        else:
            gaps[at + 1] = -np.expm1(-(node * 2.0 ** (at + 1)) * w)
    return gaps[: len(missing)], np.array(missing)


def _scaled(nodes: Array, w: Array, room: Room) -> Single:
    """``l w``, up to ``GONE``, [node, key]: doubling is exact, so few rows are computed."""
    scaled = room.rows("scaled", len(nodes), len(w))
    for start in range(0, len(nodes), ANEW):
        some = scaled[start : start + ANEW]
        first = np.minimum(nodes[start] * w, GONE).astype(np.float32)
        doubled = (2.0 ** np.arange(len(some))).astype(np.float32)
        np.minimum(np.multiply(doubled[:, None], first, out=some), np.float32(GONE), out=some)
    return scaled


def _near(log_w: Array) -> Array:
    """Logarithms of weights, with gaps cut if they are far apart."""
    if np.ptp(log_w) < FAR:
        return log_w
    order = np.argsort(-log_w)
    steps = np.minimum(-np.diff(log_w[order], prepend=log_w[order[0]]), GAP)
    near = np.empty_like(log_w)
    near[order] = log_w[order[0]] - np.cumsum(steps)
    return near
