"""Numbers with their intervals: means, shares, correlations, error curves, classes of exponents."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass
from functools import cache, lru_cache
from typing import Literal, TypeAlias

import numpy as np
import scipy
from numpy.typing import ArrayLike, NDArray

from esscher.core.errors import InputError
from esscher.core.streams import random_stream
from esscher.core.validation import Array, as_array
from esscher.core.variables import bounds

#: One number per size, or per pair of sizes.
Numbers: TypeAlias = tuple[float | None, ...]
#: Ends of an interval.
Ends: TypeAlias = tuple[float | None, float | None]


def finite(value: float) -> float | None:
    """Return ``value`` as a float, or None if it is infinite or not a number."""
    return float(value) if math.isfinite(value) else None


def finite_numbers(values: Iterable[float]) -> tuple[float | None, ...]:
    """Return a tuple of floats, None for those that are not finite."""
    return tuple(finite(value) for value in values)


# Which exponents are 1/2, which are below it, and which are undecided: from intervals alone.
#
# An exponent is called 1/2 only if its whole interval lies close to 1/2, and below (or above) 1/2
# only if its whole interval does. Everything else is undecided: less data, whose intervals are
# wider, gives more undecided exponents, and never more that are called 1/2.

RateClass: TypeAlias = Literal["at 1/2", "below", "above", "undecided"]

#: Where the whole interval of an exponent must lie to be called 1/2.
HALF: tuple[float, float] = (0.45, 0.55)
#: Classes in the order in which they are told.
CLASSES: tuple[RateClass, ...] = ("at 1/2", "below", "above", "undecided")


def rate_class(interval: Ends) -> RateClass:
    """Class of an exponent by its interval; without an interval it is undecided."""
    low, high = interval
    if low is None or high is None:
        return "undecided"
    if HALF[0] <= low and high <= HALF[1]:
        return "at 1/2"
    if high < 0.5:
        return "below"
    if low > 0.5:
        return "above"
    return "undecided"


def rate_words(interval: Ends) -> str:
    """Class of an exponent as words that follow its interval."""
    name = rate_class(interval)
    if name == "at 1/2":
        return name
    return f"{name} 1/2" if name != "undecided" else "undecided whether 1/2"


def class_counts(intervals: Iterable[Ends]) -> dict[RateClass, int]:
    """How many exponents are in each class; every class is a key."""
    counts = Counter(rate_class(interval) for interval in intervals)
    return {name: counts[name] for name in CLASSES}


# Means, shares and rank correlations.

#: Level of every interval, unless a caller asks for another one.
LEVEL = 0.95


def mean_bounds(values: Array, lowest: float = -np.inf, highest: float = np.inf) -> Array:
    """Return the mean over the first axis with the ends of Student's interval, [..., bound].

    Parameters
    ----------
    values
        The first axis has independent replicates; with only one, there is no interval (NaN).
    lowest, highest
        Range of the quantity: intervals end there.
    """
    count, mean = len(values), values.mean(axis=0)
    half = np.full_like(mean, np.nan)
    if count > 1:
        error = values.std(axis=0, ddof=1) / np.sqrt(count)
        half = scipy.special.stdtrit(count - 1, (1 + LEVEL) / 2) * error
    ends = [(mean + sign * half).clip(lowest, highest) for sign in (-1, 1)]
    return np.stack([mean, *ends], axis=-1)


def slopes(x: Array, y: Array) -> Array:
    """Return the least-squares slopes of y against x, which is its last axis."""
    centred = x - x.mean()
    return np.asarray(y @ centred / (centred @ centred))


def wilson(right: float, count: int) -> tuple[float, float]:
    """Wilson's interval of a share; wide enough for items that are partly right, too."""
    z2 = float(scipy.special.ndtri((1 + LEVEL) / 2)) ** 2
    share = right / count
    middle = (share + z2 / (2 * count)) / (1 + z2 / count)
    half = np.sqrt(z2 * (share * (1 - share) + z2 / (4 * count)) / count) / (1 + z2 / count)
    return (max(0.0, float(middle - half)), min(1.0, float(middle + half)))


def rank_correlation(x: Array, y: Array) -> float:
    """Spearman's correlation; 0 if one of them is constant."""
    from scipy import stats  # here: it takes half a second

    a, b = stats.rankdata(x), stats.rankdata(y)
    if np.ptp(a) == 0 or np.ptp(b) == 0:
        return 0.0
    return float(np.corrcoef(a, b)[0, 1])


def rank_correlation_interval(x: Array, y: Array) -> list[float]:
    """Spearman's correlation with its interval; neither for fewer than 4 pairs, or constants.

    Fisher's transform, with the variance of ranks of Bonett and Wright (2000).
    """
    if len(x) < 4 or np.ptp(x) == 0 or np.ptp(y) == 0:
        return bounds(None, None)
    value = rank_correlation(x, y)
    z = scipy.special.ndtri((1 + LEVEL) / 2)
    half = z * np.sqrt((1 + value**2 / 2) / (len(x) - 3))
    middle = np.arctanh(np.clip(value, -0.9999, 0.9999))
    return [value, float(np.tanh(middle - half)), float(np.tanh(middle + half))]


