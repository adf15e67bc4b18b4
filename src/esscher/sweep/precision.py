"""When enough replicates are enough: the interval of the fitted slope, by resampling replicates."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import count

import numpy as np

from esscher.streams import random_stream
from esscher.validation import Array

#: Resamples behind an interval, and its level.
RESAMPLES, LEVEL = 1000, 0.95


def checkpoints(first: int, last: int) -> Iterator[int]:
    """Numbers of replicates at which precision is judged: ``first`` times 1, 1.5, 2, 3, 4, 6, ...

    They depend on nothing that happens during a run, so that its result does not either. They grow
    because a judgement waits for all workers, and because each is a chance to stop by luck.
    """
    for step in count():
        whole, half = divmod(step, 2)
        boundary = first * 2**whole + (first * 2**whole // 2 if half else 0)
        yield min(boundary, last)
        if boundary >= last:
            return


def slope_half_width(errors: Array, sizes: Array, seed: int) -> float:
    """Half the width of the 95% interval of the log-log slope, the largest over the scales.

    Parameters
    ----------
    errors
        Axes [scale, replicate, size].
    sizes
        Numbers of tokens, at least two.
    seed
        Seed of the resampling.

    Returns
    -------
    float
        Infinite where there is no slope (one replicate, or errors that vanish).
    """
    scales, replicates, n = errors.shape
    if replicates < 2 or n < 2:
        return float("inf")
    rng = random_stream(seed, "slope", replicates)
    times = rng.multinomial(replicates, np.full(replicates, 1 / replicates), size=RESAMPLES)
    x = np.log(sizes) - np.log(sizes).mean()
    widest = 0.0
    for s in range(scales):
        means = times @ errors[s] / replicates
        if not np.all(means > 0):
            return float("inf")
        slopes = np.log(means) @ x / (x @ x)
        low, high = np.quantile(slopes, [(1 - LEVEL) / 2, (1 + LEVEL) / 2])
        widest = max(widest, float(high - low) / 2)
    return widest
