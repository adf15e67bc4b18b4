"""What a plan is: how many tokens every key head of a model keeps, and how they are chosen.

Everything that runs a model under a plan needs this record and nothing else of a plan.
"""

from __future__ import annotations

import warnings
from typing import TYPE_CHECKING, Annotated, Any, Literal, TypeAlias

from msgspec import Meta, structs

from esscher.core.codec import Record
from esscher.core.errors import InputError
from esscher.core.validation import Array
from esscher.engine.attention.bits import ALL_BITS, ENTRY_BYTES, EXACT, Bits, list_bytes
from esscher.engine.models.outline import ModelRecord, compare_weights, type_difference

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

    from esscher.engine.models.loaded import LoadedModel

#: Powers of the scores in the samples, among which each key head has its own.
POWERS = (0.5, 0.75, 1.0, 1.5)
#: Sinks and recent tokens; recent ones are this share of what a head keeps at most.
SINKS, RECENT, SHARE = 4, 32, 1 / 16

Tokens: TypeAlias = Annotated[int, Meta(ge=0, le=10**15)]
#: One whole number per layer and key head.
TokenGrid: TypeAlias = Annotated[
    tuple[Annotated[tuple[Tokens, ...], Meta(min_length=1, max_length=100_000)], ...],
    Meta(min_length=1, max_length=100_000),
]
#: Queries by which tokens are scored: the last ones of the prompt, all of them moved after it, or
#: those with which the model repeats it.
Score: TypeAlias = Literal["all", "last", "repeat"]
#: What is kept by the scores: a weighted sample whose weights and values are fitted to the answers
#: of the whole prompt, the sample as it is, or the tokens with the largest scores, without weights.
SelectionKind: TypeAlias = Literal["fitted", "sample", "topk"]
#: Bits of keys and values per layer and key head.
BitGrid: TypeAlias = tuple[tuple[Bits, ...], ...]
#: One number per layer and head.
Grid: TypeAlias = tuple[tuple[float, ...], ...]


class Keeping(Record, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """First and last tokens of a text that every head keeps for certain."""

    sinks: Tokens
    recent: Tokens

    @property
    def count(self) -> int:
        """Both together."""
        return self.sinks + self.recent


def keeping_for(prefix: int, budget: float = 1.0) -> Keeping:
    """Sinks and recent tokens that are always kept, where a share ``budget`` of a prefix is."""
    return Keeping(sinks=SINKS, recent=min(RECENT, int(SHARE * budget * prefix)))


class TokenBudgets(Record, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Token budgets of the key heads of a model.

    Attributes
    ----------
    model
        The model they are for.
    prefix
        Length of the cache, or of an encoder's passage, of which they are kept.
    keeping
        What every head keeps for certain.
    budgets, powers
        Tokens that are kept, and the power of the scores in the sample, by layer and key head.
    selection, score
        How tokens are chosen, and by which queries they are scored. Powers are of samples alone.
    bits
        Bits of the entries of keys and values, by layer and key head: 16 stands for the type of the
        model, in which the first and the latest tokens are always kept. None if all have 16.
    """

    model: ModelRecord
    prefix: Tokens
    keeping: Keeping
    budgets: TokenGrid
    powers: Grid
    selection: SelectionKind = "sample"
    score: Score = "all"
    bits: BitGrid | None = None

    def __post_init__(self) -> None:
        """Refuse what cannot be budgets of the model's key heads."""
        shape = (self.model.layers, self.model.key_heads)
        grids: tuple[tuple[tuple[Any, ...], ...], ...] = (self.budgets, self.powers)
        for grid in grids if self.bits is None else (*grids, self.bits):
            if (len(grid), *{len(row) for row in grid}) != shape:
                raise InputError(
                    "its budgets, powers or bits are not one per layer and key head of its model"
                )
        least = self.keeping.count
        if any(not least < tokens <= self.prefix for row in self.budgets for tokens in row):
            raise InputError(
                f"its budgets are no budgets for its prefix: they must be above {least}, what is "
                f"kept for certain, and at most {self.prefix}"
            )
        if any(power not in POWERS for row in self.powers for power in row):
            raise InputError(f"its powers must be among {', '.join(map(str, POWERS))}")
        if any(bits not in ALL_BITS for row in self.bits or () for bits in row):
            raise InputError(f"its bits of keys and values must be among {str(ALL_BITS)[1:-1]}")

    @property
    def tokens(self) -> NDArray[np.int64]:
        """Tokens kept of a prefix of this length, [layers, key heads]."""
        import numpy as np

        return np.array(self.budgets, dtype=np.int64)

    @property
    def nbytes(self) -> NDArray[np.int64]:
        """Bytes of what is kept of a prefix of this length, [layers, key heads]."""
        import numpy as np

        out = np.empty_like(self.tokens)
        for (layer, g), tokens in np.ndenumerate(self.tokens):
            out[layer, g] = self.list_bytes(tokens, self.bits_of(layer, g))
        return out

    def bits_of(self, layer: int, g: int) -> Bits:
        """Bits of what a key head keeps, but for what is kept for certain."""
        return EXACT if self.bits is None else self.bits[layer][g]

    def list_bytes(self, tokens: Any, bits: Bits) -> Any:
        """Bytes of so many tokens of a key head."""
        width, entry = self.model.head_dim, ENTRY_BYTES[self.model.dtype]
        return list_bytes(tokens, self.keeping.count, self.prefix, width, entry, bits)

    @property
    def ratios(self) -> Array:
        """The same as shares of the prefix."""
        ratios: Array = self.tokens / self.prefix
        return ratios

    def check_model(self, loaded: LoadedModel) -> None:
        """Refuse a model that they were not made for; warn if only the type of weights differs.

        Raises
        ------
        InputError
            If it has other weights.
        """
        model, shape = self.model, loaded.shape
        stored, now = structs.asdict(model), structs.asdict(loaded.record)
        weights = compare_weights(stored, now)
        same_shape = (shape.layers, shape.key_heads) == (model.layers, model.key_heads)
        if same_shape and weights == "other type":
            warnings.warn(
                f"{loaded.name!r} has {type_difference(stored, now)}: the plan is used, "
                f"but what it says of errors was measured in {model.dtype}",
                stacklevel=4,
            )
        elif not same_shape or weights != "same":
            raise InputError(
                f"the plan is for {model.name!r} with weights {model.weight_hash[:12]}, not for "
                f"{loaded.name!r} with weights {loaded.weight_hash[:12]}; make a plan for it"
            )


def check_repeat(decode: str, chunk: int | None) -> None:
    """Refuse options of a cache that do not go with the score ``"repeat"``.

    Raises
    ------
    InputError
        If prompts are read in pieces, or later tokens share the budgets.
    """
    if decode != "keep" or chunk is not None:
        raise InputError(
            "with score='repeat' a prompt is read and repeated as a whole, and later tokens are "
            "all kept; leave out chunk and decode, or choose score='all'"
        )