# How many replicates would decide what those at hand leave undecided.

#: Share of studies, with as many replicates as :func:`replicates_needed` says, that decide.
POWER = 0.8
#: More replicates than this are no advice.
MOST = 100_000


def replicates_needed(distance: float, spread: float) -> int | None:
    """Replicates in all with which an interval would decide in 4 of 5 cases.

    That is the smallest n with ``distance >= (t_0.975 + t_0.8) spread / sqrt(n)`` (Student's
    quantiles with n - 1 degrees of freedom). It assumes that distance and spread stay what they
    are on the replicates at hand, and that replicates are independent.

    Parameters
    ----------
    distance
        How far the estimate lies from the value that must be excluded.
    spread
        Standard deviation of a single replicate.

    Returns
    -------
    int or None
        None if the distance is so small that no reasonable number decides, or not known.
    """
    n = np.arange(2, MOST + 1)
    enough = abs(distance) > _quantiles() * spread / np.sqrt(n)
    return int(n[np.argmax(enough)]) if enough.any() else None


@cache
def _quantiles() -> Array:
    """The sum of both quantiles for 2 to MOST replicates: made once, it takes 0.06 s."""
    freedom = np.arange(1, MOST)
    level, power = (scipy.special.stdtrit(freedom, at) for at in ((1 + LEVEL) / 2, POWER))
    return np.asarray(level + power)


# Many tests at once: adjusted p-values.
#
# The false discovery rate (Benjamini and Hochberg 1995) is ``scipy.stats.false_discovery_control``.
# Here is what goes with it: Holm's procedure, which bounds the probability of even one false
# statement.


def discoveries(p_values: ArrayLike) -> Array:
    """Benjamini and Hochberg's adjusted p-values; ``nan`` stands for a test that was not made.

    Among the tests with an adjusted p-value of at most alpha, a share of alpha is false on average
    (for independent tests and for those that depend on each other positively).
    """
    from scipy import stats  # here: it takes half a second

    adjusted, made = _tested(p_values)
    if made.any():
        adjusted[made] = stats.false_discovery_control(adjusted[made])
    return adjusted


def family_wise(p_values: ArrayLike) -> Array:
    """Holm's adjusted p-values; ``nan`` stands for a test that was not made.

    With probability 1 - alpha not one of the tests with an adjusted p-value of at most alpha is
    false, however the tests depend on each other: ``max_{j <= i} (m - j + 1) p_(j)``.
    """
    adjusted, made = _tested(p_values)
    p = adjusted[made]
    order = np.argsort(p, kind="stable")
    p[order] = np.minimum(np.maximum.accumulate((len(p) - np.arange(len(p))) * p[order]), 1.0)
    adjusted[made] = p
    return adjusted


def _tested(p_values: ArrayLike) -> tuple[Array, NDArray[np.bool_]]:
    """A copy of the p-values, and which of the tests were made."""
    values = np.array(p_values, dtype=np.float64)
    made = ~np.isnan(values)
    p = as_array(values[made], "p_values")
    if p.size and (p.min() < 0 or p.max() > 1):
        raise InputError("p_values must lie between 0 and 1")
    return values, made


# Resampled replicates: what the noise of an error curve does to any number read off it.
#
# Sizes share tokens, so the errors of one replicate are correlated along n. Replicates are
# independent, hence they are what is drawn again. Everything read off a curve here is a linear form
# ``c . y`` of the logarithms ``y`` of the mean errors (a slope, a constant, a bend), so that one
# set of resamples serves all of them.
#
# How intervals are made was chosen by measured coverage (``benchmarks/calibration.py``): by the
# symmetric bootstrap-t. The linear form of a resample is divided by its own standard error, and
# the 95% quantile of the absolute values takes the place of Student's. With 8 replicates the plain
# percentile interval covers 84 to 91%, this one 94 to 97%; with Pareto replicates of tail index
# 1.25 it still covers 94%, where percentiles cover 82%.

#: Resamples behind an interval: the critical value of a 95% interval is then known to about 3%.
RESAMPLES = 2000
#: Fewer replicates are too often drawn as one and the same; Student's quantile takes over.
FEWEST = 5
#: Entries of a block of resampled counts.
BLOCK = 4_000_000


