"""Types of tails, compared at several thresholds, and sub-Gaussian parameters."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import scipy
from numpy.typing import NDArray

from esscher.core.codec import Interval
from esscher.core.errors import InputError
from esscher.core.streams import random_stream
from esscher.core.validation import Array
from esscher.math.statistics import LEVEL, resampling_counts


@dataclass(frozen=True, kw_only=True)
class TailComparison:
    """Which type of tail exceedances have.

    Attributes
    ----------
    threshold, exceedances
        Threshold u, and the number of values above it.
    tau, tau_interval
        Exponent of ``exp(-b y^tau)`` by maximum likelihood over all tau (2: Gaussian, 1:
        exponential; ends of the range mean "beyond"), with profile interval.
    criterion
        Quasi-likelihood criterion ``-2 ln L + 2 parameters`` of each candidate, smallest 0.
    """

    threshold: float
    exceedances: int
    tau: float
    tau_interval: Interval
    criterion: dict[str, float]


@dataclass(frozen=True, kw_only=True)
class Cloud:
    """Tails of a cloud of tokens along its worst direction.

    Attributes
    ----------
    tokens, passages
        How many there are.
    kurtosis, proxy
        Excess kurtosis and variance proxy, each with the ends of its interval. The proxy is the
        geometric mean of those of the halves, its interval what theirs span.
    tail
        Comparisons at lower and higher thresholds, largest share of the values first.
    tail_halves, proxy_halves
        The same and the variance proxy in each half, along the direction that the other half
        found.
    largest
        Largest standardised projection.
    agreement
        Cosine of the two halves' directions, in whitened coordinates.
    """

    tokens: int
    passages: int
    kurtosis: list[float]
    proxy: list[float]
    tail: tuple[TailComparison, ...]
    tail_halves: tuple[tuple[TailComparison, ...], ...]
    largest: float
    agreement: float
    proxy_halves: tuple[list[float], ...]


# Gaussian, Weibull and Pareto type tails, fitted to what exceeds a threshold and compared.
#
# For values ``y = x / u`` above a threshold u the candidates are
#
#     Gaussian type   density proportional to exp(-b y^2)
#     Weibull type    density proportional to exp(-b y^tau), 0 < tau < 2
#     Pareto type     generalised Pareto law of y - 1 with shape k > 0
#
# The first is a member of the second family: whether the tail is Gaussian is a question about tau,
# answered by its interval. The others are compared by their likelihoods. Tokens of a passage are
# not independent, so that all differences of log-likelihoods are divided by the factor by which
# passages make the score of tau vary more than independent tokens would (quasi-likelihood).

#: Exponents tau at which the likelihood is profiled. Beyond the last one a tail is as good as cut
#: off, before the first as good as a power; steps of 7% are far below the width of any interval.
TAUS = 2.0 ** (np.arange(-33, 38) / 10)
TWO = 43
#: Values of theta = k / scale, in units of 1 / mean excess, at which the Pareto law is profiled.
THETAS = np.geomspace(1e-3, 1e3, 241)
#: Shares of the values that are taken for the tail, one after the other, and the fewest exceedances
#: that are fitted. The last ones see past clusters of rare tokens, the first ones have more values.
SHARES = tuple(0.1 / 2**i for i in range(8))
FEWEST = 25
#: Halvings of the interval for ln b, which brings it to 3e-8.
HALVINGS = 30
#: A difference of criteria within which two candidates are not told apart.
CLOSE = 2.0


def sums_by_group(values: Array, groups: NDArray[np.int64]) -> tuple[Array, Array]:
    """Sums of the rows of each group, and the sizes of the groups."""
    order = np.argsort(groups, kind="stable")
    _, first, sizes = np.unique(groups[order], return_index=True, return_counts=True)
    return np.add.reduceat(values[order], first, axis=0), sizes.astype(np.float64)


def compare_thresholds(values: Array, groups: NDArray[np.int64]) -> list[TailComparison]:
    """Comparisons at lower and higher thresholds, as long as there is something above them.

    Equal values stay together, so that shares may give the same exceedances; they count once.
    """
    shares = [share for share in SHARES if share * len(values) >= FEWEST]
    comparisons: list[TailComparison] = []
    for share in shares or SHARES[:1]:
        comparison = compare_tails(values, groups, share)
        if not comparisons or comparison.exceedances < comparisons[-1].exceedances:
            comparisons.append(comparison)
    return comparisons


def compare_tails(values: Array, groups: NDArray[np.int64], share: float) -> TailComparison:
    """Fit and compare the candidates.

    Parameters
    ----------
    values
        Positive numbers, such as absolute projections.
    groups
        Passage of each.
    share
        Share of the values that is taken for the tail.

    Raises
    ------
    InputError
        For too few exceedances, and where all values are equal.
    """
    count = int(share * len(values))
    if count < FEWEST:
        raise InputError(
            f"{len(values)} values have {count} exceedances; it takes at least {FEWEST} to compare "
            "tails, so give more tokens"
        )
    last = np.partition(values, len(values) - count)[len(values) - count]
    below = values[values < last]
    if not below.size:
        raise InputError(f"all {len(values)} values are at least {last:g}; they have no tail")
    # between two values: what is equal to the last one of the tail belongs to it
    threshold = float(last + below.max()) / 2
    above = values > threshold
    y, group = values[above] / threshold, groups[above]
    b, profile = _profile(y)
    best = int(np.argmax(profile))
    inflation = _inflation(y, float(b[best]), float(TAUS[best]), group)
    freedom = max(len(np.unique(group)) - 1, 1)
    quantile = float(scipy.special.stdtrit(freedom, (1 + LEVEL) / 2))
    # the largest tau by a parabola through three points, the ends of its interval by interpolation
    tau = float(TAUS[best])
    if 0 < best < len(TAUS) - 1:
        left, middle, right = profile[best - 1 : best + 2]
        shift = 0.5 * (left - right) / (left - 2 * middle + right)
        tau = float(TAUS[best] * (TAUS[best + 1] / TAUS[best]) ** shift)
    cut, x = profile[best] - inflation * quantile**2 / 2, np.log(TAUS)
    inside_cut = np.flatnonzero(profile - profile[best] >= -inflation * quantile**2 / 2)
    first, last = int(inside_cut[0]), int(inside_cut[-1])
    low, high = x[first], x[last]
    if first > 0:
        low = np.interp(cut, profile[first - 1 : first + 1], x[first - 1 : first + 1])
    if last < len(x) - 1:
        high = np.interp(cut, profile[[last + 1, last]], x[[last + 1, last]])
    # the generalised Pareto law, profiled over theta = k / scale
    excess = y - 1
    theta = THETAS / float(excess.mean())
    shapes = np.mean(np.log1p(theta[:, None] * excess), axis=1)
    pareto = -len(excess) * (np.log(shapes / theta) + shapes + 1)
    fitted = {
        "Gaussian": (profile[TWO], 1),
        "Weibull": (profile[:TWO].max(), 2),
        "Pareto": (pareto.max(), 2),
    }
    criterion = {n: float(-2 * ll / inflation + 2 * p) for n, (ll, p) in fitted.items()}
    least = min(criterion.values())
    criterion = {name: value - least for name, value in criterion.items()}
    return TailComparison(
        threshold=threshold,
        exceedances=len(y),
        tau=tau,
        tau_interval=(float(np.exp(low)), float(np.exp(high))),
        criterion=criterion,
    )


def _profile(y: Array) -> tuple[Array, Array]:
    """Best b and its log-likelihood at every tau."""
    a, moment = 1 / TAUS, np.mean(y[:, None] ** TAUS, axis=0)
    low, high = np.full(len(TAUS), np.log(1e-8)), np.full(len(TAUS), np.log(1e6))
    for _ in range(HALVINGS):
        middle = (low + high) / 2
        # E_b y^tau = a/b + b^(a-1) e^-b / Gamma(a, b), with a = 1/tau, falls from infinity to 1 as
        # b grows; at the best b it is the mean
        b = np.exp(middle)
        heavy = a / b + np.exp(-np.log(b) - _log_scaled_gamma(a, b)) > moment
        low, high = np.where(heavy, middle, low), np.where(heavy, high, middle)
    b = np.exp((low + high) / 2)
    integral = _log_scaled_gamma(a, b) - np.log(TAUS)  # ln int_1^inf exp(-b (y^tau - 1)) dy
    return b, -len(y) * (b * (moment - 1) + integral)


def _log_scaled_gamma(a: Array, b: Array) -> Array:
    """``ln [Gamma(a, b) e^b b^-a]``, by its asymptotic series where Gamma(a, b) underflows."""
    with np.errstate(divide="ignore"):
        direct = (
            scipy.special.gammaln(a) + np.log(scipy.special.gammaincc(a, b)) + b - a * np.log(b)
        )
    # two terms of the series; beyond b = 300 and for a <= 10 they are good to (a/b)^3 < 4e-5
    far = np.maximum(b, 300.0)
    series = -np.log(far) + np.log1p((a - 1) / far * (1 + (a - 2) / far))
    return np.where(b < 300, direct, series)


def _inflation(y: Array, b: float, tau: float, group: NDArray[np.int64]) -> float:
    """Variance of the efficient score of tau over passages, over that of independent values."""
    power = y**tau
    score = -b * (power * np.log(y))
    nuisance = -(power - power.mean())
    score = score - score.mean()
    # what of the score of tau is not a matter of b
    efficient = score - nuisance * (score @ nuisance) / max(float(nuisance @ nuisance), 1e-300)
    _, index = np.unique(group, return_inverse=True)
    sums = np.bincount(index, weights=efficient)
    if len(sums) < 2:
        return 1.0
    ratio = float(sums @ sums) / max(float(efficient @ efficient), 1e-300)
    return max(1.0, ratio * len(sums) / (len(sums) - 1))


# The sub-Gaussian parameter of a projection, as far as a sample can tell.
#
# For a standardised projection p the parameter is the smallest s with ``ln E exp(t p) <= s t^2 /
# 2`` for all t: 1 for a Gaussian, infinite without exponential moments. A sample knows the left
# side only where many of its values carry ``E exp(t p)``, so that t is limited to where their
# effective number ``(sum w)^2 / sum w^2``, ``w = exp(t p)``, is at least 100, and where the tail of
# the weights has an index of at most 1/2, so that their mean has a finite variance. That is |t| <
# 1.5 for 5,000 Gaussian values, |t| < 0.7 for exponential tails. What is reported is the smallest s
# on that range.

#: Effective number of values that must carry the moment generating function.
CARRIERS = 100.0
#: Largest tail index of the weights, below which their mean has a finite variance, and the number
#: of values from which it is read off: few, so that a cluster is seen from inside.
INDEX, FURTHEST = 0.5, 50
#: Strengths at which it is looked at, on either side.
STRENGTHS = np.linspace(0.1, 4.0, 40)
#: Resamples of passages.
RESAMPLES = 400


def variance_proxy(projection: Array, groups: NDArray[np.int64], seed: int) -> list[float]:
    """``max_t 2 ln E exp(t p) / t^2`` over the range that the sample knows, with its interval.

    Parameters
    ----------
    projection
        Values of a projection; they are centred and divided by their standard deviation.
    groups
        Passage of each.
    seed
        Of the resampling.
    """
    p = (projection - projection.mean()) / projection.std()
    t = np.concatenate([-STRENGTHS[::-1], STRENGTHS])
    # sums by passage: everything that resampled passages need
    weights = np.exp(t * p[:, None])
    first, sizes = sums_by_group(weights, groups)
    moments, _ = sums_by_group(np.stack([p, p * p], axis=1), groups)
    carriers = first.sum(axis=0) ** 2 / np.sum(weights**2, axis=0)
    # strengths up to the first, on each side, that too few values carry; the smallest always
    known: NDArray[np.bool_] = np.abs(t) <= STRENGTHS[0]
    for sign in (1, -1):
        at = np.flatnonzero(sign * t > 0)
        at = at[np.argsort(np.abs(t[at]))]
        # where p has the mean excess m over a high threshold, exp(t p) has the tail index t m
        largest = np.partition(sign * p, len(p) - FURTHEST - 1)[len(p) - FURTHEST - 1 :]
        index = np.abs(t[at]) * (largest.sum() - len(largest) * largest[0]) / FURTHEST
        enough = np.cumprod((carriers[at] >= CARRIERS) & (index <= INDEX)).astype(bool)
        known[at[enough]] = True
    ratio = _ratio(np.ones((1, len(sizes))), sizes, first, moments, t)[0]
    best = int(np.argmax(np.where(known, ratio, -np.inf)))
    rng = random_stream(seed, "variance proxy")
    draws = resampling_counts(len(sizes), RESAMPLES, rng)
    # At the t that was found: a largest value over t is too large in a sample, and the largest
    # value of a resample would be so twice.
    resampled = _ratio(draws.astype(np.float64), sizes, first, moments, t)[:, best]
    value = max(1.0, float(ratio[best]))
    reach = float(scipy.special.stdtrit(len(sizes) - 1, (1 + LEVEL) / 2)) * float(resampled.std())
    return [value, max(1.0, value - reach), value + reach]


def _ratio(draws: Array, sizes: Array, first: Array, moments: Array, t: Array) -> Array:
    """``2 K(t) / (t^2 variance)`` of resampled passages, axes [resample, t]."""
    count = (draws @ sizes)[:, None]
    mean, square = np.split(draws @ moments / count, 2, axis=1)
    log_mgf = np.log(draws @ first / count) - t * mean
    return np.asarray(2 * log_mgf / (t**2 * (square - mean**2)))
