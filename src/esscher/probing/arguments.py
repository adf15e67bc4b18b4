"""Checks of what is asked of a probe, and the configuration that they amount to."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np
from numpy.typing import ArrayLike

from esscher.errors import InputError
from esscher.models import LoadedModel
from esscher.models.selection import as_indices
from esscher.probing.context import PREFIX
from esscher.validation import as_dim, as_sizes

MODES = ("pooled", "context")
SAMPLINGS = ("with", "without")
#: Tokens of the cloud unless a number is given: pooled mode, and passages in context mode.
TOKENS, PASSAGES = 9_216, 2
#: Longest passage in context mode unless a length is given.
CONTEXT = 4_096
#: Sizes unless they are given: first, number, and the share of the keys that the last one is.
FIRST, COUNT, SHARE = 64, 6, 0.25
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
    loaded: LoadedModel,
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
        raise InputError("sampling without replacement is for pooled mode")
    longest = loaded.max_positions
    length = min(longest, 512 if mode == "pooled" else CONTEXT) if context is None else context
    length = as_dim(length, "context")
    if length > longest:
        raise InputError(
            f"context is {length}, but {loaded.name} reads at most {longest} tokens at a time"
        )
    count = TOKENS if mode == "pooled" else PASSAGES * length
    count = count if tokens is None else as_dim(tokens, "tokens")
    keys = count if mode == "pooled" else int(length * (PREFIX if loaded.causal else 1.0))
    if sizes is None:
        last = min(LAST, int(SHARE * keys))
        if last < 2 * FIRST:
            raise InputError(
                f"{keys} keys are too few for a curve; give at least {int(2 * FIRST / SHARE)} "
                f"{'tokens' if mode == 'pooled' else 'tokens of context'}, or sizes of your own"
            )
        n = tuple(int(x) for x in np.unique(np.geomspace(FIRST, last, COUNT).round()))
    else:
        n = tuple(int(x) for x in as_sizes(sizes))
    if sampling == "without" and n[-1] >= keys:
        raise InputError(f"sizes go up to {n[-1]}, but without replacement only below {keys}")
    draws = as_dim(replicates, "replicates")
    if isinstance(seed, bool) or not isinstance(seed, (int, np.integer)) or seed < 0:
        raise InputError(f"seed is {seed!r}; it must be a whole number of at least 0")
    return ProbeRequest(
        mode=mode,
        tokens=count,
        context=length,
        layers=tuple(as_indices(layers, loaded.shape.layers, "layers")),
        heads=tuple(as_indices(heads, loaded.shape.heads, "heads")),
        sizes=n,
        replicates=draws,
        seed=int(seed),
        sampling=sampling,
    )
