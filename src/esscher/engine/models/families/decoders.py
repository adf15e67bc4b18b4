"""Decoders: GPT-2, Llama and those built like it, Gemma.

SmolLM and SmolLM2 are Llama models; Mistral and Qwen may have sliding windows; Qwen 3 normalises
queries and keys. Gemma has soft-capped logits (2) and sliding windows (2 and 3).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, ClassVar

from esscher.engine.models.families.family import Family, LinearMaps, whole_number

if TYPE_CHECKING:
    from torch import Tensor

#: Architectures whose heads are equal parts of a token unless they say otherwise.
EQUAL_PARTS = ("llama", "mistral", "qwen2", "smollm3")


class Gpt2(Family):
    """GPT-2: learned positions, one matrix for queries, keys and values."""

    name = "GPT-2"
    model_types: ClassVar[Sequence[str]] = ("gpt2",)
    decoder = True
    linear = True
    sizes: ClassVar[tuple[str, str, str, str]] = ("n_layer", "n_head", "n_embd", "n_positions")

    def blocks(self, model: Any) -> Sequence[Any]:
        """The decoder's layers."""
        return list(self.backbone(model).h)

    def attention(self, block: Any) -> Any:
        """Self-attention."""
        return block.attn

    def maps(self, block: Any) -> LinearMaps:
        """Three thirds of one matrix, which acts from the right, and the output matrix."""
        own = block.attn
        query, key, value = own.c_attn.weight.T.chunk(3, dim=0)
        query_bias, key_bias, value_bias = own.c_attn.bias.chunk(3, dim=0)
        return LinearMaps(
            query, key, value,
            query_bias, key_bias, value_bias,
            own.c_proj.weight.T, own.c_proj.bias,
        )  # fmt: skip

    def own_attention(self, module: Any, implementation: str) -> Callable[..., Any]:
        """The interface's function, but for models that ask for logits in 32 bits."""
        if implementation == "eager" and module.reorder_and_upcast_attn:

            def upcast(
                module: Any, query: Tensor, key: Tensor, value: Tensor, mask: Any, **_: Any
            ) -> Any:
                return module._upcast_and_reordered_attn(query, key, value, mask)

            return upcast
        return super().own_attention(module, implementation)


class Llama(Family):
    """Llama, Mistral, Qwen 2, Qwen 3, SmolLM: rotary positions, grouped keys."""

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


class Gemma(Llama):
    """Gemma, Gemma 2, Gemma 3 (its text part): built like Llama."""

    name = "Gemma"
    model_types: ClassVar[Sequence[str]] = ("gemma", "gemma2", "gemma3", "gemma3_text")

    def described_causal(self, fields: Mapping[str, Any]) -> bool:
        """Unless it was trained to look both ways."""
        return not fields.get("use_bidirectional_attention")
