"""Where the output of a head stops changing with more tokens of context.

A head is given the first few tokens of a passage (sinks) and the L most recent ones. Its output
changes when L is doubled; the relative change ``c(L) = |y_2L - y_L| / |y|`` (root mean square over
queries) is measured up to the longest context, without assuming that the longest one is the truth.
What is still to come beyond L is at most

    rest(L) = c(L) + c(2L) + ... + c(L_max/2) + tail,     tail = c(L_max/2) (r + r^2 + ... + r^K),

with r = 2^-b, b the exponent of c(L) ~ L^-b over the last doublings, and K the doublings that are
left up to the limit: the most tokens that the head can see, by the window of its layer or by what
the model reads. Changes are not taken to grow (r <= 1). A head is saturated at L if rest(L) is
within the tolerance. Where that takes more than the longest context, the length is extrapolated by
the same law, and marked; it cannot exceed the limit. Two cases are decided by what was measured,
not by the law:

- a head whose last measured change is within the tolerance is saturated at the longest context at
  the latest (its tail assumes that all later changes add up, none cancels another);
- a head whose last change is larger and whose changes do not fall has an open end: no length.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import scipy
import xarray as xr
from numpy.typing import NDArray

from esscher.core.streams import random_stream
from esscher.core.validation import Array
from esscher.core.variables import joined
from esscher.math.statistics import LEVEL
from esscher.math.statistics.intervals import slopes
from esscher.runs.study import Setup
from esscher.studies.context.study import ContextData, ContextSettings, PassageChanges

#: Doublings from which the exponent of the changes is fitted.
FITTED = 4
#: Relative changes below this are rounding, and have no logarithm worth fitting.
SMALLEST = 1e-12
#: Logarithms of spread changes are kept within this: no head changes by a factor of a hundred.
RANGE = (float(np.log(SMALLEST)), float(np.log(100.0)))
#: Resampled sets of passages behind an interval.
RESAMPLES = 400


def combine(setup: Setup[ContextSettings], cells: Sequence[xr.Dataset]) -> ContextData:
    """Find where every head stops gaining, over all passages."""
    settings, passages = setup.settings, PassageChanges(joined(cells, "passage"))
    lengths = np.array(settings.lengths)
    # most tokens that the heads of a layer can see
    limits = np.fmin(passages.window.values, setup.model.max_positions)
    squares, norms = passages.square.values, passages.norm.values
    shape = norms.shape[1:]
    change, solved = np.full((*shape, len(lengths)), np.nan), np.empty(shape, dtype=object)
    for at in np.ndindex(shape):
        square, norm = squares[:, *at], norms[:, *at]
        change[at][:-1] = relative_changes(square, norm)
        solved[at] = saturation(
            square, norm, lengths, settings.tolerance, settings.seed, limits[at[0]]
        )

    def known(number: Any) -> Array:
        """A number of every head; NaN where it is infinite."""
        values = np.array([[number(head) for head in layer] for layer in solved])
        return np.where(np.isfinite(values), values, np.nan)

    data = ContextData.new(
        layer=passages.norm["layer"].values, head=passages.norm["head"].values, context=lengths
    )
    data.length = known(lambda head: (head.length, *head.interval))
    data.exponent = known(lambda head: head.exponent)
    data.limit = limits
    data.change = change
    data.rest = known(lambda head: head.rest)
    return data


def relative_changes(changes: Array, norms: Array) -> Array:
    """c(L) from squared changes [passages, doublings] and squared norms [passages]."""
    norm = norms.mean()
    return np.sqrt(changes.mean(axis=0) / norm) if norm > 0 else np.zeros(changes.shape[1])


@dataclass(frozen=True, eq=False)
class Saturation:
    """Where a head stops gaining.

    Attributes
    ----------
    length
        Context length at which what is still to come is within the tolerance; infinite if changes
        are beyond the tolerance and do not fall.
    interval
        Interval of the length over passages. An upper end that is open stands at the limit; a lower
        one is infinite. NaN of one passage.
    exponent
        b of c(L) ~ L^-b over the last doublings; NaN with fewer than two.
    rest
        What is still to come at every length, as far as it is measured and by the fitted tail.
    """

    length: float
    interval: tuple[float, float]
    exponent: float
    rest: Array


def saturation(
    changes: Array,
    norms: Array,
    lengths: NDArray[np.int64],
    tolerance: float,
    seed: int,
    limit: float,
) -> Saturation:
    """Where one head stops gaining, with an interval from resampled passages.

    Changes of resampled passages are spread by Student's quantile over the normal one. Of 200
    simulated heads with four passages plain percentiles cover 77%, these 94%; with twelve 87% and
    91%; with two passages these cover 83%.

    Parameters
    ----------
    changes
        Squared changes, [passages, doublings].
    norms
        Squared norms, [passages].
    lengths
        Context lengths, one more than doublings.
    tolerance
        Relative change that may still be to come.
    seed
        Seed of the resampling.
    limit
        Most tokens that the head can see.
    """
    relative = relative_changes(changes, norms)
    length, exponent, rest = _solve(relative, lengths, tolerance, limit)
    count = len(changes)
    ends = (np.nan, np.nan)
    if count > 1:
        level = (1 + LEVEL) / 2
        quantiles = scipy.special.stdtrit(count - 1, level) / scipy.special.ndtri(level)
        factor = float(quantiles * np.sqrt(count / (count - 1)))
        base = np.log(np.maximum(relative, SMALLEST))
        rng = random_stream(seed, "saturation")
        drawn = []
        for _ in range(RESAMPLES):
            rows = rng.integers(count, size=count)
            again = np.log(np.maximum(relative_changes(changes[rows], norms[rows]), SMALLEST))
            spread = np.exp(np.clip(base + factor * (again - base), *RANGE))
            # a change that rounding makes is none, however it is spread
            spread = np.where(relative <= SMALLEST, relative, spread)
            drawn.append(_solve(spread, lengths, tolerance, limit)[0])
        low, high = np.quantile(drawn, [(1 - LEVEL) / 2, (1 + LEVEL) / 2], method="nearest")
        ends = (min(float(low), length), min(max(float(high), length), limit))
    return Saturation(length, ends, exponent, rest)


def _solve(
    relative: Array, lengths: NDArray[np.int64], tolerance: float, limit: float
) -> tuple[float, float, Array]:
    """Length (infinite: open), exponent, and what is still to come at every length.

    Beyond the longest context changes are ``c(L) = last (2L/longest)^-b`` with ``b >= 0``.
    """
    last, longest = float(relative[-1]), float(lengths[-1])
    # c(L) ~ L^-b over the last doublings below the limit
    below = np.flatnonzero(lengths[:-1] < limit)[-FITTED:]
    exponent = float("nan")
    if len(below) > 1:
        x = np.log(lengths[below].astype(np.float64))
        exponent = -float(slopes(x, np.log(np.maximum(relative[below], SMALLEST))))
    b = max(exponent, 0.0) if np.isfinite(exponent) else 0.0
    ratio = 2.0**-b
    if ratio == 1:  # the exponent is rounding
        b = 0.0
    tail = 0.0  # c(longest) + c(2 longest) + ... up to the limit
    if limit > longest and b == 0:
        tail = float(last * np.log2(limit / longest))
    elif limit > longest:
        tail = float(last * ratio * (1 - (limit / longest) ** -b) / (1 - ratio))
    rest = np.append(np.cumsum(relative[::-1])[::-1], 0.0) + tail

    within = np.flatnonzero(rest <= tolerance)
    if within.size:  # it crosses the tolerance between the length before i and length i
        i = int(within[0])
        upper = min(float(lengths[i]), limit)
        if i == 0:
            return upper, exponent, rest
        if upper == limit:  # nothing is left there
            share = 1 - tolerance / rest[i - 1]
        else:  # a straight line in logarithms, as a power law is
            share = np.log(rest[i - 1] / tolerance) / np.log(rest[i - 1] / max(rest[i], SMALLEST))
        return float(lengths[i - 1] * (upper / lengths[i - 1]) ** share), exponent, rest
    if last <= tolerance:
        return min(longest, limit), exponent, rest
    if b == 0:
        return np.inf, exponent, rest
    # with u = L/limit the sum from L on is c(limit) (u^-b - 1)/(1 - r)
    at_limit = last * (2 * limit / longest) ** -b
    log_share = -np.log1p(tolerance * (1 - ratio) / at_limit) / b
    return float(limit * np.exp(log_share)), exponent, rest
