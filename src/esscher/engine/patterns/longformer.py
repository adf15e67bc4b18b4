"""Longformer: a sliding window and global tokens."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from esscher.engine.patterns._parts import as_selection, first_keys, near_keys
from esscher.engine.patterns.pattern import Pattern, Selection, View

if TYPE_CHECKING:
    from torch import Tensor


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
