"""Encoders: BERT and its relatives, whose queries and keys are affine in the hidden states."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, ClassVar

from esscher.engine.models.families.family import (
    Family,
    HookedArguments,
    HookFamily,
    LinearMaps,
    Projections,
    whole_number,
)


class Bert(Family):
    """BERT and its smaller relatives (MiniLM): learned positions, all tokens are seen."""

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


class Roberta(Bert):
    """RoBERTa and XLM-RoBERTa: BERT's layers, with positions that start after the padding index."""

    name = "RoBERTa"
    model_types: ClassVar[Sequence[str]] = ("roberta", "xlm-roberta")

    def unused_positions(self, fields: Mapping[str, Any]) -> int:
        """Positions up to and including the padding index."""
        return whole_number(fields, "pad_token_id") + 1


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


class MPNet(HookFamily):
    """MPNet: BERT's attention plus a learned bias of the logits by relative position.

    Its attention is written out in its own code, hence the hooks.
    """

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
