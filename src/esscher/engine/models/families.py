"""Families of models that Esscher can read: where their layers are, and how they attend."""

from __future__ import annotations

import contextlib
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from operator import attrgetter
from typing import TYPE_CHECKING, Any

from esscher.core.errors import InputError
from esscher.engine.models.transformers_library import transformers_module

if TYPE_CHECKING:
    from torch import Tensor


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


def whole_number(fields: Mapping[str, Any], name: str) -> int:
    """Return a field of a configuration that is a whole number.

    Raises
    ------
    LookupError
        If it is not there, or no such number.
    """
    value = fields[name]
    if isinstance(value, bool) or not isinstance(value, int) or value < 0:
        raise LookupError(f"{name} is {value!r}")
    return value


#: Modules of BERT and its kind.
_BERT_PROJECTIONS = (
    "attention.self.query",
    "attention.self.key",
    "attention.self.value",
    "attention.output.dense",
)


@dataclass(frozen=True, eq=False, kw_only=True)
class Family:
    """A kind of model: which architectures belong to it, and where their attention is.

    What is not said of a family is as in BERT.

    Attributes
    ----------
    name
        Name for tables and messages.
    model_types
        The ``model_type`` of the configurations that belong to it.
    decoder
        Whether to load the model with its next-token head.
    linear
        Whether q and k are affine in the hidden states, so that weights and token moments give H.
    layers
        Attributes that lead from the backbone to its layers, such as ``encoder.layer``.
    module
        Attributes that lead from a layer to the module that computes attention.
    projections
        Attributes that lead from a layer to the maps of queries, keys and values, and to the map
        of the output.
    note
        Note to users about the numbers of this family; may be empty.
    sizes
        Fields of a configuration: numbers of layers and heads, dimension of a token, positions.
    causal_field
        Field of an encoder's configuration that makes it causal; empty if it never is.
    padding
        Index of the padding's position, or the field that holds it: text starts after it.
    hooked
        First arguments of the attention module, in a family whose attention does not go through
        transformers' attention interface; hooks see it instead.
    """

    name: str
    model_types: Sequence[str]
    decoder: bool = False
    linear: bool = True
    layers: str = "encoder.layer"
    module: str = "attention.self"
    projections: tuple[str, ...] = _BERT_PROJECTIONS
    note: str = ""
    sizes: tuple[str, str, str, str] = (
        "num_hidden_layers",
        "num_attention_heads",
        "hidden_size",
        "max_position_embeddings",
    )
    causal_field: str = "is_decoder"
    padding: int | str = -1
    hooked: tuple[str, ...] = ()

    def blocks(self, model: Any) -> Sequence[Any]:
        """The model's layers."""
        return list(attrgetter(self.layers)(self.backbone(model)))

    def attention(self, block: Any) -> Any:
        """The module of a layer that computes attention."""
        return attrgetter(self.module)(block)

    def projection_modules(self, block: Any) -> list[Any]:
        """The modules that make queries, keys and values, and the one that takes the output."""
        return [attrgetter(path)(block) for path in self.projections]

    def maps(self, block: Any) -> list[tuple[Tensor, Tensor | None]]:
        """Weights and biases of queries, keys, values and output; matrices act from the left."""
        modules = self.projection_modules(block)
        if len(modules) == 4:
            return [(module.weight, module.bias) for module in modules]
        # GPT-2: three thirds of one matrix, and the output matrix; both act from the right
        inner, output = modules
        thirds = zip(inner.weight.T.chunk(3, dim=0), inner.bias.chunk(3, dim=0), strict=True)
        return [*thirds, (output.weight.T, output.bias)]

    def backbone(self, model: Any) -> Any:
        """The part of the model that all attention happens in, without a head on top."""
        base = model.base_model
        return getattr(base, "language_model", base)  # inside a model that also reads images

    def config(self, model: Any) -> Any:
        """The configuration of the backbone."""
        return self.backbone(model).config

    def shape(self, fields: Mapping[str, Any]) -> ModelShape:
        """Sizes of the attention that a configuration describes.

        Raises
        ------
        LookupError
            If the configuration does not say.
        """
        layers, heads, hidden, _ = (whole_number(fields, name) for name in self.sizes)
        return ModelShape(layers, heads, heads, hidden // heads, hidden)

    def is_causal(self, fields: Mapping[str, Any]) -> bool:
        """Whether queries of the model that a configuration describes see only earlier keys."""
        return self.decoder or bool(fields.get(self.causal_field))

    def max_positions(self, fields: Mapping[str, Any]) -> int:
        """Longest passage that the model reads, by its configuration."""
        padding = self.padding
        unused = 1 + (whole_number(fields, padding) if isinstance(padding, str) else padding)
        return whole_number(fields, self.sizes[3]) - unused

    def model_attention(self, module: Any, implementation: str) -> Callable[..., Any]:
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


class BigBird(Family):
    """BigBird; block-sparse models are switched to full attention while they are looked at.

    The block-sparse form is an approximation that depends on random blocks; what it approximates,
    with the same weights, is the dense form.
    """

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


#: Architectures whose heads are equal parts of a token unless they say otherwise.
EQUAL_PARTS = ("llama", "mistral", "qwen2", "smollm3")


@dataclass(frozen=True, eq=False, kw_only=True)
class Llama(Family):
    """Llama and those built like it: rotary positions, grouped keys.

    SmolLM and SmolLM2 are Llama models; Mistral and Qwen may have sliding windows; Qwen 3
    normalises queries and keys.
    """

    decoder: bool = True
    linear: bool = False
    layers: str = "layers"
    module: str = "self_attn"
    projections: tuple[str, ...] = (
        "self_attn.q_proj",
        "self_attn.k_proj",
        "self_attn.v_proj",
        "self_attn.o_proj",
    )

    def shape(self, fields: Mapping[str, Any]) -> ModelShape:
        """Sizes of the attention; key heads and their dimension have fields of their own.

        What it means to leave them out differs by architecture: transformers knows.
        """
        layers, heads, hidden, _ = (whole_number(fields, name) for name in self.sizes)
        key_heads, head_dim = heads, hidden // heads
        if fields["num_key_value_heads"] is not None:
            key_heads = whole_number(fields, "num_key_value_heads") or heads
        equal = fields.get("model_type") in EQUAL_PARTS and fields.get("head_dim") is None
        if not equal and fields["head_dim"] is not None:
            head_dim = whole_number(fields, "head_dim") or head_dim
        return ModelShape(layers, heads, key_heads, head_dim, hidden)

    def is_causal(self, fields: Mapping[str, Any]) -> bool:
        """Unless it was trained to look both ways, as some Gemma models are."""
        return not fields.get("use_bidirectional_attention")


#: Every family, in the order of messages.
FAMILIES: tuple[Family, ...] = (
    Family(  # and its smaller relatives, such as MiniLM
        name="BERT",
        model_types=("bert",),
    ),
    Family(
        name="RoBERTa",
        model_types=("roberta", "xlm-roberta"),
        padding="pad_token_id",
    ),
    Family(
        name="DistilBERT",
        model_types=("distilbert",),
        layers="transformer.layer",
        module="attention",
        projections=(
            "attention.q_lin",
            "attention.k_lin",
            "attention.v_lin",
            "attention.out_lin",
        ),
        sizes=("n_layers", "n_heads", "dim", "max_position_embeddings"),
        causal_field="",
    ),
    Family(
        name="MPNet",
        model_types=("mpnet",),
        module="attention.attn",
        projections=(
            "attention.attn.q",
            "attention.attn.k",
            "attention.attn.v",
            "attention.attn.o",
        ),
        note="logits carry a bias by relative position, which a cloud of tokens pooled over "
        "passages has no place for",
        causal_field="",
        padding=1,  # whatever the padding token is
        hooked=("hidden_states", "attention_mask", "position_bias"),
    ),
    Family(
        name="GPT-2",
        model_types=("gpt2",),
        decoder=True,
        layers="h",
        module="attn",
        projections=("attn.c_attn", "attn.c_proj"),
        sizes=("n_layer", "n_head", "n_embd", "n_positions"),
    ),
    Llama(
        name="Llama",
        model_types=("llama", "mistral", "qwen2", "qwen3", "smollm3"),
    ),
    Llama(  # with soft-capped logits (2) and sliding windows (2 and 3)
        name="Gemma",
        model_types=("gemma", "gemma2", "gemma3", "gemma3_text"),
    ),
    BigBird(
        name="BigBird",
        model_types=("big_bird",),
        module="attention",  # with its output projection: the part inside is exchanged when dense
        note="measured in its dense form (attention_type original_full), also if stored "
        "block-sparse",
        hooked=("hidden_states", "attention_mask"),
    ),
)


def family_of(model_type: str, name: str) -> Family:
    """Return the family of an architecture; ``name`` is the model's, for the message.

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
