"""PyramidKV: scores of SnapKV, more tokens in lower layers.

Cai et al.: PyramidKV: Dynamic KV Cache Compression
based on Pyramidal Information Funneling, arXiv 2406.02069. Budgets of layers fall linearly, as
kvpress has them, which gives all layers the same where the smallest budget would be below the
observation window. Rounded budgets may miss the total by a few tokens: layers whose budget was
rounded most get one more or less, so that it is exact.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import numpy as np
from torch import Tensor

from esscher.engine.cache.published.rule import Rule, Scores, largest
from esscher.engine.cache.published.snapkv import SnapKV

if TYPE_CHECKING:
    from esscher.engine.cache.published.prefilled import Prefilled
    from esscher.engine.cache.published.profile import Profile


@dataclass(frozen=True)
class Pyramid(Rule):
    """Budgets that fall from layer to layer.

    Attributes
    ----------
    scorer
        Scores the tokens.
    steepness
        Mean budget over smallest budget, as far as there are tokens.
    """

    cite = (
        "Cai et al., PyramidKV: Dynamic KV Cache Compression based on Pyramidal Information "
        "Funneling, arXiv 2406.02069"
    )
    scorer: SnapKV = field(default_factory=SnapKV)
    steepness: int = 20

    @property
    def name(self) -> str:
        """Name in the registry."""
        return "pyramid"

    def look(self, layer: Prefilled) -> Scores:
        """As SnapKV."""
        return self.scorer.look(layer)

    def budgets(self, layers: int, tokens: int, each: int) -> list[int]:
        """Tokens that a key head of each layer keeps; their mean is ``each``."""
        window = self.scorer.window
        smallest = each / self.steepness
        largest_budget = 2 * each - smallest
        if largest_budget >= tokens - window:
            largest_budget = tokens - window
            smallest = 2 * each - largest_budget
        if layers == 1 or not tokens >= largest_budget >= smallest >= window:
            return [each] * layers
        ideal = np.linspace(largest_budget, smallest, layers)
        out = np.round(ideal).astype(np.int64)
        missing = each * layers - int(out.sum())
        # the layers that rounding took most from, or gave most to, come first
        order = np.argsort(-np.sign(missing) * (ideal - out), kind="stable")
        out[order[: abs(missing)]] += np.sign(missing)
        return [int(budget) for budget in out]

    def _choose(
        self, found: Sequence[Scores], each: int, profile: Profile | None
    ) -> list[list[Tensor]]:
        budgets = self.budgets(len(found), found[0].tokens, each)
        return [
            [largest(own, budget) for own in layer.scores]
            for layer, budget in zip(found, budgets, strict=True)
        ]
