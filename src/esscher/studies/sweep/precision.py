"""How well a slope is known: its interval by resampling replicates."""

from __future__ import annotations

import numpy as np

from esscher.core.streams import random_stream
from esscher.core.validation import Array
from esscher.math.statistics import LEVEL, resampling_counts
from esscher.studies.sweep.schedule import slope_weights

#: Resamples behind an interval.
RESAMPLES = 1000


def slope_half_widths(errors: Array, sizes: Array, seed: int) -> Array:
    """Half the width of the 95% interval of the log-log slope of the mean error, per scale.

    Parameters
    ----------
    errors
        Axes [scale, replicate, size]; ``nan`` at the sizes above the last of a replicate.
    sizes
        Numbers of tokens, at least two.
    seed
        Seed of the resampling. Replicates that end at the same size are resampled among themselves.

    Returns
    -------
    Array
        Infinite where there is no slope (one replicate, or errors that vanish).
    """
    scales, replicates, n = errors.shape
    depths = np.isfinite(errors[0]).sum(axis=1)
    if np.sum(depths == n) < 2 or n < 2:
        return np.full(scales, np.inf)
    rng = random_stream(seed, "slope", replicates)
    counts = np.array([np.sum(depths > j) for j in range(n)], dtype=np.float64)
    means = np.zeros((scales, RESAMPLES, n))
    for depth in np.unique(depths):
        chosen = errors[:, depths == depth, :depth]
        members = chosen.shape[1]
        times = resampling_counts(members, RESAMPLES, rng)
        means[:, :, :depth] += times @ chosen / counts[:depth]
    if not np.all(means > 0):
        return np.full(scales, np.inf)
    slopes = np.log(means) @ slope_weights(np.log(sizes), counts)
    low, high = np.quantile(slopes, [(1 - LEVEL) / 2, (1 + LEVEL) / 2], axis=1)
    return np.asarray(high - low) / 2


def relative_covariance(errors: Array) -> Array:
    """Relative covariance of the errors [replicate, size] between sizes, from whole replicates."""
    whole = errors[np.isfinite(errors).all(axis=1)]
    relative = whole / whole.mean(axis=0)
    centred = relative - 1.0
    return np.asarray(centred.T @ centred / max(len(whole) - 1, 1))
