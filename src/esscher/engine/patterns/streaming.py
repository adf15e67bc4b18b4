"""Sinks and recent keys (StreamingLLM)."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from esscher.engine.patterns._parts import as_selection, first_keys, near_keys
from esscher.engine.patterns.pattern import Pattern, Selection, View

if TYPE_CHECKING:
    from torch import Tensor

#: Keys at the beginning that are kept: the number that the published method uses.
SINKS = 4


@dataclass(frozen=True)
class Streaming(Pattern):
    """The first keys, which often act as sinks, and the nearest ones."""

    sinks: int = SINKS

    name = "streaming"
    title = "sinks + recent"
    smallest = SINKS + 1

    def _select(
        self, view: View, budget: int, rng: np.random.Generator, logits: Tensor | None
    ) -> Selection:
        recent = near_keys(view, budget - self.sinks, after=self.sinks)
        return as_selection([first_keys(view, self.sinks), recent])
