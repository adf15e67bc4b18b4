"""What a stored run says about its model."""

from __future__ import annotations

from typing import Annotated

from msgspec import Meta

from esscher.core.codec import Count, Hash, Name, Record

#: Sizes of models: bounded, since figures and tables have as many cells.
Size = Annotated[int, Meta(ge=1, le=100_000)]


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
