"""What Esscher has to know about a kind of model, once for all layers."""

from __future__ import annotations

import contextlib
import sys
from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

from torch import Tensor, nn

from esscher.models._transformers import transformers_module


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
    #: What a user should know about the numbers of this family; may be empty.
    note: ClassVar[str] = ""

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

    def shape(self, model: Any) -> ModelShape:
        """Sizes of the model's attention."""
        config = self.config(model)
        heads = int(config.num_attention_heads)
        head_dim = getattr(config, "head_dim", None) or config.hidden_size // heads
        return ModelShape(
            layers=len(self.blocks(model)),
            heads=heads,
            key_heads=int(getattr(config, "num_key_value_heads", None) or heads),
            head_dim=int(head_dim),
            hidden=int(config.hidden_size),
        )

    def max_positions(self, model: Any) -> int:
        """Longest passage the model can read."""
        return int(self.config(model).max_position_embeddings)

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
    """What an attention module was called with."""

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
