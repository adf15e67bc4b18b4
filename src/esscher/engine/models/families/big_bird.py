"""BigBird: probed in its dense form, whatever form it is stored in."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Sequence
from typing import Any, ClassVar

from esscher.engine.models.families.family import (
    HookedArguments,
    HookFamily,
    LinearMaps,
    Projections,
)


class BigBird(HookFamily):
    """BigBird; block-sparse models are switched to full attention while they are looked at.

    The block-sparse form is an approximation that depends on random blocks; what it approximates,
    with the same weights, is the dense form.
    """

    name = "BigBird"
    model_types: ClassVar[Sequence[str]] = ("big_bird",)
    decoder = False
    linear = True
    note = "measured in its dense form (attention_type original_full), also if stored block-sparse"

    def blocks(self, model: Any) -> Sequence[Any]:
        """The encoder's layers."""
        return list(self.backbone(model).encoder.layer)

    def attention(self, block: Any) -> Any:
        """Self-attention with its output projection; the part inside is exchanged when dense."""
        return block.attention

    def maps(self, block: Any) -> LinearMaps:
        """Four linear maps."""
        own = block.attention.self
        return LinearMaps.of(own.query, own.key, own.value, block.attention.output.dense)

    def is_causal(self, model: Any) -> bool:
        """Only as a decoder."""
        return bool(self.config(model).is_decoder)

    def projections(self, block: Any) -> Projections:
        """The modules of the four maps, which both forms share."""
        own = block.attention.self
        return Projections(
            own.query, own.key, own.value, block.attention.output.dense, own.attention_head_size
        )

    def arguments(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> HookedArguments:
        """Hidden states and mask; there is no bias."""
        mask = args[1] if len(args) > 1 else kwargs.get("attention_mask")
        return HookedArguments(args[0], mask, None)

    @contextlib.contextmanager
    def prepared(self, model: Any) -> Iterator[None]:
        """Switch to full attention, and put the very same modules back afterwards."""
        import torch

        backbone = self.backbone(model)
        holders = [backbone, backbone.encoder]
        for block in self.blocks(model):
            holders += [block, block.attention]
        types = [holder.attention_type for holder in holders]
        inner = [block.attention.self for block in self.blocks(model)]
        try:
            # On "meta" the new modules draw no random weights; they take over the old ones.
            with torch.device("meta"):
                backbone.set_attention_type("original_full")
            yield
        finally:
            for holder, kind in zip(holders, types, strict=True):
                holder.attention_type = kind
            for block, module in zip(self.blocks(model), inner, strict=True):
                block.attention.self = module
