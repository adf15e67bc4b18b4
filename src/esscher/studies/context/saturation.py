"""How long a context each head uses: where its output stops changing with more tokens.

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

from dataclasses import dataclass

import numpy as np
import scipy
from numpy.typing import NDArray

from esscher.core.codec import Record
from esscher.core.streams import random_stream
from esscher.core.validation import Array
from esscher.math.statistics import LEVEL

#: Doublings from which the exponent of the changes is fitted.
FITTED = 4
#: Relative changes below this are rounding, and have no logarithm worth fitting.
SMALLEST = 1e-12
#: Logarithms of spread changes are kept within this: no head changes by a factor of a hundred.
RANGE = (float(np.log(SMALLEST)), float(np.log(100.0)))
#: Resampled sets of passages behind an interval.
RESAMPLES = 400
#: An extrapolation beyond this multiple of the longest context says nothing (without a limit).
FARTHEST = 1e4


def doublings(longest: int, shortest: int = 32) -> NDArray[np.int64]:
    """Context lengths that end at the longest and halve down to the shortest."""
    count = int(np.floor(np.log2(longest / shortest))) + 1
    return np.array([longest >> k for k in range(count)][::-1], dtype=np.int64)


def relative_changes(changes: Array, norms: Array) -> Array:
    """c(L) from squared changes [passages, doublings] and squared norms [passages]."""
    norm = norms.mean()
    return np.sqrt(changes.mean(axis=0) / norm) if norm > 0 else np.zeros(changes.shape[1])


class ContextLength(Record, frozen=True, kw_only=True):
    """Numbers of a :class:`Saturation`, None for those that do not exist."""

    length: float | None
    open: bool
    interval: tuple[float | None, float | None]
    extrapolated: bool
    limit: float | None
    exponent: float | None
    rest: tuple[float | None, ...]


@dataclass(frozen=True, eq=False)
class Saturation:
    """Where a head stops gaining.

    Attributes
    ----------
    length
        Context length at which what is still to come is within the tolerance; infinite if the end
        is open.
    interval
        Its interval over passages. An upper end that is open stands at the limit; a lower one is
        infinite. One passage has none: both ends are not a number.
    extrapolated
        Whether the length lies beyond the longest context.
    exponent
        b of c(L) ~ L^-b over the last doublings; not a number with fewer than two.
    rest
        What is still to come at every length, as far as it is measured and by the fitted tail.
    limit
        Most tokens that the head can see; infinite if that is not known.
    """

    length: float
    interval: tuple[float, float]
    extrapolated: bool
    exponent: float
    rest: Array
    limit: float = np.inf

    @property
    def is_open(self) -> bool:
        """Whether changes are beyond the tolerance and do not fall."""
        return not np.isfinite(self.length)

    def record(self) -> ContextLength:
        """Return what is stored; None for what there is not."""

        def plain(value: float) -> float | None:
            return float(value) if np.isfinite(value) else None

        low, high = self.interval
        return ContextLength(
            length=plain(self.length),
            open=self.is_open,
            interval=(plain(low), plain(high)),
            extrapolated=self.extrapolated,
            limit=plain(self.limit),
            exponent=plain(self.exponent),
            rest=tuple(plain(value) for value in self.rest),
        )


def saturation(
    changes: Array,
    norms: Array,
    lengths: NDArray[np.int64],
    tolerance: float,
    seed: int,
    limit: float = np.inf,
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
    extrapolated = bool(lengths[-1] < length < np.inf)
    return Saturation(length, ends, extrapolated, exponent, rest, limit)


def _solve(
    relative: Array, lengths: NDArray[np.int64], tolerance: float, limit: float
) -> tuple[float, float, Array]:
    """Length (infinite: open), exponent, and what is still to come at every length."""
    last, longest = float(relative[-1]), float(lengths[-1])
    exponent = _exponent(relative, lengths, limit)
    law = _Tail(last, longest, max(exponent, 0.0) if np.isfinite(exponent) else 0.0)
    rest = np.append(np.cumsum(relative[::-1])[::-1], 0.0) + law.beyond_longest(limit)
    within = np.flatnonzero(rest <= tolerance)
    if within.size:
        return _crossing(rest, lengths, int(within[0]), tolerance, limit), exponent, rest
    if last <= tolerance:
        return min(longest, limit), exponent, rest
    return law.solve(tolerance, limit), exponent, rest


def _crossing(
    rest: Array, lengths: NDArray[np.int64], i: int, tolerance: float, limit: float
) -> float:
    """Where the rest crosses the tolerance; length i is the first at which it is within it."""
    upper = min(float(lengths[i]), limit)
    if i == 0:
        return upper
    if upper == limit:  # nothing is left there
        share = 1 - tolerance / rest[i - 1]
    else:  # a straight line in logarithms, as a power law is
        share = np.log(rest[i - 1] / tolerance) / np.log(rest[i - 1] / max(rest[i], SMALLEST))
    return float(lengths[i - 1] * (upper / lengths[i - 1]) ** share)


def _exponent(changes: Array, lengths: NDArray[np.int64], limit: float) -> float:
    """The b of c(L) ~ L^-b over the last doublings below the limit."""
    below = np.flatnonzero(lengths[:-1] < limit)[-FITTED:]
    if len(below) < 2:
        return float("nan")
    x = np.log(lengths[below].astype(np.float64))
    x = x - x.mean()
    return float(-(x @ np.log(np.maximum(changes[below], SMALLEST))) / (x @ x))


@dataclass(frozen=True)
class _Tail:
    """Changes beyond the longest context: ``c(L) = last (2L/longest)^-b``, b >= 0.

    Attributes
    ----------
    last
        The last measured change, c(longest/2).
    longest
        Longest context that was measured.
    exponent
        b; 0 for changes that do not fall.
    """

    last: float
    longest: float
    exponent: float

    def beyond_longest(self, limit: float) -> float:
        """``c(longest) + c(2 longest) + ...`` up to the limit; infinite if it has no sum."""
        if limit <= self.longest or self.last == 0:
            return 0.0
        ratio = 2.0**-self.exponent
        if ratio == 1.0:
            return float(self.last * np.log2(limit / self.longest))
        left = (limit / self.longest) ** -self.exponent
        return float(self.last * ratio * (1 - left) / (1 - ratio))

    def solve(self, tolerance: float, limit: float) -> float:
        """Length beyond the longest from which the sum is the tolerance; infinite if there is none.

        With u = L/limit the sum from L on is ``c(limit) (u^-b - 1)/(1 - r)``.
        """
        b = self.exponent
        if 2.0**-b == 1.0:
            return np.inf
        if np.isfinite(limit):
            at_limit = self.last * (2 * limit / self.longest) ** -b
            log_share = -np.log1p(tolerance * (1 - 2.0**-b) / at_limit) / b
            return float(limit * np.exp(log_share))
        log_factor = np.log(self.beyond_longest(limit) / tolerance) / b
        return float(self.longest * np.exp(log_factor)) if log_factor < np.log(FARTHEST) else np.inf
