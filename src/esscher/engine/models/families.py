"""The protocol of a family of models: where its layers are and how they attend."""

from __future__ import annotations

import contextlib
import sys
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, ClassVar

from esscher.core.errors import InputError
from esscher.engine.models.transformers_library import transformers_module

if TYPE_CHECKING:
    from torch import Tensor, nn


@dataclass(frozen=True)
class ModelShape:
    """Sizes of a model's attention.

    Attributes
    ----------
    layers
        Number of attention layers.
    heads, key_heads
        Query heads and key heads of a layer; a key head serves ``heads // key_heads`` of them.
    head_dim
        Dimension d_k of queries and keys (and of values, in every family known here).
    hidden
        Dimension of a token between the layers.
    """

    layers: int
    heads: int
    key_heads: int
    head_dim: int
    hidden: int

    def key_head(self, head: int) -> int:
        """Key head that serves a query head."""
        return head * self.key_heads // self.heads


@dataclass(frozen=True, eq=False)
class LinearMaps:
    """A layer's projections as matrices that act from the left, all heads stacked."""

    query: Tensor
    key: Tensor
    value: Tensor
    query_bias: Tensor | None
    key_bias: Tensor | None
    value_bias: Tensor | None
    output: Tensor
    output_bias: Tensor | None

    @staticmethod
    def of(query: Any, key: Any, value: Any, output: Any) -> LinearMaps:
        """The maps of four ``nn.Linear`` modules."""
        return LinearMaps(
            query.weight, key.weight, value.weight,
            query.bias, key.bias, value.bias,
            output.weight, output.bias,
        )  # fmt: skip


def whole_number(fields: Mapping[str, Any], name: str) -> int:
    """A field of a configuration that is a whole number.

    Raises
    ------
    LookupError
        If it is not there, or no such number.
    """
    value = fields[name]
    if isinstance(value, bool) or not isinstance(value, int) or value < 0:
        raise LookupError(f"{name} is {value!r}")
    return value


