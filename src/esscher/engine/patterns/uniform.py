"""Uniform random keys: the Monte Carlo estimate that every other pattern is compared with."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from esscher.engine.patterns._parts import as_selection, random_keys, random_order
from esscher.engine.patterns.pattern import Pattern, Selection, View

if TYPE_CHECKING:
    from torch import Tensor


class UniformRandom(Pattern):
    """r of the visible keys, uniformly without replacement.

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
