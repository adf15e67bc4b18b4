"""A model in outline, known before its weights are read, and its record, which runs store.

A configuration of a few kilobytes says how many layers and heads a model has and how long a passage
it reads; every request is checked against it. Reading the weights can take minutes, and importing
torch takes seconds; nothing here does either, unless a configuration leaves out what only
transformers knows.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Annotated, Any, Literal

from msgspec import Meta

from esscher.core.codec import Count, Hash, Name, Record
from esscher.core.errors import InputError
from esscher.engine.models.families import Family, ModelShape, family_of
from esscher.engine.models.sources import find_model, read_config, read_gguf_metadata

#: Types that weights can be loaded in.
DTYPES = ("float32", "float64", "float16", "bfloat16")
#: Most layers of a model; the deepest have 130, and building a layer takes a millisecond.
DEEPEST = 2000

#: Decoders as llama.cpp calls them, and their ``model_type``.
GGUF_TYPES = {
    "llama": "llama",
    "qwen2": "qwen2",
    "qwen3": "qwen3",
    "gemma": "gemma",
    "gemma2": "gemma2",
    "gemma3": "gemma3_text",
    "smollm3": "smollm3",
}
#: Fields of a configuration, and the entries of a GGUF file that hold them.
GGUF_FIELDS = {
    "num_hidden_layers": "block_count",
    "num_attention_heads": "attention.head_count",
    "num_key_value_heads": "attention.head_count_kv",
    "head_dim": "attention.key_length",
    "hidden_size": "embedding_length",
    "max_position_embeddings": "context_length",
    "sliding_window": "attention.sliding_window",
}


@dataclass(frozen=True)
class Outline:
    """A model as far as requests are checked against it.

    Attributes
    ----------
    name
        The name the model was asked for by.
    family
        What Esscher knows about its architecture.
    shape
        Layers, heads, key heads, dimensions.
    causal
        Whether queries see only earlier keys.
    max_positions
        Longest passage it can read, in tokens.
    window
        Tokens that its layers with a sliding window see; None without such layers.
    weights
        Type of its weights once they are loaded.
    """

    name: str
    family: Family
    shape: ModelShape
    causal: bool
    max_positions: int
    window: int | None = None
    weights: str = "float32"

    def check_supported(self) -> None:
        """Refuse a causal model that cannot be asked for next tokens on a key cache."""
        if self.causal and not self.family.decoder:
            raise InputError(
                f"{self.name!r} is a causal {self.family.name} model, whose key cache cannot be "
                "read; choose an encoder, or a decoder of another family"
            )

    def context(self, wanted: int | None, default: int, name: str = "context") -> int:
        """Length of a passage: the one asked for, else the default or what the model reads.

        Raises
        ------
        InputError
            If it is no length, or more than the model reads.
        """
        if wanted is None:
            return min(default, self.max_positions)
        from esscher.core.validation import as_dim

        length = as_dim(wanted, name)
        if length > self.max_positions:
            raise InputError(
                f"{name} is {length}, but {self.name} reads at most {self.max_positions} tokens at "
                f"a time; give at most {self.max_positions}"
            )
        return length


def outline_of(name: str, *, revision: str | None = None) -> Outline:
    """Return the outline of a model by its name, without reading its weights.

    Raises
    ------
    InputError
        When the model does not exist, is damaged or not supported, with the remedy.
    """
    source = find_model(name, revision=revision)
    fields: Mapping[str, Any] | None = None
    if source.gguf is not None:
        header = read_gguf_metadata(Path(source.location) / source.gguf)
        if header.architecture in GGUF_TYPES:
            entries = {field: header.number(entry) for field, entry in GGUF_FIELDS.items()}
            fields = {key: value for key, value in entries.items() if value is not None}
            fields = {"model_type": GGUF_TYPES[header.architecture], **fields}
    elif source.kind == "hub":
        path = source.cached_config()
        fields = None if path is None else read_config(path)
    else:
        fields = read_config(Path(source.location) / "config.json")
    try:
        if fields is None:
            raise LookupError(source.name)
        return described(source.name, fields)
    except LookupError:
        from esscher.engine.models.load import load_config  # brings torch

        # transformers knows the values of the fields that a configuration leaves out
        return described(source.name, load_config(source).to_dict())


def described(name: str, fields: Mapping[str, Any], layers: int | None = None) -> Outline:
    """Return the outline of a model from the fields of its configuration.

    ``layers`` are those that the model has, if it is in memory.

    Raises
    ------
    LookupError
        If the fields do not say enough.
    InputError
        For an architecture that is not supported, and a model without attention layers.
    """
    family = family_of(str(fields["model_type"]), name)
    text = fields.get("text_config")  # inside a model that also reads images
    inner = {"model_type": fields["model_type"], **(text if isinstance(text, Mapping) else fields)}
    shape = family.shape(inner)
    shape = shape if layers is None else replace(shape, layers=layers)
    if not 0 < shape.layers <= DEEPEST:
        raise InputError(
            f"the model {name!r} has {shape.layers} attention layers; models of 1 to {DEEPEST} "
            "layers are read"
        )
    window = inner.get("sliding_window")
    if inner.get("use_sliding_window") is False or not isinstance(window, int):
        window = None
    return Outline(
        name=name,
        family=family,
        shape=shape,
        causal=family.is_causal(inner),
        max_positions=family.max_positions(inner),
        window=window,
    )


def check_dtype(dtype: str) -> None:
    """Refuse a type that weights cannot be loaded in."""
    if dtype not in DTYPES:
        raise InputError(f"dtype is {dtype!r}; it must be one of {', '.join(DTYPES)}")


# A model as stored runs know it.

#: Sizes of models: bounded, since figures and tables have as many cells.
Size = Annotated[int, Meta(ge=1, le=100_000)]
#: The field of a record that holds some of the weights.
SAMPLE = "weight_sample"


class ModelRecord(Record, frozen=True, kw_only=True):
    """A model, as runs and plans name it.

    Attributes
    ----------
    name
        The name it was asked for by; of a folder, its last part.
    family, architecture
        What Esscher and what transformers call it.
    layers, heads, key_heads, head_dim, hidden
        Its shape.
    causal
        Whether queries see only earlier keys.
    max_positions
        Longest passage it reads, in tokens.
    dtype
        Type of the weights.
    note
        What to know about the family.
    weight_hash
        SHA-256 over all weights.
    weight_sample
        Some of the weights as 32-bit numbers in hexadecimal digits, by which the same weights are
        known again in another type.
    """

    name: Name
    family: Name
    architecture: Name
    layers: Size
    heads: Size
    key_heads: Size
    head_dim: Size
    hidden: Annotated[int, Meta(ge=1, le=10_000_000)]
    causal: bool
    max_positions: Count
    dtype: Name
    note: Name = ""
    weight_hash: Hash = ""
    weight_sample: Annotated[str, Meta(pattern="^[0-9a-f]{0,512}$")] = ""

    def __str__(self) -> str:
        return self.name


def compare_weights(
    stored: Mapping[str, Any], now: Mapping[str, Any]
) -> Literal["same", "other type", "others"]:
    """Compare what the records of two models say about their weights.

    Parameters
    ----------
    stored, now
        Fields of a :class:`ModelRecord`. Without a sample, which runs of older versions do not
        have, weights of another type cannot be told from others.
    """
    import numpy as np

    if stored.get("weight_hash") == now.get("weight_hash"):
        return "same"
    try:
        first, second = (np.frombuffer(bytes.fromhex(x[SAMPLE]), "<f4") for x in (stored, now))
    except (LookupError, TypeError, ValueError):
        return "others"
    if stored.get("dtype") == now.get("dtype") or not 0 < len(first) == len(second):
        return "others"
    # bfloat16 rounds to 8 bits, float16 the smallest weights to multiples of 2^-24
    close = np.allclose(first, second, rtol=2**-8, atol=2**-24, equal_nan=True)
    return "other type" if close else "others"


def type_difference(stored: Mapping[str, Any], now: Mapping[str, Any]) -> str:
    """Describe the same weights in another type."""
    return f"the same weights in {now['dtype']} instead of {stored['dtype']}"
