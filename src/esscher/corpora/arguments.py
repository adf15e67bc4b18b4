"""Checks of what is asked of a comparison of corpora, and the configuration they amount to."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np

from esscher.corpora.blocks import BlockShape
from esscher.errors import InputError
from esscher.models import LoadedModel
from esscher.models.selection import as_indices
from esscher.probing.context import PREFIX
from esscher.text import TextSource
from esscher.validation import as_dim

MODES = ("pooled", "context")
#: Passage lengths unless one is given: pooled mode, and context mode.
POOLED, CONTEXT = 512, 1_024
#: Tokens of a block in pooled mode unless a number is given: four passages of 512, framed.
TOKENS = 2_000
#: Fewest blocks of a corpus, and fewest tokens of a block.
FEWEST_BLOCKS, FEWEST_TOKENS = 3, 48
#: Sizes of the samples of which errors are measured: number, first, and largest share of the keys.
COUNT, FIRST, SHARE = 5, 32, 0.25


@dataclass(frozen=True)
class DomainsRequest:
    """What is measured in every block, apart from the model and the corpora."""

    mode: str
    blocks: int
    block_tokens: int
    context: int
    layers: tuple[int, ...]
    heads: tuple[int, ...]
    sizes: tuple[int, ...]
    replicates: int
    seed: int

    def to_dict(self) -> dict[str, Any]:
        """Return the fields as JSON holds them."""
        return {
            name: list(value) if isinstance(value, tuple) else value
            for name, value in asdict(self).items()
        }

    @property
    def shape(self) -> BlockShape:
        """What a block is made of."""
        whole = None if self.mode == "pooled" else max(1, self.block_tokens // self.context)
        return BlockShape(self.blocks, self.block_tokens, self.context, whole)


def make_request(
    loaded: LoadedModel,
    *,
    mode: str | None,
    blocks: int,
    block_tokens: int | None,
    context: int | None,
    layers: Sequence[int] | None,
    heads: Sequence[int] | None,
    measure: bool,
    replicates: int,
    seed: int,
) -> DomainsRequest:
    """Check the arguments and fill in what was left out."""
    if mode is None:
        mode = "context" if loaded.causal else "pooled"
    if mode not in MODES:
        raise InputError(f"mode is {mode!r}; it must be one of {', '.join(MODES)}")
    longest = loaded.max_positions
    length = min(longest, POOLED if mode == "pooled" else CONTEXT) if context is None else context
    length = as_dim(length, "context")
    if length > longest:
        raise InputError(
            f"context is {length}, but {loaded.name} reads at most {longest} tokens at a time"
        )
    if block_tokens is None:
        block_tokens = TOKENS if mode == "pooled" else length
    count = as_dim(block_tokens, "block tokens")
    if count < FEWEST_TOKENS:
        raise InputError(f"blocks of {count} tokens are too short; give at least {FEWEST_TOKENS}")
    if mode == "context" and count < length:
        raise InputError(
            f"blocks of {count} tokens do not hold a passage of {length}; give blocks of at least "
            f"{length} tokens, or a shorter context"
        )
    number = as_dim(blocks, "blocks")
    if number < FEWEST_BLOCKS:
        raise InputError(
            f"{number} blocks do not tell how much a corpus varies; give at least {FEWEST_BLOCKS}"
        )
    if isinstance(seed, bool) or not isinstance(seed, (int, np.integer)) or seed < 0:
        raise InputError(f"seed is {seed!r}; it must be a whole number of at least 0")
    draws = as_dim(replicates, "replicates") if measure else 0
    keys = count if mode == "pooled" else int(length * (PREFIX if loaded.causal else 1.0))
    return DomainsRequest(
        mode=mode,
        blocks=number,
        block_tokens=count,
        context=length,
        layers=tuple(as_indices(layers, loaded.shape.layers, "layers")),
        heads=tuple(as_indices(heads, loaded.shape.heads, "heads")),
        sizes=_sizes(keys) if measure else (),
        replicates=draws,
        seed=int(seed),
    )


def _sizes(keys: int) -> tuple[int, ...]:
    """Sizes of the samples: up to a quarter of the keys."""
    last = int(SHARE * keys)
    first = min(FIRST, last // 4)
    if first < 4:
        raise InputError(
            f"{keys} keys are too few to measure exponents; give blocks with at least "
            f"{math.ceil(16 / SHARE)} keys, or leave measuring out"
        )
    return tuple(int(n) for n in np.unique(np.geomspace(first, last, COUNT).round()))


def check_corpora(texts: Mapping[str, TextSource]) -> dict[str, TextSource]:
    """At least two corpora with different, non-empty names.

    Raises
    ------
    InputError
        Otherwise; the message names the corpus.
    """
    if not isinstance(texts, Mapping):
        raise InputError(
            f"texts is {type(texts).__name__}; it must be a dictionary of corpora by name, such as "
            '{"wiki": "a.txt", "code": "demo:code"}'
        )
    found: dict[str, TextSource] = {}
    for name, source in texts.items():
        if not isinstance(name, str) or not name.strip() or not name.isprintable():
            raise InputError(f"the name of a corpus is {name!r}; give it a name of printable text")
        found[name.strip()] = source
    if len(found) < len(texts):
        raise InputError("two corpora have the same name; give each its own")
    if len(found) < 2:
        raise InputError(
            f"there {'is only one corpus' if found else 'are no corpora'}; comparing takes at "
            "least two, such as --text wiki=a.txt --text code=demo:code"
        )
    streams = [name for name, source in found.items() if isinstance(source, str) and source == "-"]
    if len(streams) > 1:
        raise InputError(f"standard input (-) is given as {' and '.join(streams)}; once is enough")
    return found


def as_level(alpha: float) -> float:
    """The level of tests and intervals, between 0 and 1/2."""
    try:
        value = float(alpha)
    except (TypeError, ValueError) as error:
        raise InputError(f"alpha is {alpha!r}; it must be a number such as 0.05") from error
    if isinstance(alpha, bool) or not 0 < value <= 0.5:
        raise InputError(f"alpha is {alpha!r}; it must be above 0 and at most 0.5, such as 0.05")
    return value