@dataclass(frozen=True, eq=False)
class Resamples:
    """Logarithms of the mean errors, and the same for resampled replicates.

    Attributes
    ----------
    log_sizes, log_errors
        ``x = ln n`` and ``y = ln(mean error)``.
    covariance
        Covariance matrix of ``y``.
    draws
        ``y`` of every resample, axes [resample, size].
    covariances
        Covariance matrix of ``y`` as every resample estimates it.
    n_replicates
        Number of replicates.
    """

    log_sizes: Array
    log_errors: Array
    covariance: Array
    draws: Array
    covariances: Array
    n_replicates: int

    def standard_errors(self, forms: Array) -> Array:
        """Standard error of each row ``c`` of ``forms``, as the standard deviation of ``c . y``."""
        variance = np.einsum("ki,ij,kj->k", forms, self.covariance, forms)
        return np.asarray(np.sqrt(np.maximum(variance, 0.0)))

    def deviations(self, forms: Array, shift: Array | None = None) -> Array:
        """``c . y`` of every resample minus that of the data, in standard errors, [resample, form].

        They are standard errors of the resample itself, so that the distribution hardly depends on
        the unknown variance. ``shift`` is added to the difference: what a departure of that size
        would look like under this noise.
        """
        moved = (self.draws - self.log_errors) @ forms.T
        if shift is not None:
            moved = moved + shift
        products = (forms[:, :, None] * forms[:, None, :]).reshape(len(forms), -1)
        variance = self.covariances.reshape(len(self.covariances), -1) @ products.T
        scale = np.sqrt(np.maximum(variance, 0.0))
        # A resample of one replicate repeated has no spread; it counts as very far, not as nan.
        smallest = 1e-6 * self.standard_errors(forms)[None] + np.finfo(float).tiny
        return np.asarray(moved / np.maximum(scale, smallest))

    def critical(self, forms: Array, level: float) -> Array:
        """Number of standard errors that holds the truth with probability ``level``, per form."""
        if self.n_replicates < 2:
            return np.full(len(forms), np.inf)
        if self.n_replicates < FEWEST:
            return np.full(
                len(forms), scipy.special.stdtrit(self.n_replicates - 1, (1 + level) / 2)
            )
        return np.asarray(np.quantile(np.abs(self.deviations(forms)), level, axis=0))

    def intervals(self, forms: Array, level: float) -> tuple[Array, Array, Array]:
        """Estimate, lower and upper end of each linear form of the log errors."""
        value = forms @ self.log_errors
        if self.n_replicates < 2:
            return value, np.full_like(value, -np.inf), np.full_like(value, np.inf)
        half = self.critical(forms, level) * self.standard_errors(forms)
        return value, value - half, value + half


def resample(errors: Array, sizes: Array, seed: int) -> Resamples:
    """Resample the replicates of errors with axes [replicate, size].

    Parameters
    ----------
    errors
        Not negative; the mean of every size must be positive.
    sizes
        Numbers of tokens.
    seed
        Seed of the resampling.
    """
    x, (members, width) = np.log(sizes), errors.shape
    mean = errors.mean(axis=0)
    if members < 2:
        nothing = np.full((width, width), np.nan)
        return Resamples(x, np.log(mean), nothing, np.log(mean)[None], nothing[None], members)
    draws, covariances = [], []
    rows = max(1, BLOCK // members)
    rng = random_stream(seed, "rates mean", members)
    relative = np.ascontiguousarray(errors / mean)
    products = (relative[:, :, None] * relative[:, None, :]).reshape(members, -1)
    for start in range(0, RESAMPLES, rows):
        block = min(rows, RESAMPLES - start)
        times = (
            _drawn(seed, members)
            if block == RESAMPLES
            else resampling_counts(members, block, rng).astype(np.float64)
        )
        average = times @ relative / members
        # covariance of the sum over the replicates, as this resample estimates it
        second = (times @ products / members).reshape(block, width, width)
        central = (second - average[:, :, None] * average[:, None, :]) * members
        spread = central * members / (members - 1)
        # not simplified: it would round in another way
        means = members * average / members
        usable = np.all(means > 0, axis=1)  # a mean of zeros has no logarithm
        means, spread = means[usable], spread[usable]
        # delta method: the covariance of ln(mean) is that of the mean over the product of means
        scale = means * members
        draws.append(np.log(means) + np.log(mean))
        covariances.append(spread / (scale[:, :, None] * scale[:, None, :]))
    covariance = members * np.atleast_2d(np.cov(relative.T)) / members**2
    return Resamples(
        x, np.log(mean), covariance, np.concatenate(draws), np.concatenate(covariances), members
    )


@lru_cache(maxsize=8)
def _drawn(seed: int, members: int) -> Array:
    """How often each replicate is drawn, [resample, member].

    Kept, because curves of as many replicates are resampled alike: those of all heads of a model.
    """
    rng = random_stream(seed, "rates mean", members)
    drawn = resampling_counts(members, RESAMPLES, rng).astype(np.float64)
    drawn.flags.writeable = False
    return drawn


def resampling_counts(members: int, resamples: int, rng: np.random.Generator) -> NDArray[np.int64]:
    """Draw ``members`` things with replacement, again and again, and count them.

    Returns
    -------
    NDArray
        How often each was drawn, axes [resample, member]; rows add up to ``members``.
    """
    return rng.multinomial(members, np.full(members, 1 / members), size=resamples)
