"""Passages: the units that are independent, and by which clouds are split and resampled."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from esscher.core.errors import InputError
from esscher.core.streams import random_stream
from esscher.core.validation import Array

#: Blocks into which tokens without passages (one long sequence) are cut.
BLOCKS = 32
#: Fewest passages, so that each half has two.
FEWEST = 4


def blocks(count: int, number: int = BLOCKS) -> NDArray[np.int64]:
    """Consecutive tokens as blocks of about the same size, instead of passages."""
    return np.arange(count) * min(number, count) // max(count, 1)


def split_passages(groups: NDArray[np.int64], seed: int) -> NDArray[np.bool_]:
    """Half of the passages, drawn at random, as a mask of their tokens.

    Raises
    ------
    InputError
        For fewer than four passages.
    """
    names, index, sizes = np.unique(groups, return_inverse=True, return_counts=True)
    if len(names) < FEWEST:
        raise InputError(
            f"the tokens come from {len(names)} passages; it takes at least {FEWEST} to search for "
            "directions in some and judge them on the others: give more tokens, or shorter passages"
        )
    order = random_stream(seed, "tail halves").permutation(len(names))
    chosen = np.zeros(len(names), dtype=bool)
    taken = [0, 0]
    for name in order:
        # to the half that has fewer tokens so far
        side = int(taken[1] < taken[0])
        chosen[name] = side == 0
        taken[side] += int(sizes[name])
    return np.asarray(chosen[index])


def sums_by_group(values: Array, groups: NDArray[np.int64]) -> tuple[Array, Array]:
    """Sums of the rows of each group, and the sizes of the groups."""
    order = np.argsort(groups, kind="stable")
    _, first, sizes = np.unique(groups[order], return_index=True, return_counts=True)
    return np.add.reduceat(values[order], first, axis=0), sizes.astype(np.float64)
