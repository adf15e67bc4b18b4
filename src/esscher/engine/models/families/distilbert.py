"""DistilBERT."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, ClassVar

from esscher.engine.models.families.family import Family, LinearMaps


class DistilBert(Family):
    """DistilBERT: BERT's attention, with the output projection inside the attention module."""

    name = "DistilBERT"
    model_types: ClassVar[Sequence[str]] = ("distilbert",)
    decoder = False
    linear = True
    sizes: ClassVar[tuple[str, str, str, str]] = (
        "n_layers",
        "n_heads",
        "dim",
        "max_position_embeddings",
    )

    def described_causal(self, fields: Mapping[str, Any]) -> bool:
        """Never."""
        return False

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
