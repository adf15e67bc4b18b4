"""Shape of the upper tail of a sample: the Pareto k-hat of importance sampling, with its error.

A generalised Pareto law is fitted to the largest values by the method of Zhang and Stephens
(Technometrics 2009), with a weak prior at 1/2 worth ten observations (Vehtari, Simpson, Gelman,
Yao, Gabry: Pareto smoothed importance sampling, JMLR 2024). It is the estimate of ``arviz_stats``,
with which a test compares; importing that package takes longer than most studies take to fit.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
import scipy
from numpy.typing import NDArray

from esscher.core.errors import InputError
from esscher.core.validation import Array
from esscher.math.statistics.intervals import LEVEL

#: Fewest values of which a tail (a fifth of them, at least 5) is fitted.
FEWEST_VALUES = 25
#: Observations that the prior of the estimate is worth, and the shape they have.
PRIOR, PRIOR_MEAN = 10, 0.5
#: From this k on, no number of values makes their mean worth anything.
HOPELESS = 0.99


@dataclass(frozen=True)
class TailShape:
    """Shape ``k`` of a tail: the probability of exceeding r falls like ``r^(-1/k)``.

    Attributes
    ----------
    k
        k-hat; at or below 0 the tail is lighter than any power.
    standard_error
        ``(1 + k)/sqrt(m + 10)``: that of maximum likelihood, with the observations of the prior.
    count
        Number m of values in the tail.
    """

    k: float
    standard_error: float
    count: int

    @property
    def without_prior(self) -> float:
        """k-hat as the values alone have it; in a short tail the prior lifts light ones a lot."""
        return (self.k * (self.count + PRIOR) - PRIOR_MEAN * PRIOR) / self.count


def values_needed(k: float) -> float:
    """Number of values from which their mean is worth anything, ``10^(1/(1 - k))``.

    The rule of Pareto smoothed importance sampling: 10 of them for light tails, infinitely many
    from k = 1 on.
    """
    return float(10 ** (1 / (1 - max(k, 0.0)))) if k < HOPELESS else math.inf


def tail_count(n: int) -> int:
    """Size of the tail of n values: ``3 sqrt(n)``, or a fifth of them below 225."""
    return int(3 * math.sqrt(n)) if n > 225 else n // 5


def tail_shape(values: Array) -> TailShape:
    """k-hat of the upper tail of positive values.

    Parameters
    ----------
    values
        At least 25 numbers of which the largest are not all equal.

    Raises
    ------
    InputError
        For too few values, and for a tail of equal values.
    """
    n = len(values)
    if n < FEWEST_VALUES:
        raise InputError(f"{n} values have no tail to fit; it takes at least {FEWEST_VALUES}")
    m = tail_count(n)
    ordered = np.sort(values)[n - m - 1 :]
    # The fit divides by the first quartile of what exceeds the cut.
    if not (ordered[1 + (m - 1) // 4] > ordered[0] and ordered[-1] > ordered[1]):
        raise InputError(
            f"the largest {m} of {n} values have no tail to fit: too many of them are equal, to "
            f"{ordered[1]:g}"
        )
    # The likelihood of a generalised Pareto law, profiled over the shape k(b) = mean ln(1 - b x),
    # is averaged over a grid of b that Zhang and Stephens take for a prior; k is that of the mean.
    excess = ordered[1:] - ordered[0]
    grid = 30 + int(math.sqrt(m))
    quartile = excess[int(m / 4 + 0.5) - 1]
    b = 1 - np.sqrt(grid / (np.arange(1, grid + 1) - 0.5))
    b = b / (3 * quartile) + 1 / excess[-1]
    shapes = np.mean(np.log1p(-b[:, None] * excess), axis=1)
    likelihood = m * (np.log(-b / shapes) - shapes - 1)
    weights = np.exp(likelihood - scipy.special.logsumexp(likelihood))
    heavy = weights >= 10 * np.finfo(float).eps  # the others are rounding
    middle = float(np.sum(b[heavy] * weights[heavy] / weights[heavy].sum()))
    alone = float(np.mean(np.log1p(-middle * excess)))
    k = (m * alone + PRIOR * PRIOR_MEAN) / (m + PRIOR)
    return TailShape(k, (1 + max(k, 0.0)) / math.sqrt(m + PRIOR), m)


# Attention sinks: a few tokens that receive attention from everyone.
#
# Sinks are atoms, not the tail of anything: they push k-hat above 1 without slowing the rate. What
# tells them from the largest tokens of a genuine heavy tail is the gap below them. With E the
# logarithmic transform that makes the tail of the OTHER tokens exponential, the gaps between its
# largest values are exponential too, ``j (E_(j) - E_(j+1)) ~ Exp(1)`` (Renyi), whatever the shape
# k. The j largest are sinks if that gap is too large to believe.
#
# The shape of the others is taken one standard error larger than estimated. Measured on Gaussian
# heads without sinks (n = 1000 and 4000, d = 1 and 8, H = 0.3 to 3), tokens are taken for sinks in
# 0.3% of them. With H <= 0.5 and n = 4000, a sink that takes a tenth of the attention is found in
# at least 80% of heads, and 2 to 5 such sinks in 97% already at n = 1000. One sink above a tail of
# k >= 1/2 cannot be told from its largest token, and is not: name the sinks if they are known.
#
# Real decoders have such ones: the first token takes up to 0.99 of a head's attention, or a few
# dozen copies of one word share it. :func:`dominant_keys` names them by their share alone, whatever
# the tail below: tokens that whoever drops tokens keeps for certain.

#: Largest number of sinks found at one gap, and in all.
AT_ONCE, MOST = 6, 12
#: A gap less likely than this is no part of a tail.
UNLIKELY = 1e-4
#: Standard errors by which the shape of the others is raised.
CAUTION = 1.0
#: Smallest shape assumed for the others: even tails without power law scatter.
LIGHTEST = 0.1
#: A sink receives at least this multiple of the mean over the tokens.
STRENGTH = 5.0
#: A token with this share of the attention that larger ones leave is dominant.
DOMINANT = 0.05
#: Dominant tokens are at most this share of all.
DOMINANT_TOKENS = 0.05


def find_sinks(received: Array) -> NDArray[np.int64]:
    """Positions of the sinks among the tokens, by decreasing received attention.

    Parameters
    ----------
    received
        Attention received by each token, not negative.
    """
    order = np.argsort(-received, kind="stable")
    ordered = received[order]
    weakest = STRENGTH * float(received.mean())
    sinks = 0
    while sinks < MOST:
        # tokens above the least likely gap; none if every gap can be believed
        above, least = 0, UNLIKELY
        for j in range(1, AT_ONCE + 1):
            rest = ordered[sinks + j :]
            if len(rest) < FEWEST_VALUES or ordered[sinks + j - 1] < weakest:
                break
            probability = _gap_probability(float(ordered[sinks + j - 1]), rest, j)
            if probability < least:
                above, least = j, probability
        if above == 0:
            break
        sinks += above
    return np.asarray(order[: min(sinks, MOST)], dtype=np.int64)


def dominant_keys(received: Array) -> NDArray[np.int64]:
    """Positions of the tokens that take a large share each of what is left of the attention.

    One after the other, by decreasing attention, as long as a token receives more than 5% of what
    those before it leave. Of a tail of shape k the largest of n tokens takes a share of about
    ``n^(k-1)``: at n = 3000 a tail of k >= 0.65 has dominant tokens of its own.

    Parameters
    ----------
    received
        Attention received by each token, not negative.
    """
    order = np.argsort(-received, kind="stable")
    ordered = received[order]
    # what is left for a token and all smaller ones, summed from the small end
    left = np.cumsum(ordered[::-1])[::-1]
    within = np.flatnonzero(ordered <= DOMINANT * left)
    count = len(ordered) if not within.size else int(within[0])
    return np.asarray(order[: min(count, int(DOMINANT_TOKENS * len(ordered)))], dtype=np.int64)


def keys_apart(received: Array) -> NDArray[np.int64]:
    """Positions of the keys that are set apart in real sequences: sinks and dominant keys."""
    return np.union1d(find_sinks(received), dominant_keys(received))


def _gap_probability(value: float, rest: Array, j: int) -> float:
    """Probability of a gap as large as that between ``value`` and the largest of the rest."""
    m = tail_count(len(rest))
    cut = float(rest[m])
    excess = rest[:m] - cut
    try:
        shape = tail_shape(rest)
    except InputError:  # ties: nothing to compare with
        return 1.0
    # Were the j largest part of the tail, the rest would be the tail without its far end: the
    # transform of the rest would have this mean, not 1, and its shape look smaller by that factor.
    mean = 1 - j / m * float(np.sum(1 / np.arange(j + 1, m + j + 1)))
    k = max((shape.k + CAUTION * shape.standard_error) / mean, LIGHTEST)

    def distance(log_scale: float) -> float:
        return float(np.mean(np.log1p(k * excess / math.exp(log_scale)))) / k - mean

    middle = math.log(float(excess.mean()))
    scale = math.exp(scipy.optimize.brentq(distance, middle - 30, middle + 30))
    gap = math.log1p(k * (value - cut) / scale) - math.log1p(k * float(excess[0]) / scale)
    return math.exp(-j * gap / k)


# How many independent values a tail is worth: large values of a sequence come in clusters.
#
# Neighbouring tokens of a text depend on each other, so that the largest of them stand close
# together, and m values of a tail say less than m independent ones. Clusters are found without a
# length to be chosen (Ferro and Segers, Inference for clusters of extreme values, J. R. Statist.
# Soc. B 65, 2003): the gaps between values of the tail are those of a Poisson process of clusters
# with probability theta, and 0 else, which gives theta; the largest gaps, as many as theta says,
# are those between clusters.
#
# Values of one cluster are counted as one value repeated, which is what they are at worst: a tail
# of clusters of sizes s is worth ``(sum s)^2 / sum s^2`` independent values. Measured on Gaussian
# heads over autoregressive tokens (n = 3,000, d = 1 to 4, H = 0.5 to 2;
# ``benchmarks/calibration.py``), this covers where less does not: a sandwich over clusters, with
# their scores in place of their sizes, covers 65 to 88% at a correlation of 0.95.


def tail_clusters(values: Array) -> tuple[int, float]:
    """Number of clusters of the ``3 sqrt(n)`` largest values, and of independent values in them.

    Values are in the order of the text. The share of the gaps that are between clusters is the
    intervals estimator.
    """
    n = len(values)
    size = tail_count(n)
    gaps = np.diff(np.sort(np.argsort(values, kind="stable")[n - size :]))
    longest = gaps.astype(np.float64)
    if gaps.max() <= 2:
        theta = 2 * longest.sum() ** 2 / (len(gaps) * np.sum(longest**2))
    else:
        longer = longest - 1
        theta = 2 * longer.sum() ** 2 / (len(gaps) * np.sum(longer * (longest - 2)))
    clusters = min(int(min(1.0, float(theta)) * size) + 1, size)
    if clusters <= 1:
        return 1, 1.0
    # Gaps as long as the last that would be used are left out if there are too many of them.
    shortest = np.sort(gaps)[len(gaps) - (clusters - 1)]
    between = gaps > shortest if np.sum(gaps >= shortest) > clusters - 1 else gaps >= shortest
    sizes = np.bincount(np.concatenate([[0], np.cumsum(between)])).astype(np.float64)
    return len(sizes), float(size**2 / np.sum(sizes**2))


# A diagnostic of one pass: the tail of received attention, sinks set apart.
#
# The column sums ``r_j`` of one attention matrix are the attention each token receives. Their upper
# tail has the shape ``k = H^2/(1 + H^2)`` for Gaussian tokens, and asymptotically the error of the
# mean output falls with the exponent ``min(1/2, 1 - k)``. On the sizes of a sweep other things
# matter as well: k-hat says whether a few tokens receive too much, it does not predict a curve.
#
# The tail are the ``3 sqrt(n)`` largest (a fifth of them below n = 225), the rule of Pareto
# smoothed importance sampling. Measured on 120 Gaussian heads in dimension 1 at n = 4096, the bias
# of k-hat is between -0.04 and 0.05 for H = 0.3 to 3, and its standard deviation 0.07 to 0.10.
# Before ten times the burn-in the tail is not there yet, and k-hat is too small: at 1.4 times
# (d = 8, H = 1, n = 4096) by 0.15, and 67% of the intervals cover; at 55 times (d = 4, H = 1,
# n = 3000) by 0.05, and 90% do.
#
# Tokens are taken in the order of the text. The largest stand in clusters if neighbours depend on
# each other; intervals are those of as many independent tokens as the clusters are worth
# (:func:`tail_clusters`), with Student's quantile for their number. The standard error of k-hat
# grows with k itself, ``(1 + k)/sqrt(m)``, that of ``ln(1 + k)`` does not: intervals are symmetric
# for the latter. Symmetric ones for k are too short above and too long below, and where k-hat
# happens to be too small its error looks small as well.

#: No interval reaches further than e to this power.
FURTHEST = 100.0


def received_khat(received: Array, sinks: NDArray[np.int64]) -> tuple[float, float, float]:
    """k-hat of the attention that tokens receive, with the ends of its 95% interval.

    Parameters
    ----------
    received
        Column sums of an attention matrix, in the order of the text.
    sinks
        Positions that are set apart, such as those of :func:`find_sinks`.
    """
    others = np.delete(received, sinks)
    k = tail_shape(others).k
    clusters, effective = tail_clusters(others)
    # the interval is symmetric for ln(1 + k), as at k = 0 below 0
    critical = float(scipy.special.stdtrit(max(clusters - 1, 1), (1 + LEVEL) / 2))
    half, scale = critical / math.sqrt(effective + PRIOR), 1 + max(k, 0.0)
    return k, k + scale * math.expm1(-half), k + scale * math.expm1(min(half, FURTHEST))
