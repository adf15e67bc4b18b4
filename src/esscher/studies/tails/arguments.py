"""Checks of what is asked of a test of tails, and the configuration that they amount to."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any

from esscher.core.errors import InputError
from esscher.core.validation import as_dim, as_seed
from esscher.engine.models.outline import Outline
from esscher.engine.models.selection import as_indices
from esscher.studies.tails.passages import FEWEST as FEWEST_PASSAGES

KIND = "tails"
#: Fewest tokens: below, neither search nor fit says anything.
FEWEST = 500
#: Tokens, and tokens of a passage, unless they are given.
TOKENS, CONTEXT = 16_384, 512


@dataclass(frozen=True)
class TailsRequest:
    """What is tested, apart from model and text."""

    tokens: int
    context: int
    layers: tuple[int, ...]
    heads: tuple[int, ...]
    seed: int

    def to_dict(self) -> dict[str, Any]:
        """Return the fields as JSON holds them."""
        return asdict(self) | {"layers": list(self.layers), "heads": list(self.heads)}


def make_request(
    model: Outline,
    *,
    tokens: int,
    context: int | None,
    layers: Sequence[int] | None,
    heads: Sequence[int] | None,
    seed: int,
) -> TailsRequest:
    """Check the arguments and fill in what was left out."""
    count = as_dim(tokens, "tokens")
    if count < FEWEST:
        raise InputError(
            f"tokens is {count}; it takes at least {FEWEST} to see a tail: give as many"
        )
    # the last passage may hold more than what is left of the tokens
    longest = (count - 1) // (FEWEST_PASSAGES - 1)
    length = model.context(context, min(CONTEXT, longest))
    if length > longest:
        raise InputError(
            f"tokens is {count} and context {length}; it takes at least {FEWEST_PASSAGES} "
            "passages, half of them to judge what was found in the others: give at least "
            f"{(FEWEST_PASSAGES - 1) * length + 1} tokens, or a context of at most {longest}"
        )
    return TailsRequest(
        tokens=count,
        context=length,
        layers=as_indices(layers, model.shape.layers, "layers"),
        heads=as_indices(heads, model.shape.heads, "heads"),
        seed=as_seed(seed),
    )
