"""Patterns that choose keys by their places alone: near ones, first ones, even distances, blocks.

The parts that they are made of return positions [queries, n], for queries that may see more keys
than all parts together take.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from esscher.engine.patterns.pattern import Pattern, Positions, Selection, View, as_selection

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
