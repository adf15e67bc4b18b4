"""DistilBERT."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, ClassVar

from esscher.models.families._family import Family, LinearMaps


class DistilBert(Family):
    """DistilBERT: BERT's attention, with the output projection inside the attention module."""

    name = "DistilBERT"
    model_types: ClassVar[Sequence[str]] = ("distilbert",)
    decoder = False
    linear = True

    def blocks(self, model: Any) -> Sequence[Any]:
        """The encoder's layers."""
        return list(self.backbone(model).transformer.layer)

    def attention(self, block: Any) -> Any:
        """Self-attention."""
        return block.attention

    def maps(self, block: Any) -> LinearMaps:
        """Four linear maps."""
        own = block.attention
        return LinearMaps.of(own.q_lin, own.k_lin, own.v_lin, own.out_lin)
