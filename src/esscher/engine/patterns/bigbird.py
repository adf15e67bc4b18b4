"""BigBird: a window, random keys and global tokens."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from esscher.engine.patterns._parts import (
    as_selection,
    block_orders,
    first_keys,
    last_keys,
    near_keys,
    random_keys,
)
from esscher.engine.patterns.pattern import Pattern, Selection, View

if TYPE_CHECKING:
    from torch import Tensor


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
