"""TOVA: the weights of the last query, averaged over all heads of a layer.

Oren, Hassid, Yarden, Adi, Schwartz: Transformers are Multi-State RNNs, arXiv 2401.06104. All key
heads of a layer keep the same tokens; the last one is among them.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch

from esscher.engine.cache.published.rule import Scorer, Scores, check_longer, padded

if TYPE_CHECKING:
    from esscher.engine.cache.published.prefilled import Prefilled


@dataclass(frozen=True)
class Tova(Scorer):
    """The last query decides."""

    cite = "Oren et al., Transformers are Multi-State RNNs, arXiv 2401.06104"

    @property
    def name(self) -> str:
        """Name in the registry."""
        return "tova"

    def look(self, layer: Prefilled) -> Scores:
        """Weights of the last query, mean over all heads."""
        check_longer(layer, self.name, 1)
        heads, queries = layer.inputs.q.shape[1:3]
        last = slice(queries - 1, queries)
        mean = torch.stack([layer.weights(h, last)[0] for h in range(heads)]).mean(0)
        scores = padded(mean[: layer.prompt - 1], 0, 1)
        return Scores(scores.cpu().expand(layer.key_heads, -1))
