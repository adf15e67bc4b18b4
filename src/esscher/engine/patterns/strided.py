"""Strided: a window, and keys at equal distances in the rest (Sparse Transformer)."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from esscher.engine.patterns._parts import as_selection, near_keys
from esscher.engine.patterns.pattern import Pattern, Selection, View

if TYPE_CHECKING:
    from torch import Tensor


class Strided(Pattern):
    """Half of the budget is a window, the other half spread evenly over all other visible keys."""

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
