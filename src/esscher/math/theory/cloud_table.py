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

from dataclasses import dataclass

import numpy as np
import scipy
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
#: Logits further apart than this in all have gaps, which are cut to ``GAP``: keys e^-25 times
#: lighter play no part until all heavier ones are missed.
FAR, GAP = 60.0, 25.0


@dataclass(frozen=True, eq=False)
class KeyColumns:
    """What sums over keys are made of: v and u, their norms, and products along pairs.

    Sums with any weights give those of ``r = v - y`` of every query.

    Attributes
    ----------
    columns
        ``v_a v_b``, ``v_a u_b + v_b u_a``, ``v``, ``u``, ``|v|^2`` and 1, [key, column].
    values, shifts
        v and u, [key, d]; u has no columns where only the map error is asked for.
    pairs
        Coordinates a and b.
    inner
        ``<v, u>``, [key]; 0 without shifts.
    """

    columns: Single
    values: Single
    shifts: Single
    pairs: Pairs
    inner: Single

    @classmethod
    def of(cls, values: Array, shifts: Array, pairs: Pairs) -> KeyColumns:
        """Of the values and shifts of all keys."""
        a, b = pairs
        mixed = values[:, a] * shifts[:, b] + values[:, b] * shifts[:, a]
        parts = [values[:, a] * values[:, b], mixed, values, shifts]
        norms = np.sum(values**2, axis=1)[:, None]
        columns = np.hstack([*parts, norms, np.ones((len(values), 1))]).astype(np.float32)
        v, u = values.astype(np.float32), shifts.astype(np.float32)
        inner = np.sum(v * u, axis=1) if u.shape[1] else np.zeros(len(v), dtype=np.float32)
        return cls(columns, v, u, pairs, inner)

    def sums(self, weights: Single) -> KeySums:
        """Sums over the keys with weights [row, key]."""
        total = (weights @ self.columns).astype(np.float64)
        p, d, e = len(self.pairs[0]), self.values.shape[1], self.shifts.shape[1]
        paired, mixed, value, shift, norm = np.split(total[:, :-1], np.cumsum([p, p, d, e]), axis=1)
        return KeySums(paired, mixed, value, shift, norm[:, 0], total[:, -1], self.pairs)


@dataclass(frozen=True, eq=False)
class KeySums:
    """Weighted sums over keys, one row per set of weights: see :class:`KeyColumns`."""

    paired: Array
    mixed: Array
    value: Array
    shift: Array
    norm: Array
    one: Array
    pairs: Pairs

    def about(self, y: Array) -> Array:
        """Sums of ``r = v - y``."""
        return np.asarray(self.value - self.one[:, None] * y)

    def norms_about(self, y: Array) -> Array:
        """Sums of ``|r|^2``."""
        return np.asarray(self.norm - 2 * self.value @ y + self.one * float(y @ y))

    def squares_along(self, y: Array) -> Array:
        """Sums of ``r_a r_b`` along the pairs."""
        a, b = self.pairs
        linear = self.value[:, a] * y[b] + self.value[:, b] * y[a]
        return np.asarray(self.paired - linear + self.one[:, None] * (y[a] * y[b]))

    def mixed_along(self, y: Array) -> Array:
        """Sums of ``r_a u_b + r_b u_a`` along the pairs."""
        a, b = self.pairs
        return np.asarray(self.mixed - self.shift[:, a] * y[b] - self.shift[:, b] * y[a])


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

    def powers(self, counts: Array) -> Array:
        """``f^count`` at each node for each count (negative ones count as 0), [count, node]."""
        return np.asarray(np.exp(np.maximum(counts, 0.0)[:, None] * self.log_f))


def query_table(
    logits: Array, keys: KeyColumns, output: Array, fewest: float, most: float
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
    """
    count = len(logits)
    log_w = _near(logits - scipy.special.logsumexp(logits) + np.log(count))
    w = np.exp(log_w)
    node = float(np.exp(-max(float(np.log(most)), float(log_w.max())) - BELOW))
    gap = -np.expm1(-node * w).astype(np.float32)
    gaps: list[Single] = []
    missing: list[float] = []
    while len(gaps) < MOST_NODES:
        share = float(gap.mean(dtype=np.float64))
        if share >= 1.0 or max(fewest - 2, 0.25) * np.log1p(-share) < -ABOVE:
            break
        gaps.append(gap)
        missing.append(share)
        if len(gaps) % ANEW:
            gap = gap * (2 - gap)
        else:
            gap = -np.expm1(-(node * 2.0 ** len(gaps)) * w).astype(np.float32)
    nodes, gap_rows = np.asarray(node * 2.0 ** np.arange(len(gaps))), np.stack(gaps)
    scaled = np.minimum(nodes[:, None] * w, GONE).astype(np.float32)
    weight = scaled * np.exp(-scaled)
    square = scaled * weight
    by_weight, by_square = keys.sums(weight), keys.sums(square)
    # E[w r] = 0: while l is small, g is better seen as a difference from that
    early = int(np.searchsorted(nodes * float(np.mean(w * w)), 0.5))
    first = by_weight.about(output)
    moment = scaled[:early] * gap_rows[:early]
    total = moment.sum(axis=1, dtype=np.float64)[:, None]
    first[:early] = total * output - (moment @ keys.values).astype(np.float64)
    return QueryTable(
        nodes=nodes,
        weights=w,
        gap=gap_rows,
        weight=weight,
        square=square,
        log_f=np.log1p(-np.array(missing)),
        zeroth=-(gap_rows @ keys.shifts).astype(np.float64) / count,
        first=first / count,
        second=by_square.norms_about(output) / count,
        mixed_pairs=by_weight.mixed_along(output) / count,
        second_pairs=by_square.squares_along(output) / count,
    )


def _near(log_w: Array) -> Array:
    """Logarithms of weights, with gaps cut if they are far apart."""
    if np.ptp(log_w) < FAR:
        return log_w
    order = np.argsort(-log_w)
    steps = np.minimum(-np.diff(log_w[order], prepend=log_w[order[0]]), GAP)
    near = np.empty_like(log_w)
    near[order] = log_w[order[0]] - np.cumsum(steps)
    return near
