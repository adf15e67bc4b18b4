"""Blocks: queries and keys are cut into pieces, and a query sees its own piece."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from esscher.engine.patterns._parts import as_selection
from esscher.engine.patterns.pattern import Pattern, Selection, View

if TYPE_CHECKING:
    from torch import Tensor


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