class Family(ABC):
    """A kind of model: which architectures belong to it, and where their attention is.

    Families whose attention goes through transformers' attention interface derive from this
    class; the others from :class:`HookFamily`.
    """

    #: Name for tables and messages.
    name: ClassVar[str]
    #: The ``model_type`` of the configurations that belong to it.
    model_types: ClassVar[Sequence[str]]
    #: Whether to load the model with its next-token head.
    decoder: ClassVar[bool]
    #: Whether q and k are affine in the hidden states, so that weights and token moments give H.
    linear: ClassVar[bool]
    #: Note to users about the numbers of this family; may be empty.
    note: ClassVar[str] = ""
    #: Fields of a configuration: numbers of layers and heads, dimension of a token, positions.
    sizes: ClassVar[tuple[str, str, str, str]] = (
        "num_hidden_layers",
        "num_attention_heads",
        "hidden_size",
        "max_position_embeddings",
    )

    @abstractmethod
    def blocks(self, model: Any) -> Sequence[Any]:
        """The model's layers."""

    @abstractmethod
    def attention(self, block: Any) -> Any:
        """The module of a layer that computes attention."""

    @abstractmethod
    def maps(self, block: Any) -> LinearMaps:
        """The layer's projections."""

    def backbone(self, model: Any) -> Any:
        """The part of the model that all attention happens in, without a head on top."""
        return model.base_model

    def config(self, model: Any) -> Any:
        """The configuration of the backbone."""
        return self.backbone(model).config

    def text_fields(self, fields: Mapping[str, Any]) -> Mapping[str, Any]:
        """The part of a configuration's fields that is about the backbone."""
        return fields

    def described_shape(self, fields: Mapping[str, Any]) -> ModelShape:
        """Sizes of the attention that a configuration describes.

        Raises
        ------
        LookupError
            If the configuration does not say.
        """
        layers, heads, hidden, _ = (whole_number(fields, name) for name in self.sizes)
        return ModelShape(
            layers=layers,
            heads=heads,
            key_heads=self.described_key_heads(fields) or heads,
            head_dim=self.described_head_dim(fields) or hidden // heads,
            hidden=hidden,
        )

    def described_key_heads(self, fields: Mapping[str, Any]) -> int | None:
        """Number of key heads that a configuration names; None for as many as heads."""
        return None

    def described_head_dim(self, fields: Mapping[str, Any]) -> int | None:
        """Dimension of a head that a configuration names; None for equal parts of a token."""
        return None

    def described_causal(self, fields: Mapping[str, Any]) -> bool:
        """Whether queries of the model that a configuration describes see only earlier keys."""
        return self.decoder or bool(fields.get("is_decoder"))

    def described_positions(self, fields: Mapping[str, Any]) -> int:
        """Longest passage that the model reads, by its configuration."""
        return whole_number(fields, self.sizes[3]) - self.unused_positions(fields)

    def unused_positions(self, fields: Mapping[str, Any]) -> int:
        """Positions at the beginning that are never used for text."""
        return 0

    def shape(self, model: Any) -> ModelShape:
        """Sizes of the model's attention."""
        described = self.described_shape(self.config(model).to_dict())
        return replace(described, layers=len(self.blocks(model)))

    def max_positions(self, model: Any) -> int:
        """Longest passage the model can read."""
        return self.described_positions(self.config(model).to_dict())

    def is_causal(self, model: Any) -> bool:
        """Whether queries see only earlier keys."""
        return any(bool(self.attention(block).is_causal) for block in self.blocks(model))

    def own_attention(self, module: Any, implementation: str) -> Callable[..., Any]:
        """The function with which the model itself would compute a module's attention."""
        modeling = transformers_module("transformers.modeling_utils")
        eager = getattr(sys.modules[type(module).__module__], "eager_attention_forward", None)
        function: Callable[..., Any] = modeling.ALL_ATTENTION_FUNCTIONS.get_interface(
            implementation, eager
        )
        return function

    def prepared(self, model: Any) -> contextlib.AbstractContextManager[None]:
        """Bring the model into the form in which its attention can be seen, within a block."""
        return contextlib.nullcontext()


@dataclass(frozen=True, eq=False)
class Projections:
    """The four modules of a layer that hooks are hung on."""

    query: nn.Module
    key: nn.Module
    value: nn.Module
    output: nn.Module
    head_dim: int


@dataclass(frozen=True, eq=False)
class HookedArguments:
    """Arguments with which an attention module was called."""

    hidden: Tensor
    mask: Tensor | None
    bias: Tensor | None


class HookFamily(Family):
    """A kind of model whose attention is written out in its own code."""

    @abstractmethod
    def projections(self, block: Any) -> Projections:
        """The modules that make queries, keys and values, and the one that takes the output."""

    @abstractmethod
    def arguments(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> HookedArguments:
        """Hidden states, mask and position bias among the arguments of the attention module."""


# Encoders: BERT and its relatives, whose queries and keys are affine in the hidden states.


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


# Decoders: GPT-2, Llama and those built like it, Gemma.
#
# SmolLM and SmolLM2 are Llama models; Mistral and Qwen may have sliding windows; Qwen 3 normalises
# queries and keys. Gemma has soft-capped logits (2) and sliding windows (2 and 3).

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


# Kinds of models whose attention Esscher can read: encoders and decoders, a class each.

#: Every family, in the order of messages.
FAMILIES: tuple[Family, ...] = (
    Bert(),
    Roberta(),
    DistilBert(),
    MPNet(),
    Gpt2(),
    Llama(),
    Gemma(),
    BigBird(),
)


def family_of(model_type: str, name: str) -> Family:
    """The family of an architecture; ``name`` is the model's, for the message.

    Raises
    ------
    InputError
        For an architecture that no family knows.
    """
    for family in FAMILIES:
        if model_type in family.model_types:
            return family
    known = ", ".join(kind for family in FAMILIES for kind in family.model_types)
    raise InputError(
        f"the model {name!r} has the architecture {model_type!r}, which is not supported; "
        f"supported architectures: {known}"
    )
