"""The protocol of a family of models: where its layers are and how they attend."""

from __future__ import annotations

import contextlib
import sys
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, ClassVar

from esscher.engine.models.transformers_library import transformers_module

if TYPE_CHECKING:  # families are known before torch is needed
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
