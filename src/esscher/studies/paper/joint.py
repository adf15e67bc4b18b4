"""Exponents at several scales that were measured on the same tokens.

The scales of a sweep share their tokens: a replicate that is unlucky at one horizon is unlucky at
the next. What is said of several horizons at once (how many agree, how the exponent falls with H)
therefore resamples replicates for all scales together:

* a simultaneous band, ``beta_s +- c SE_s`` at every scale s, where c is the 95% quantile of the
  largest ``|t|`` over the scales in resampled replicates. It holds all exponents at once with
  probability 95%, however they depend on each other;
* the slope of beta against H, a linear form of the same exponents, with a bootstrap-t interval.

Exponents are those of ``fit_rate``: weighted slopes of the logarithms of mean errors, which are
linearised in the errors here (delta method), so that a resample is a matrix product.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import scipy
from numpy.typing import ArrayLike

from esscher.core.streams import random_stream
from esscher.core.validation import Array
from esscher.math.statistics import LEVEL, Rate, resampling_counts

#: Resampled sets of replicates.
RESAMPLES = 2000
#: With fewer replicates Bonferroni's and Student's quantiles take the place of resamples.
FEWEST = 5


@dataclass(frozen=True, eq=False)
class JointExponents:
    """Exponents at all scales of a sweep, for one metric.

    Attributes
    ----------
    low, high
        Simultaneous 95% band, one entry per scale; infinite with one replicate.
    slope, slope_interval
        Of the exponent against H, least squares over the scales; not a number for one scale.
    """

    low: Array
    high: Array
    slope: float
    slope_interval: tuple[float, float]


def joint_exponents(
    errors: Array, sizes: Sequence[int], rates: Sequence[Rate], horizons: Array, seed: int
) -> JointExponents:
    """Return the simultaneous band and the slope against H.

    Parameters
    ----------
    errors
        Axes [scale, replicate, size].
    sizes
        Numbers of tokens.
    rates
        What was fitted at every scale.
    horizons
        One per scale.
    seed
        Seed of the resampling.
    """
    exponents = np.array([rate.exponent for rate in rates])
    return band(exponents, _influences(errors, np.asarray(sizes), rates), horizons, seed)


def band(exponents: Array, moved: Array, horizons: Array, seed: int) -> JointExponents:
    """Return the same from how every replicate moves every exponent.

    Parameters
    ----------
    exponents, horizons
        One per scale.
    moved
        Axes [replicate, scale]; an exponent's standard error is that of the mean over replicates.
    seed
        Seed of the resampling.
    """
    form = _slope_form(horizons)
    count, scales = moved.shape
    slope = float(form @ exponents)
    if count < 2:
        nothing = np.full(scales, np.inf)
        return JointExponents(-nothing, nothing, slope, (-np.inf, np.inf))
    both = np.column_stack([moved, moved @ form])
    error = both.std(axis=0, ddof=1) / np.sqrt(count)
    if count < FEWEST:
        band = float(scipy.special.stdtrit(count - 1, 1 - (1 - LEVEL) / 2 / scales))
        along = float(scipy.special.stdtrit(count - 1, (1 + LEVEL) / 2))
    else:
        scores = _scores(both, random_stream(seed, "joint exponents", count))
        band = float(np.quantile(scores[:, :-1].max(axis=1), LEVEL))
        along = float(np.quantile(scores[:, -1], LEVEL))
    half = band * error[:-1]
    end = along * float(error[-1])
    return JointExponents(exponents - half, exponents + half, slope, (slope - end, slope + end))


def _influences(errors: Array, sizes: Array, rates: Sequence[Rate]) -> Array:
    """How every replicate moves every exponent, [replicate, scale]; their mean is 0."""
    columns = []
    for own, rate in zip(errors, rates, strict=True):
        used = own[:, np.isin(sizes, rate.sizes)]
        x, weights = np.log(rate.sizes), rate.weights
        centred = x - weights @ x
        form = -weights * centred / (weights @ centred**2)
        columns.append((used / used.mean(axis=0) - 1) @ form)
    return np.column_stack(columns)


def _scores(moved: Array, rng: np.random.Generator) -> Array:
    """``|t|`` of every column in resampled replicates, [resample, column]."""
    count = len(moved)
    centred = moved - moved.mean(axis=0)
    times = resampling_counts(count, RESAMPLES, rng) / count
    mean = times @ centred
    variance = np.maximum(times @ centred**2 - mean**2, 0.0) / (count - 1)
    # a resample of one replicate repeated has no spread: very far, not infinite
    smallest = 1e-6 * centred.std(axis=0) + np.finfo(float).tiny
    return np.asarray(np.abs(mean) / np.maximum(np.sqrt(variance), smallest))


def _slope_form(horizons: ArrayLike) -> Array:
    centred = np.asarray(horizons, dtype=np.float64)
    centred = centred - centred.mean()
    square = centred @ centred
    return centred / square if square > 0 else np.full(len(centred), np.nan)
