"""Top-k: the keys with the largest logits."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from esscher.core.errors import InputError
from esscher.engine.patterns.pattern import Pattern, Selection, View

if TYPE_CHECKING:
    from torch import Tensor


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
