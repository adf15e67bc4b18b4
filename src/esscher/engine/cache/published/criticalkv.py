"""CriticalKV on AdaKV: half of a head's budget by scores, half by scores times norms of outputs.

Feng, Lv, Cao, Xie, Zhou: Identify Critical KV Cache in LLM Inference from an Output
Perturbation Perspective, arXiv 2502.03805. Budgets of heads are those of AdaKV. The norm of a token
is that of its value after the output projection (sum of absolute values), mean over the heads that
share it.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from esscher.engine.cache.published.adakv import adaptive_budgets, safe_tokens
from esscher.engine.cache.published.rule import Rule, Scorer, Scores, largest, named
from esscher.engine.cache.published.snapkv import SnapKV

if TYPE_CHECKING:
    from esscher.engine.cache.published.prefilled import Prefilled
    from esscher.engine.cache.published.profile import Profile

#: Tokens whose values are projected at a time.
BLOCK = 1024


@dataclass(frozen=True)
class CriticalKV(Rule):
    """AdaKV, the second half of every head weighed by what values add to the model.

    Attributes
    ----------
    scorer
        Scores the tokens.
    safeguard
        Share of the mean budget that every head keeps by scores alone.
    first
        Share of a head's budget that is chosen by scores alone.
    epsilon
        Added to scores before they are multiplied by norms.
    """

    cite = (
        "Feng et al., Identify Critical KV Cache in LLM Inference from an Output Perturbation "
        "Perspective, arXiv 2502.03805"
    )
    scorer: Scorer = field(default_factory=SnapKV)
    safeguard: float = 0.2
    first: float = 0.5
    epsilon: float = 1e-4

    @property
    def name(self) -> str:
        """Name in the registry, with that of the scorer if it is another."""
        return named("criticalkv", self.scorer, SnapKV)

    def look(self, layer: Prefilled) -> Scores:
        """Scores of the scorer, and norms."""
        norms = [
            torch.stack(
                [output_norm(layer.values(g), layer.output[h], 1) for h in layer.query_heads(g)]
            ).mean(0)
            for g in range(layer.key_heads)
        ]
        return Scores(self.scorer.look(layer).scores, torch.stack(norms).cpu())

    def _choose(
        self, found: Sequence[Scores], each: int, profile: Profile | None
    ) -> list[list[Tensor]]:
        out = []
        for layer in found:
            assert layer.norms is not None
            budgets = adaptive_budgets(layer.scores, each, self.safeguard)
            first = safe_tokens(layer.scores, each, self.safeguard)
            for row, own, budget in zip(first, layer.scores, budgets, strict=True):
                row[largest(own, int(budget * self.first))] = True
            weighed = ((layer.scores + self.epsilon) * layer.norms).masked_fill(first, torch.inf)
            pairs = zip(weighed, budgets, strict=True)
            out.append([largest(own, budget) for own, budget in pairs])
        return out


def output_norm(values: Tensor, output: Tensor, order: int) -> Tensor:
    """Norms of values [n, d_v] after the output projection [d_v, hidden] of a head, [n].

    Of order 1 (sum of absolute values) or 2 (Euclidean).
    """
    output = output.to(torch.float32)
    starts = range(0, len(values), BLOCK)
    parts = [values[start : start + BLOCK] @ output for start in starts]
    return torch.cat([torch.linalg.vector_norm(part, ord=order, dim=-1) for part in parts])
