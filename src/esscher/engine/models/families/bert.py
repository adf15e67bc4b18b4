"""BERT and its smaller relatives (MiniLM): q and k are affine in the hidden states."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, ClassVar

from esscher.engine.models.families.family import Family, LinearMaps


class Bert(Family):
    """BERT: learned positions, attention over the whole passage."""

    name = "BERT"
    model_types: ClassVar[Sequence[str]] = ("bert",)
    decoder = False
    linear = True

    def blocks(self, model: Any) -> Sequence[Any]:
        """The encoder's layers."""
        return list(self.backbone(model).encoder.layer)

    def attention(self, block: Any) -> Any:
        """Self-attention without its output projection."""
        return block.attention.self

    def maps(self, block: Any) -> LinearMaps:
        """Four linear maps."""
        own = block.attention.self
        return LinearMaps.of(own.query, own.key, own.value, block.attention.output.dense)
