"""Llama and the decoders built like it: rotary positions, grouped keys, some with normalised q, k.

SmolLM and SmolLM2 are Llama models; Mistral and Qwen may have sliding windows; Qwen 3 normalises
queries and keys.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, ClassVar

from esscher.engine.models.families.family import Family, LinearMaps, whole_number

#: Architectures whose heads are equal parts of a token unless they say otherwise.
EQUAL_PARTS = ("llama", "mistral", "qwen2", "smollm3")


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

    def text_fields(self, fields: Mapping[str, Any]) -> Mapping[str, Any]:
        """Those of the text model, inside a model that also reads images."""
        inner = fields.get("text_config")
        return inner if isinstance(inner, Mapping) else fields

    def described_key_heads(self, fields: Mapping[str, Any]) -> int | None:
        """As the configuration says: what it means to leave the field out differs by model."""
        if fields["num_key_value_heads"] is None:
            return None
        return whole_number(fields, "num_key_value_heads")

    def described_head_dim(self, fields: Mapping[str, Any]) -> int | None:
        """Left out or empty, it is an equal part of a token where it has no default of its own."""
        if fields.get("model_type") in EQUAL_PARTS and fields.get("head_dim") is None:
            return None
        return None if fields["head_dim"] is None else whole_number(fields, "head_dim")

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
