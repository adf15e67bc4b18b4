"""MPNet: BERT's attention plus a learned bias of the logits by relative position."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, ClassVar

from esscher.engine.models.families.family import (
    HookedArguments,
    HookFamily,
    LinearMaps,
    Projections,
)


class MPNet(HookFamily):
    """MPNet; its attention is written out in its own code, hence the hooks."""

    name = "MPNet"
    model_types: ClassVar[Sequence[str]] = ("mpnet",)
    decoder = False
    linear = True
    note = (
        "logits carry a bias by relative position, which a cloud of tokens pooled over passages "
        "has no place for"
    )

    def blocks(self, model: Any) -> Sequence[Any]:
        """The encoder's layers."""
        return list(self.backbone(model).encoder.layer)

    def attention(self, block: Any) -> Any:
        """Self-attention."""
        return block.attention.attn

    def maps(self, block: Any) -> LinearMaps:
        """Four linear maps."""
        own = block.attention.attn
        return LinearMaps.of(own.q, own.k, own.v, own.o)

    def unused_positions(self, fields: Mapping[str, Any]) -> int:
        """Positions up to and including the padding index, which is 1 whatever the padding is."""
        return 2

    def described_causal(self, fields: Mapping[str, Any]) -> bool:
        """Never."""
        return False

    def is_causal(self, model: Any) -> bool:
        """Never."""
        return False

    def projections(self, block: Any) -> Projections:
        """The modules of the four maps."""
        own = block.attention.attn
        return Projections(own.q, own.k, own.v, own.o, own.attention_head_size)

    def arguments(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> HookedArguments:
        """(hidden_states, attention_mask, position_bias), by position or by name."""
        names = ("hidden_states", "attention_mask", "position_bias")
        given = {**dict(zip(names, args, strict=False)), **kwargs}
        bias = given.get("position_bias")
        # The model repeats the same bias for every text of a batch.
        return HookedArguments(
            given["hidden_states"], given.get("attention_mask"), None if bias is None else bias[0]
        )
