"""SnapKV: what the last queries of the prompt attended to, smoothed over neighbours.

Li et al.: SnapKV: LLM Knows What You Are Looking
for Before Generation, arXiv 2404.14469. Sizes and the mean over heads that share a key are those of
kvpress.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch

from esscher.engine.cache.published.rule import Scorer, Scores, check_longer, padded

if TYPE_CHECKING:
    from esscher.engine.cache.published.prefilled import Prefilled


@dataclass(frozen=True)
class SnapKV(Scorer):
    """An observation window.

    Attributes
    ----------
    window
        Queries at the end of the prompt that are observed; their own tokens are kept.
    neighbours
        Tokens over which weights are averaged, an odd number; beyond the ends they are 0.
    """

    cite = (
        "Li et al., SnapKV: LLM Knows What You Are Looking for Before Generation, arXiv 2404.14469"
    )
    window: int = 64
    neighbours: int = 5

    @property
    def name(self) -> str:
        """Name in the registry."""
        return "snapkv"

    def look(self, layer: Prefilled) -> Scores:
        """Mean weights of the last queries, of the heads that share a key, and of neighbours."""
        check_longer(layer, self.name, self.window)
        last = slice(layer.inputs.q.shape[2] - self.window, layer.inputs.q.shape[2])
        before = layer.prompt - self.window
        mean = torch.stack(
            [
                torch.stack(
                    [layer.weights(h, last)[:, :before].mean(0) for h in layer.query_heads(g)]
                ).mean(0)
                for g in range(layer.key_heads)
            ]
        )
        smooth = torch.nn.functional.avg_pool1d(
            mean, self.neighbours, stride=1, padding=self.neighbours // 2
        )
        return Scores(padded(smooth, 0, self.window).cpu())
