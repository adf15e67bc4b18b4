"""Sliding window: the nearest keys."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from esscher.engine.patterns._parts import as_selection, near_keys
from esscher.engine.patterns.pattern import Pattern, Selection, View

if TYPE_CHECKING:
    from torch import Tensor


class Window(Pattern):
    """The r nearest keys: around the query, or its own and the r - 1 before it in a decoder."""

    name = "window"
    title = "sliding window"
    smallest = 1

    def _select(
        self, view: View, budget: int, rng: np.random.Generator, logits: Tensor | None
    ) -> Selection:
        return as_selection([near_keys(view, budget)])
