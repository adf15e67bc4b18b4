"""Attention sinks: a few tokens that receive attention from everyone.

Sinks are atoms, not the tail of anything: they push k-hat above 1 without slowing the rate. What
tells them from the largest tokens of a genuine heavy tail is the gap below them. With E the
logarithmic transform that makes the tail of the OTHER tokens exponential, the gaps between its
largest values are exponential too, ``j (E_(j) - E_(j+1)) ~ Exp(1)`` (Renyi), whatever the shape k.
The j largest are sinks if that gap is too large to believe.

The shape of the others is taken one standard error larger than estimated. Measured on Gaussian
heads without sinks (n = 1000 and 4000, d = 1 and 8, H = 0.3 to 3), tokens are taken for sinks in
0.3% of them. With H <= 0.5 and n = 4000, a sink that takes a tenth of the attention is found in at
least 80% of heads, and 2 to 5 such sinks in 97% already at n = 1000. One sink above a tail of
k >= 1/2 cannot be told from its largest token, and is not: name the sinks if they are known.

Real decoders have such ones: the first token takes up to 0.99 of a head's attention, or a few
dozen copies of one word share it. :func:`dominant_keys` names them by their share alone, whatever
the tail below: tokens that whoever drops tokens keeps for certain.
"""

from __future__ import annotations

import math

import numpy as np
import scipy
from numpy.typing import NDArray

from esscher.core.errors import InputError
from esscher.core.validation import Array
from esscher.math.statistics.tail import FEWEST_VALUES, tail_count, tail_shape

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
    found = 0
    while found < MOST:
        more = _gap(ordered[found:], STRENGTH * float(received.mean()))
        if more == 0:
            break
        found += more
    return np.asarray(order[: min(found, MOST)], dtype=np.int64)


def dominant_keys(received: Array, share: float = DOMINANT) -> NDArray[np.int64]:
    """Positions of the tokens that take a large share each of what is left of the attention.

    One after the other, by decreasing attention, as long as a token receives more than ``share`` of
    what those before it leave. Of a tail of shape k the largest of n tokens takes a share of about
    ``n^(k-1)``: at n = 3000 a tail of k >= 0.65 has dominant tokens of its own.

    Parameters
    ----------
    received
        Attention received by each token, not negative.
    share
        Share of the remaining attention from which a token is dominant.
    """
    order = np.argsort(-received, kind="stable")
    ordered = received[order]
    # what is left for a token and all smaller ones, summed from the small end
    left = np.cumsum(ordered[::-1])[::-1]
    within = np.flatnonzero(ordered <= share * left)
    found = len(ordered) if not within.size else int(within[0])
    return np.asarray(order[: min(found, int(DOMINANT_TOKENS * len(ordered)))], dtype=np.int64)


def keys_apart(received: Array) -> NDArray[np.int64]:
    """Positions of the keys that are set apart in real sequences: sinks and dominant keys."""
    return np.union1d(find_sinks(received), dominant_keys(received))


def _gap(ordered: Array, weakest: float) -> int:
    """Number of tokens above the least likely gap; 0 if every gap can be believed."""
    least, above = UNLIKELY, 0
    for j in range(1, AT_ONCE + 1):
        rest = ordered[j:]
        if len(rest) < FEWEST_VALUES or ordered[j - 1] < weakest:
            break
        probability = _gap_probability(float(ordered[j - 1]), rest, j)
        if probability < least:
            least, above = probability, j
    return above


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
    scale = _scale(excess, k, mean)
    gap = math.log1p(k * (value - cut) / scale) - math.log1p(k * float(excess[0]) / scale)
    return math.exp(-j * gap / k)


def _scale(excess: Array, k: float, mean: float) -> float:
    """Scale at which ``ln(1 + k x / scale)/k`` has a given mean over the tail."""
    middle = math.log(float(excess.mean()))

    def distance(log_scale: float) -> float:
        return float(np.mean(np.log1p(k * excess / math.exp(log_scale)))) / k - mean

    return math.exp(scipy.optimize.brentq(distance, middle - 30, middle + 30))
