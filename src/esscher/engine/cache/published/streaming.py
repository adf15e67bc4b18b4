"""StreamingLLM: the first tokens and the latest ones.

Xiao, Tian, Chen, Han, Lewis: Efficient Streaming Language Models with Attention Sinks,
arXiv 2309.17453. Positions stay those of the text: tokens are not moved together.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch

from esscher.engine.cache.published.rule import Scorer, Scores, check_longer

if TYPE_CHECKING:
    from esscher.engine.cache.published.prefilled import Prefilled


@dataclass(frozen=True)
class Streaming(Scorer):
    """Sinks and recent tokens.

    Attributes
    ----------
    sinks
        First tokens that are kept.
    """

    cite = "Xiao et al., Efficient Streaming Language Models with Attention Sinks, arXiv 2309.17453"
    sinks: int = 4

    @property
    def name(self) -> str:
        """Name in the registry."""
        return "streaming"

    def look(self, layer: Prefilled) -> Scores:
        """The later a token, the larger its score; sinks have the largest."""
        check_longer(layer, self.name, self.sinks)
        scores = torch.arange(layer.prompt, dtype=torch.float32)
        scores[: self.sinks] += layer.prompt
        return Scores(scores.expand(layer.key_heads, -1))
