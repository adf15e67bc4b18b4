"""Sinks, recent keys, and a random sample of the rest that stands for all of it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from esscher.engine.patterns._parts import (
    as_selection,
    first_keys,
    near_keys,
    random_keys,
    random_order,
)
from esscher.engine.patterns.pattern import Pattern, Selection, View
from esscher.engine.patterns.streaming import SINKS

if TYPE_CHECKING:
    from torch import Tensor


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
