"""Patterns whose keys may lie anywhere: drawn at random, or found by their logits."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from esscher.core.errors import InputError
from esscher.core.streams import random_stream
from esscher.engine.patterns.pattern import Pattern, Positions, Selection, View, as_selection
from esscher.engine.patterns.places import (
    SINKS,
    first_keys,
    last_keys,
    near_keys,
)

if TYPE_CHECKING:
    from torch import Tensor


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
