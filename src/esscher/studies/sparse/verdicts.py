"""The verdict on a pattern: what its intervals decide, and how many replicates decide the rest.

A pattern keeps the exponent of random selection if the whole interval of the DIFFERENCE of the two
exponents lies within the margin, and loses (or gains) if all of it lies beyond. Everything else is
undecided: fewer replicates, whose intervals are wider, never keep an exponent that more replicates
would not.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

from esscher.math.statistics import Rate
from esscher.math.statistics.intervals import replicates_needed
from esscher.studies.sparse.compare import Comparison
from esscher.studies.sparse.records import Verdict

KEEPS = "keeps the exponent"
CONSTANT = "changes the constant"
SLOWER = "converges more slowly"
FASTER = "converges faster"
AHEAD = "is ahead of random selection, by less and less"
NEVER = "does not converge to dense"
UNDECIDED = "undecided"
BASELINE = "baseline"
#: Exponents that differ by no more than this are called the same. It is the half-width of what is
#: called 1/2 (``math/statistics/classes.py``).
MARGIN = 0.05
#: An error that falls no faster than the budget to this power does not fall on any usable range.
FLAT = 0.1
#: A bias that makes up this share of the squared error, and does not fall, is a floor.
BIASED = 0.5


@dataclass(frozen=True)
class Bias:
    """The share of a pattern's squared error that is bias, at the largest budget, with interval.

    ``exponent`` is that of the bias along the budgets (a fit through what is above 0), with its
    interval; both None where it cannot be seen.
    """

    share: float
    share_interval: tuple[float, float]
    exponent: float | None
    exponent_interval: tuple[float, float] | None

    @property
    def dominates(self) -> bool:
        """Whether more than half of the squared error is bias, beyond the interval."""
        return self.share_interval[0] > BIASED

    @property
    def stays(self) -> bool:
        """Whether it does not fall with the budget, beyond the interval."""
        return self.exponent_interval is not None and self.exponent_interval[1] < FLAT


def judge(
    metric: str,
    rate: Rate,
    comparison: Comparison,
    baseline: Rate,
    bias: Bias | None,
    is_exact: bool,
) -> Verdict:
    """The verdict on one pattern, with the evidence in words.

    Whether outputs converge is decided by the map. The mean and the covariance over the queries are
    averages: where every query sees other keys, as in a window, their errors average out, the more
    the smaller the budget, and a curve that begins low and falls slowly is no sign of a floor.

    Parameters
    ----------
    metric
        What the error is of.
    rate, baseline
        Fits of the pattern and of random selection.
    comparison
        Both on the same replicates.
    bias
        What is known about the bias of the outputs; None if nothing is.
    is_exact
        Whether the pattern is dense attention once its budget holds all keys.
    """
    low, high = rate.interval
    if not math.isfinite(high - low):
        return _said(UNDECIDED, "one replicate has no interval")
    words = (
        f"exponent {rate.exponent:.3f} ({low:.3f} to {high:.3f}) against "
        f"{baseline.exponent:.3f} of random selection, difference {_difference(comparison)}"
    )
    ends = comparison.ratio_interval
    times, least, most = (_factor(x) for x in (comparison.ratio, *ends))
    factor = f"error {times} ({least} to {most}) times that of random selection"
    if not is_exact:
        return _said(NEVER, f"not dense attention even at r = N; {words}; {factor}")
    floor = None if metric != "map" else _floor(rate, bias)
    if floor is not None:
        return _said(NEVER, f"{floor}; {words}; {factor}")
    below, above = comparison.difference_interval
    if below > MARGIN:
        tail = ""
        if bias is not None and bias.dominates:
            tail = f"; {100 * bias.share:.0f}% of its square is bias, no Monte Carlo error"
        return _said(FASTER, f"{words}{_shape(rate)}; {factor}{tail}")
    if above < -MARGIN:
        ahead = metric != "map" and comparison.last_ratio_interval[0] <= 1
        return _said(AHEAD if ahead else SLOWER, f"{words}{_shape(rate)}; {factor}")
    if not -MARGIN <= below <= above <= MARGIN:
        return _said(UNDECIDED, f"{words}: {would_decide(comparison)}; {factor}")
    if ends[0] > 1 or ends[1] < 1:
        return _said(CONSTANT, f"{words}; {factor}")
    apart = 100 * max(ends[1] - 1, 1 - ends[0])
    return _said(KEEPS, f"{words}; {factor}, so that constants differ by {apart:.2g}% at most")


def spoken(verdict: str) -> str:
    """A verdict as what follows the name of a pattern in a sentence."""
    return f"is {verdict}" if verdict == UNDECIDED else verdict


def would_decide(comparison: Comparison) -> str:
    """How many replicates would decide whether the exponent is kept, in words."""
    neither = f"neither within {MARGIN:g} of 0 nor beyond"
    distance = abs(abs(comparison.difference) - MARGIN)
    spread = comparison.difference_error * math.sqrt(comparison.replicates)
    needed = replicates_needed(distance, spread)
    if needed is None:
        return f"{neither}, and too close to that margin for any reasonable number of replicates"
    return (
        f"{neither}; {max(needed, comparison.replicates + 1):,} replicates in all, instead of "
        f"{comparison.replicates:,}, would decide in 4 of 5 cases if the difference and its spread "
        "stay as they are"
    )


def _floor(rate: Rate, bias: Bias | None) -> str | None:
    """Why the map error does not go to 0 along these budgets; None if nothing says so."""
    # a bend that a logarithm explains as well is no floor
    if rate.law == "floor" and rate.selection.decisive:
        floor = rate.selection.fits["floor"].parameters["floor"]
        return f"the curve, sqrt(1 - r/N) divided out, has a floor at {floor:.2g}"
    if rate.interval[1] < FLAT:
        return "the error does not fall on this range"
    if bias is not None and bias.dominates and bias.stays:
        share = f"{100 * bias.share:.0f}%"
        return f"bias is {share} of the squared error at the largest budget, and does not fall"
    return None


def _difference(comparison: Comparison) -> str:
    low, high = comparison.difference_interval
    return f"{comparison.difference:+.3f} ({low:+.3f} to {high:+.3f})"


def _factor(value: float) -> str:
    return f"{value:.2f}" if value < 10 else f"{value:.3g}"


def _shape(rate: Rate) -> str:
    """How the curve bends, if it is no power law."""
    if rate.law != "power":
        return ", and flattening"
    return ", and steepening" if rate.selection.steepens else ""


def _said(verdict: str, evidence: str) -> Verdict:
    return Verdict(verdict=verdict, evidence=evidence)
