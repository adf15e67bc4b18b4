"""Random queries of a head, block by block, as a function of the seed alone."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from esscher.core.streams import random_stream
from esscher.core.validation import Array
from esscher.math.heads import Head

#: Queries drawn at a time; memory is bounded by a block.
BLOCK = 1024


def query_stream(seed: int) -> np.random.Generator:
    """Return the random stream of the queries of a seed."""
    return random_stream(seed, "limit queries")


def query_blocks(head: Head, samples: int, seed: int) -> Iterator[Array]:
    """Yield the tilts of ``samples`` independent queries in blocks of rows."""
    rng = query_stream(seed)
    for start in range(0, samples, BLOCK):
        yield head.sample(min(BLOCK, samples - start), rng).tilts
