"""Checks of what is asked of a comparison of corpora, and the configuration they amount to."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

from esscher.core.errors import InputError
from esscher.core.validation import as_dim, as_seed, as_share
from esscher.engine.models.outline import Outline
from esscher.engine.models.selection import as_indices
from esscher.engine.sampled.sizes import (
    FEWEST_KEYS,
    default_sizes,
    needed_context,
    passage_keys,
    usual_mode,
)
from esscher.engine.text.documents import TextSource, check_text

KIND = "domains"

MODES = ("pooled", "context")
#: Passage lengths unless one is given: pooled mode, and context mode.
POOLED, CONTEXT = 512, 1_024
#: Tokens of a block in pooled mode unless a number is given: four passages of 512, framed.
TOKENS = 2_000
#: Fewest blocks of a corpus, and fewest tokens of a block.
FEWEST_BLOCKS, FEWEST_TOKENS = 3, 48
#: Sizes of the samples of which errors are measured: number, and first.
COUNT, FIRST = 5, 32


@dataclass(frozen=True)
class BlockShape:
    """What a block is made of.

    Attributes
    ----------
    count
        Blocks of a corpus.
    tokens
        Tokens of a block, without delimiters.
    context
        Tokens that the model reads at a time.
    sequences
        Number of whole passages of a block; None when only the tokens count.
    """

    count: int
    tokens: int
    context: int
    sequences: int | None


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
    model: Outline,
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
        mode = usual_mode(model)
    if mode not in MODES:
        raise InputError(f"mode is {mode!r}; it must be one of {', '.join(MODES)}")
    length = model.context(context, POOLED if mode == "pooled" else CONTEXT)
    if block_tokens is None:
        block_tokens = TOKENS if mode == "pooled" else max(length, FEWEST_TOKENS)
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
    draws = as_dim(replicates, "replicates") if measure else 0
    keys = count if mode == "pooled" else passage_keys(model, length)
    return DomainsRequest(
        mode=mode,
        blocks=number,
        block_tokens=count,
        context=length,
        layers=tuple(as_indices(layers, model.shape.layers, "layers")),
        heads=tuple(as_indices(heads, model.shape.heads, "heads")),
        sizes=_sizes(model, mode, keys, length) if measure else (),
        replicates=draws,
        seed=as_seed(seed),
    )


def _sizes(model: Outline, mode: str, keys: int, length: int) -> tuple[int, ...]:
    """Sizes of the samples: up to a quarter of the keys."""
    if keys >= FEWEST_KEYS:
        return default_sizes(keys, FIRST, COUNT, 4)
    if mode == "pooled":  # blocks are longer
        raise AssertionError(f"blocks of {keys} tokens were let through")
    needed = needed_context(model)
    raise InputError(
        f"a context of {length} leaves {keys} keys, and it takes {FEWEST_KEYS} to measure "
        "exponents; "
        + (
            f"give a context of at least {needed}, or leave measuring out"
            if needed <= model.max_positions
            else f"{model.name} reads only {model.max_positions} tokens: leave measuring out"
        )
    )


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
    for name, source in found.items():
        try:
            check_text(source)
        except InputError as error:
            raise InputError(f"corpus {name!r}: {error}") from error
    return found


def as_level(alpha: float) -> float:
    """The level of tests and intervals, between 0 and 1/2."""
    value = as_share(alpha, "alpha", 0.05)
    if not 0 < value <= 0.5:
        raise InputError(f"alpha is {alpha!r}; it must be above 0 and at most 0.5, such as 0.05")
    return value
