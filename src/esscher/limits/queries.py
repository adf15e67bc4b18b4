"""Random queries of a head, block by block, as a function of the seed alone."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from esscher.errors import InputError
from esscher.heads import Head
from esscher.validation import Array

#: Queries drawn at a time; memory is bounded by a block.
BLOCK = 1024
#: Sets this stream apart from others with the same seed (the letters "limit").
STREAM = 0x6C696D6974


def query_stream(seed: int) -> np.random.Generator:
    """Return the random stream of a seed.

    Not ``default_rng(seed)``: weights are often drawn from just that, and for normal tokens the
    first queries would then BE the rows of the weights.
    """
    if isinstance(seed, bool) or int(seed) != seed or seed < 0:
        raise InputError(f"seed is {seed!r}; it must be a whole number of at least 0")
    return np.random.default_rng(np.random.SeedSequence(int(seed), spawn_key=(STREAM,)))


def query_blocks(head: Head, samples: int, seed: int) -> Iterator[Array]:
    """Yield the tilts of ``samples`` independent queries in blocks of rows."""
    rng = query_stream(seed)
    for start in range(0, samples, BLOCK):
        yield head.sample(min(BLOCK, samples - start), rng).tilts
