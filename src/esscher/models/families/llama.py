"""Llama and the decoders built like it: rotary positions, grouped keys, some with normalised q, k.

SmolLM and SmolLM2 are Llama models; Mistral and Qwen may have sliding windows; Qwen 3 normalises
queries and keys.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, ClassVar

from esscher.models.families._family import Family, LinearMaps


class Llama(Family):
    """Llama, Mistral, Qwen 2, Qwen 3, SmolLM."""

    name = "Llama"
    model_types: ClassVar[Sequence[str]] = ("llama", "mistral", "qwen2", "qwen3", "smollm3")
    decoder = True
    linear = False

    def backbone(self, model: Any) -> Any:
        """The text model, inside a model that also reads images."""
        base = model.base_model
        return getattr(base, "language_model", base)

    def blocks(self, model: Any) -> Sequence[Any]:
        """The decoder's layers."""
        return list(self.backbone(model).layers)

    def attention(self, block: Any) -> Any:
        """Self-attention."""
        return block.self_attn

    def maps(self, block: Any) -> LinearMaps:
        """Four linear maps, before normalisation and rotation."""
        own = block.self_attn
        return LinearMaps.of(own.q_proj, own.k_proj, own.v_proj, own.o_proj)
