"""AdaKV: the heads of a layer share its budget, tokens competing by their scores.

Feng, Lv, Cao, Xie, Zhou: Ada-KV: Optimizing KV Cache Eviction by Adaptive Budget Allocation for
Efficient LLM Inference, arXiv 2407.11550. Any scorer can be used; SnapKV is the published one.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from esscher.engine.cache.published.rule import (
    Rule,
    Scorer,
    Scores,
    largest,
    largest_of_all,
    named,
)
from esscher.engine.cache.published.snapkv import SnapKV

if TYPE_CHECKING:
    from esscher.engine.cache.published.prefilled import Prefilled


@dataclass(frozen=True)
class AdaKV(Rule):
    """Budgets of heads by the largest scores of a layer.

    Attributes
    ----------
    scorer
        Scores the tokens.
    safeguard
        Share of the mean budget that every head keeps.
    """

    cite = (
        "Feng et al., Ada-KV: Optimizing KV Cache Eviction by Adaptive Budget Allocation for "
        "Efficient LLM Inference, arXiv 2407.11550"
    )
    scorer: Scorer = field(default_factory=SnapKV)
    safeguard: float = 0.2

    @property
    def name(self) -> str:
        """Name in the registry, with that of the scorer if it is another."""
        return named("adakv", self.scorer, SnapKV)

    def look(self, layer: Prefilled) -> Scores:
        """As the scorer."""
        return self.scorer.look(layer)

    def _choose(self, found: Sequence[Scores], each: int) -> list[list[Tensor]]:
        out = []
        for layer in found:
            budgets = adaptive_budgets(layer.scores, each, self.safeguard)
            pairs = zip(layer.scores, budgets, strict=True)
            out.append([largest(own, budget) for own, budget in pairs])
        return out


def adaptive_budgets(scores: Tensor, each: int, safeguard: float) -> list[int]:
    """How many of a layer's largest scores lie in each head; every head has some for certain."""
    safe = safe_tokens(scores, each, safeguard)
    return largest_of_all(scores.masked_fill(safe, torch.inf), each * len(scores))


def safe_tokens(scores: Tensor, each: int, safeguard: float) -> Tensor:
    """True at the tokens that a head keeps whatever others have, [key heads, tokens]."""
    count = max(1, int(each * safeguard)) if safeguard > 0 else 0
    out = torch.zeros_like(scores, dtype=torch.bool)
    for row, own in zip(out, scores, strict=True):
        row[largest(own, count)] = True
    return out
