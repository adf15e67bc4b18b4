"""Patterns that choose keys by their places alone: near ones, first ones, even distances, blocks.

The parts that they are made of return positions [queries, n], for queries that may see more keys
than all parts together take.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from esscher.core.errors import InputError
from esscher.core.streams import random_stream
from esscher.engine.patterns.pattern import Pattern, Positions, Selection, Sight, View, as_selection

if TYPE_CHECKING:
    from torch import Tensor


#: Keys at the beginning that are kept: the number that StreamingLLM uses.
SINKS = 4


def first_keys(view: View, count: int) -> Positions:
    """The first keys that each query may see."""
    return np.asarray(view.first[:, None] + np.arange(count))


def last_keys(view: View, count: int) -> Positions:
    """The last keys that each query may see."""
    return np.asarray(view.stop[:, None] - np.arange(1, count + 1))


def near_keys(view: View, count: int, *, after: int = 0, before: int = 0) -> Positions:
    """The nearest keys: around the query, or up to it where it sees nothing behind itself.

    Parameters
    ----------
    view
        The queries, and what they may see.
    count
        Number of keys.
    after, before
        Keys at the beginning and at the end of the view that are left to other parts.
    """
    low, high = view.first + after, view.stop - before - count
    start = np.clip(view.queries - count // 2, low, high)
    return np.asarray(start[:, None] + np.arange(count))


class Window(Pattern):
    """The r nearest keys: around the query, or its own and the r - 1 before it in a decoder."""

    name = "window"
    title = "sliding window"
    smallest = 1

    def _select(
        self, view: View, budget: int, rng: np.random.Generator, logits: Tensor | None
    ) -> Selection:
        return as_selection([near_keys(view, budget)])


@dataclass(frozen=True)
class Streaming(Pattern):
    """The first keys, which often act as sinks, and the nearest ones (StreamingLLM)."""

    sinks: int = SINKS

    name = "streaming"
    title = "sinks + recent"
    smallest = SINKS + 1

    def _select(
        self, view: View, budget: int, rng: np.random.Generator, logits: Tensor | None
    ) -> Selection:
        recent = near_keys(view, budget - self.sinks, after=self.sinks)
        return as_selection([first_keys(view, self.sinks), recent])


@dataclass(frozen=True)
class Longformer(Pattern):
    """A window, and the first tokens as global ones, which everyone sees and which see everything.

    ``share`` of the budget, at least one key, is global. In a decoder global tokens see only what
    is before them, as all others do.
    """

    share: float = 1 / 8

    name = "longformer"
    title = "window + global"
    smallest = 2

    def _select(
        self, view: View, budget: int, rng: np.random.Generator, logits: Tensor | None
    ) -> Selection:
        count = max(1, int(self.share * budget))
        parts = [first_keys(view, count), near_keys(view, budget - count, after=count)]
        return as_selection(parts, complete=view.queries < view.first + count)


class Strided(Pattern):
    """Half of the budget is a window, the other half spread evenly over all other visible keys.

    As in the Sparse Transformer.
    """

    name = "strided"
    title = "window + strided"
    smallest = 2

    def _select(
        self, view: View, budget: int, rng: np.random.Generator, logits: Tensor | None
    ) -> Selection:
        near = near_keys(view, budget // 2)
        count, rest = budget - budget // 2, view.counts - budget // 2
        # middles of equal pieces of the rest, then past the window
        even = ((np.arange(count) + 0.5) * rest[:, None] / count).astype(np.int64)
        spread = view.first[:, None] + even
        spread += np.where(spread >= near[:, :1], budget // 2, 0)
        return as_selection([near, spread])


class Block(Pattern):
    """The block of r keys that a query lies in.

    In a decoder blocks have r/2 keys, and a query sees its own block up to itself and the one
    before: between r/2 and r keys.
    """

    name = "block"
    title = "local blocks"
    smallest = 2

    def _select(
        self, view: View, budget: int, rng: np.random.Generator, logits: Tensor | None
    ) -> Selection:
        if not view.causal:
            start = np.clip(view.queries // budget * budget, view.first, view.stop - budget)
            return as_selection([start[:, None] + np.arange(budget)])
        half = budget // 2
        # a query beyond the keys (a cache) belongs to the last block
        own = np.minimum(view.queries, view.stop - 1) // half * half
        keys = (own - half)[:, None] + np.arange(2 * half)
        inside = (keys >= view.first[:, None]) & (keys < view.stop[:, None])
        missing = np.where(inside, 0.0, -np.inf)
        return as_selection([np.clip(keys, 0, view.keys - 1)], log_weights=missing)


# Patterns whose keys may lie anywhere: drawn at random, or found by their logits.


def random_order(keys: int, rng: np.random.Generator) -> Positions:
    """One random order of all keys: a query takes the first ones that it may see.

    All queries that may see the same keys take the same ones, as with a cache from which keys are
    dropped at random; larger budgets contain the smaller ones.
    """
    return rng.permutation(keys)


def random_keys(view: View, count: int, order: Positions, taken: Positions | None) -> Positions:
    """The first keys of a random order that each query may see and has not taken yet.

    Parameters
    ----------
    view
        The queries, and what they may see.
    count
        Number of keys.
    order
        Random order of all keys, or [queries, keys], one for each query.
    taken
        Keys of the other parts, [queries, n].
    """
    free = view.visible()
    if taken is not None:
        np.put_along_axis(free, taken, False, axis=1)
    orders = np.broadcast_to(order, free.shape)
    in_order = np.take_along_axis(free, orders, axis=1)
    chosen = in_order & (np.cumsum(in_order, axis=1) <= count)
    return np.asarray(orders[chosen].reshape(len(free), count))


def block_orders(view: View, block: int, rng: np.random.Generator) -> Positions:
    """A random order of all keys for every block of query positions, [queries, keys]."""
    seed = int(rng.integers(2**62))
    numbers, at = np.unique(view.queries // block, return_inverse=True)
    orders = [random_stream(seed, "query block", int(b)).permutation(view.keys) for b in numbers]
    return np.asarray(np.stack(orders)[at])


class UniformRandom(Pattern):
    """r of the visible keys, uniformly without replacement: what all others are compared with.

    The queries share one random order of the keys, as with a cache that keeps a uniform sample of
    all keys so far. Every key has the same chance, so that no log-weights are needed.
    """

    name = "random"
    title = "uniform random keys"
    is_random = True
    smallest = 1

    def _select(
        self, view: View, budget: int, rng: np.random.Generator, logits: Tensor | None
    ) -> Selection:
        import torch

        order = random_order(view.keys, rng)
        if np.ptp(view.first) == 0 and np.ptp(view.stop) == 0:
            visible = order[(order >= view.first[0]) & (order < view.stop[0])]
            return Selection(torch.from_numpy(visible[:budget].copy()))
        return as_selection([random_keys(view, budget, order, None)])


@dataclass(frozen=True)
class Corrected(Pattern):
    """Sinks and recent keys for certain, n of the E others at random with log-weight ln(E/n).

    Each sampled key stands for E/n of its kind, so that sums over the keys are estimated without
    bias, and their ratio, the attention, consistently. ``recent`` is the share of the budget
    without sinks that recent keys get.
    """

    sinks: int = SINKS
    recent: float = 0.5

    name = "corrected"
    title = "sinks + recent + random, corrected"
    is_random = True
    smallest = SINKS + 2

    def _select(
        self, view: View, budget: int, rng: np.random.Generator, logits: Tensor | None
    ) -> Selection:
        near = int(self.recent * (budget - self.sinks))
        sampled = budget - self.sinks - near
        certain = [first_keys(view, self.sinks), near_keys(view, near, after=self.sinks)]
        order = random_order(view.keys, rng)
        drawn = random_keys(view, sampled, order, np.concatenate(certain, axis=1))
        others = view.counts - self.sinks - near
        log_weights = np.zeros((len(others), budget))
        log_weights[:, budget - sampled :] = np.log(others / sampled)[:, None]
        return as_selection([*certain, drawn], log_weights)


@dataclass(frozen=True)
class BigBird(Pattern):
    """Global : window : random keys = 2 : 3 : 3, the shares of the published models.

    Global tokens are the first ones, in an encoder half of them the last ones; they see everything
    they may. Random keys are drawn among the others for every block of 64 query positions, and
    enter the softmax uncorrected, as published.
    """

    global_share: float = 2 / 8
    window_share: float = 3 / 8
    block: int = 64

    name = "bigbird"
    title = "window + random + global"
    is_random = True
    smallest = 8

    def _select(
        self, view: View, budget: int, rng: np.random.Generator, logits: Tensor | None
    ) -> Selection:
        count, near = int(self.global_share * budget), int(self.window_share * budget)
        behind = 0 if view.causal else count // 2
        ahead = count - behind
        fixed = [
            first_keys(view, ahead),
            last_keys(view, behind),
            near_keys(view, near, after=ahead, before=behind),
        ]
        orders = block_orders(view, self.block, rng)
        drawn = random_keys(view, budget - count - near, orders, np.concatenate(fixed, axis=1))
        is_global = (view.queries < view.first + ahead) | (view.queries >= view.stop - behind)
        return as_selection([*fixed, drawn], complete=is_global if not view.causal else None)


class TopK(Pattern):
    """The r visible keys with the largest logits, by query and head.

    The best choice without correction, and not a cheap one: it looks at all logits. What it leaves
    out is the tail of the weights, not a random part of them.
    """

    name = "topk"
    title = "largest logits"
    smallest = 1

    def _select(
        self, view: View, budget: int, rng: np.random.Generator, logits: Tensor | None
    ) -> Selection:
        if logits is None:
            raise InputError("the pattern 'topk' chooses by the logits; hand them to select")
        return Selection(logits.topk(budget, dim=-1, sorted=False).indices)


# Linformer: keys and values are mixed by a random matrix into r new ones.
#
# Not a selection: every query sees every visible key, through r mixtures ``k~ = P k``, ``v~ = P
# v``. The logits of the mixtures are the mixtures of the logits, so that P acts on them, and there
# are no log-weights. "Seeing all keys" (r = N) does not mean dense attention here: softmax is
# applied to mixtures, and only a P with a single 1 in every row and column (a permutation) commutes
# with it. An orthonormal P of full size does not, a Gaussian one even less. Averages over groups of
# keys (``Pooled``) are dense attention at r = N, where every group is one key.
#
# In a decoder a query's mixtures contain only what it may see (the published model is an encoder).

#: Kinds of random matrices.
MATRICES = ("gaussian", "orthonormal")


@dataclass(frozen=True, eq=False)
class Mixing:
    """All keys seen through r mixtures, the rows of ``matrix`` [r, keys]."""

    matrix: Tensor

    def weights(self, logits: Tensor) -> Tensor:
        """``softmax(logits P') P``: the total weight of each key; need not be positive."""
        import torch

        matrix = self.matrix.to(logits)
        seen = torch.isfinite(logits)
        mixed = torch.softmax(logits.masked_fill(~seen, 0.0) @ matrix.T, dim=-1)
        return (mixed @ matrix).masked_fill(~seen, 0.0)

    def attend(self, logits: Tensor, values: Tensor) -> Tensor:
        """Outputs over the mixed values."""
        return self.weights(logits) @ values


@dataclass(frozen=True, eq=False)
class Groups:
    """All keys seen through averages over r groups; ``group`` [keys] says to which one belongs."""

    group: Tensor
    count: int

    def weights(self, logits: Tensor) -> Tensor:
        """The weight of a group, divided among those of its keys that are visible."""
        import torch

        group = self.group.to(logits.device)
        seen = torch.isfinite(logits)
        shape = (*logits.shape[:-1], self.count)
        members = logits.new_zeros(shape).index_add_(-1, group, seen.to(logits.dtype))
        sums = logits.new_zeros(shape).index_add_(-1, group, logits.masked_fill(~seen, 0.0))
        # a group without a visible key does not exist for this query
        means = torch.where(members > 0, sums / members.clamp(min=1), -torch.inf)
        shares = torch.softmax(means, dim=-1) / members.clamp(min=1)
        return torch.gather(shares, -1, group.expand(logits.shape)).masked_fill(~seen, 0.0)

    def attend(self, logits: Tensor, values: Tensor) -> Tensor:
        """Outputs over the averaged values."""
        return self.weights(logits) @ values


@dataclass(frozen=True)
class Linformer(Pattern):
    """Keys and values mixed by a random matrix P.

    Parameters
    ----------
    matrix
        ``"gaussian"``: independent entries N(0, 1/r), as in the published theorem (where keys and
        values carry further constant factors). ``"orthonormal"``: r orthonormal rows.
    """

    matrix: str = "gaussian"

    name = "linformer"
    title = "random projection of keys and values"
    is_random = True
    is_exact = False
    smallest = 1

    def __post_init__(self) -> None:
        if self.matrix not in MATRICES:
            raise InputError(f"matrix is {self.matrix!r}; choose from {', '.join(MATRICES)}")

    def select(
        self, view: View, budget: int, rng: np.random.Generator, logits: Tensor | None = None
    ) -> Sight:
        """The mixtures; at most as many as there are keys."""
        import torch

        r = min(self.check(budget), view.keys)
        entries = rng.standard_normal((r, view.keys), dtype=np.float32)
        if self.matrix == "orthonormal":
            rows = np.linalg.qr(entries.astype(np.float64).T)[0].T
            return Mixing(torch.from_numpy(np.ascontiguousarray(rows)))
        entries *= np.float32(r**-0.5)
        return Mixing(torch.from_numpy(entries))

    def _select(
        self, view: View, budget: int, rng: np.random.Generator, logits: Tensor | None
    ) -> Selection:
        raise AssertionError("Linformer selects no keys")  # select is its own


class Pooled(Linformer):
    """Keys and values averaged over r random groups: the projection that keeps means.

    Its bias is that of Jensen's inequality: a group enters with the exponential of its mean logit,
    not with the mean of the exponentials.
    """

    name = "pooled"
    title = "Linformer with averages over random groups"
    is_exact = True

    def select(
        self, view: View, budget: int, rng: np.random.Generator, logits: Tensor | None = None
    ) -> Sight:
        """The groups, of sizes that differ by at most one."""
        import torch

        r = min(self.check(budget), view.keys)
        group = np.empty(view.keys, dtype=np.int64)
        group[rng.permutation(view.keys)] = np.arange(view.keys) % r
        return Groups(torch.from_numpy(group), r)
