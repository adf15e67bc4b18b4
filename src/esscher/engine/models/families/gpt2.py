"""GPT-2: causal, learned positions, one matrix for queries, keys and values."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, ClassVar

from esscher.engine.models.families.family import Family, LinearMaps

if TYPE_CHECKING:
    from torch import Tensor


class Gpt2(Family):
    """GPT-2."""

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
