"""Checks of what is asked of a probe, and the configuration that they amount to."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any

from numpy.typing import ArrayLike

from esscher.core.errors import InputError
from esscher.core.validation import as_dim, as_seed, as_sizes
from esscher.engine.models.outline import Outline
from esscher.engine.models.selection import as_indices
from esscher.engine.sampled.sizes import FEWEST_KEYS, default_sizes, needed_context, passage_keys

KIND = "probe"
MODES = ("pooled", "context")
SAMPLINGS = ("with", "without")
#: Tokens of the cloud unless a number is given: pooled mode, and passages in context mode.
TOKENS, PASSAGES = 9_216, 2
#: Longest passage unless a length is given: pooled mode, and context mode.
POOLED, CONTEXT = 512, 4_096
#: Sizes unless they are given: first, and number.
FIRST, COUNT = 64, 6
#: The last size is at most this unless it is given.
LAST = 2_048


@dataclass(frozen=True)
class ProbeRequest:
    """What a probe measures, apart from model and text."""

    mode: str
    tokens: int
    context: int
    layers: tuple[int, ...]
    heads: tuple[int, ...]
    sizes: tuple[int, ...]
    replicates: int
    seed: int
    sampling: str

    def to_dict(self) -> dict[str, Any]:
        """Return the fields as JSON holds them."""
        return {
            name: list(value) if isinstance(value, tuple) else value
            for name, value in asdict(self).items()
        }


def make_request(
    model: Outline,
    *,
    mode: str,
    tokens: int | None,
    context: int | None,
    layers: Sequence[int] | None,
    heads: Sequence[int] | None,
    sizes: ArrayLike | None,
    replicates: int,
    seed: int,
    sampling: str,
) -> ProbeRequest:
    """Check the arguments and fill in what was left out."""
    if mode not in MODES:
        raise InputError(f"mode is {mode!r}; it must be one of {', '.join(MODES)}")
    if sampling not in SAMPLINGS:
        raise InputError(f"sampling is {sampling!r}; it must be 'with' or 'without'")
    if sampling == "without" and mode == "context":
        raise InputError(
            "sampling without replacement is for pooled mode; leave it out in context mode"
        )
    length = model.context(context, POOLED if mode == "pooled" else CONTEXT)
    count = TOKENS if mode == "pooled" else PASSAGES * length
    count = count if tokens is None else as_dim(tokens, "tokens")
    keys = count if mode == "pooled" else passage_keys(model, length)
    if sizes is None:
        if keys < FEWEST_KEYS:
            raise InputError(_too_few(model, mode, count, length, keys))
        n = default_sizes(keys, FIRST, COUNT, 2, LAST)
    else:
        n = tuple(int(x) for x in as_sizes(sizes))
    if sampling == "without" and n[-1] >= keys:
        raise InputError(
            f"sizes go up to {n[-1]}, but without replacement only below {keys}; give smaller "
            "sizes, or more tokens"
        )
    draws = as_dim(replicates, "replicates")
    return ProbeRequest(
        mode=mode,
        tokens=count,
        context=length,
        layers=tuple(as_indices(layers, model.shape.layers, "layers")),
        heads=tuple(as_indices(heads, model.shape.heads, "heads")),
        sizes=n,
        replicates=draws,
        seed=as_seed(seed),
        sampling=sampling,
    )


def _too_few(model: Outline, mode: str, tokens: int, length: int, keys: int) -> str:
    """What to do about a request that leaves too few keys."""
    if mode == "pooled":
        return f"tokens is {tokens}; it takes at least {FEWEST_KEYS} for a curve: give as many"
    needed = needed_context(model)
    what = f"context is {length}, which leaves {keys} keys; it takes {FEWEST_KEYS} for a curve"
    if needed > model.max_positions:
        return (
            f"{what}, and {model.name} reads at most {model.max_positions} tokens: measure it in "
            "pooled mode"
        )
    return f"{what}: give a context of at least {needed}"
