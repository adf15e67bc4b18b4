"""The sub-Gaussian parameter of a projection, as far as a sample can tell.

For a standardised projection p the parameter is the smallest s with ``ln E exp(t p) <= s t^2 / 2``
for all t: 1 for a Gaussian, infinite without exponential moments. A sample knows the left side only
where many of its values carry ``E exp(t p)``, so that t is limited to where their effective number
``(sum w)^2 / sum w^2``, ``w = exp(t p)``, is at least 100, and where the tail of the weights has an
index of at most 1/2, so that their mean has a finite variance. That is |t| < 1.5 for 5,000 Gaussian
values, |t| < 0.7 for exponential tails. What is
reported is the smallest s on that range.
"""

from __future__ import annotations

import numpy as np
import scipy
from numpy.typing import NDArray

from esscher.core.streams import random_stream
from esscher.core.validation import Array
from esscher.math.statistics import LEVEL, resampling_counts
from esscher.math.tails.passages import sums_by_group
from esscher.math.tails.records import VarianceProxy

#: Effective number of values that must carry the moment generating function.
CARRIERS = 100.0
#: Largest tail index of the weights, below which their mean has a finite variance, and the number
#: of values from which it is read off: few, so that a cluster is seen from inside.
INDEX, FURTHEST = 0.5, 50
#: Strengths at which it is looked at, on either side.
STRENGTHS = np.linspace(0.1, 4.0, 40)
#: Resamples of passages.
RESAMPLES = 400


def variance_proxy(
    projection: Array, groups: NDArray[np.int64], seed: int, level: float = LEVEL
) -> VarianceProxy:
    """``max_t 2 ln E exp(t p) / t^2`` over the range that the sample knows.

    Parameters
    ----------
    projection
        Values of a projection; they are centred and divided by their standard deviation.
    groups
        Passage of each.
    seed
        Of the resampling.
    level
        Level of the interval.
    """
    p = (projection - projection.mean()) / projection.std()
    t = np.concatenate([-STRENGTHS[::-1], STRENGTHS])
    # sums by passage: everything that resampled passages need
    weights = np.exp(t * p[:, None])
    first, sizes = sums_by_group(weights, groups)
    moments, _ = sums_by_group(np.stack([p, p * p], axis=1), groups)
    carriers = first.sum(axis=0) ** 2 / np.sum(weights**2, axis=0)
    known = _known(t, carriers, p)
    ratio = _ratio(np.ones((1, len(sizes))), sizes, first, moments, t)[0]
    best = int(np.argmax(np.where(known, ratio, -np.inf)))
    rng = random_stream(seed, "variance proxy")
    draws = resampling_counts(len(sizes), RESAMPLES, rng)
    # At the t that was found: a largest value over t is too large in a sample, and the largest
    # value of a resample would be so twice.
    resampled = _ratio(draws.astype(np.float64), sizes, first, moments, t)[:, best]
    value = max(1.0, float(ratio[best]))
    reach = float(scipy.special.stdtrit(len(sizes) - 1, (1 + level) / 2)) * float(resampled.std())
    return VarianceProxy(
        value=value,
        interval=(max(1.0, value - reach), value + reach),
        reach=float(np.abs(t[known]).max()),
        at=float(t[best]),
        level=level,
    )


def _known(t: Array, carriers: Array, p: Array) -> NDArray[np.bool_]:
    """Strengths up to the first, on each side, that too few values carry; the smallest always."""
    known: NDArray[np.bool_] = np.abs(t) <= STRENGTHS[0]
    for sign in (1, -1):
        at = np.flatnonzero(sign * t > 0)
        at = at[np.argsort(np.abs(t[at]))]
        # where p has the mean excess m over a high threshold, exp(t p) has the tail index t m
        largest = np.partition(sign * p, len(p) - FURTHEST - 1)[len(p) - FURTHEST - 1 :]
        index = np.abs(t[at]) * (largest.sum() - len(largest) * largest[0]) / FURTHEST
        enough = np.cumprod((carriers[at] >= CARRIERS) & (index <= INDEX)).astype(bool)
        known[at[enough]] = True
    return known


def _ratio(draws: Array, sizes: Array, first: Array, moments: Array, t: Array) -> Array:
    """``2 K(t) / (t^2 variance)`` of resampled passages, axes [resample, t]."""
    count = (draws @ sizes)[:, None]
    mean, square = np.split(draws @ moments / count, 2, axis=1)
    log_mgf = np.log(draws @ first / count) - t * mean
    return np.asarray(2 * log_mgf / (t**2 * (square - mean**2)))
