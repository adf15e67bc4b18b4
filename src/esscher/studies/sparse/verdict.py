"""What became of the exponent: kept, another constant, slower, faster, or no convergence."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING

from esscher.math.statistics import Rate
from esscher.studies.sparse.records import Verdict

if TYPE_CHECKING:
    from esscher.studies.sparse.compare import Comparison

KEEPS = "keeps the exponent"
CONSTANT = "changes the constant"
SLOWER = "converges more slowly"
FASTER = "converges faster"
AHEAD = "is ahead of random selection, by less and less"
NEVER = "does not converge to dense"
UNDECIDED = "undecided"
BASELINE = "baseline"
#: Exponents that differ by no more than this are called the same.
CLOSE = 0.03
#: An error that falls no faster than the budget to this power does not fall on any usable range.
FLAT = 0.1
#: A bias that makes up this share of the squared error, and does not fall, is a floor.
BIASED = 0.5


@dataclass(frozen=True)
class Bias:
    """The share of a pattern's squared error that is bias, at the largest budget.

    ``exponent`` is that of the bias along the budgets (a fit through what is above 0), None where
    it cannot be seen.
    """

    share: float
    share_interval: tuple[float, float]
    exponent: float | None


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
    below, above = comparison.difference_interval
    words = (
        f"exponent {rate.exponent:.3f} ({low:.3f} to {high:.3f}) against "
        f"{baseline.exponent:.3f} of random selection"
    )
    ends = comparison.ratio_interval
    times, least, most = (_factor(x) for x in (comparison.ratio, *ends))
    factor = f"error {times} ({least} to {most}) times that of random selection"
    if not is_exact:
        return _said(NEVER, f"not dense attention even at r = N; {words}; {factor}")
    if metric == "map":
        if rate.law == "floor":
            floor = rate.selection.fits["floor"].parameters["floor"]
            return _said(
                NEVER,
                f"the curve, sqrt(1 - r/N) divided out, has a floor at {floor:.2g}; {words}; "
                f"{factor}",
            )
        if high < FLAT:
            return _said(NEVER, f"the error does not fall on this range; {words}; {factor}")
        if (
            bias is not None
            and bias.share_interval[0] > BIASED
            and bias.exponent is not None
            and bias.exponent < FLAT
        ):
            share = f"{100 * bias.share:.0f}%"
            return _said(
                NEVER,
                f"bias is {share} of the squared error at the largest budget, and does not fall; "
                f"{words}; {factor}",
            )
    shape = _shape(rate)
    if below > CLOSE:
        tail = ""
        if bias is not None and bias.share_interval[0] > BIASED:
            tail = f"; {100 * bias.share:.0f}% of its square is bias, no Monte Carlo error"
        return _said(FASTER, f"{words}{shape}; {factor}{tail}")
    if above < -CLOSE:
        ahead = metric != "map" and comparison.last_ratio_interval[0] <= 1
        return _said(AHEAD if ahead else SLOWER, f"{words}{shape}; {factor}")
    if ends[0] > 1 or ends[1] < 1:
        return _said(CONSTANT, f"{words}; {factor}")
    return _said(KEEPS, f"{words}; {factor}")


def _factor(value: float) -> str:
    return f"{value:.2f}" if value < 10 else f"{value:.3g}"


def _shape(rate: Rate) -> str:
    """How the curve bends, if it is no power law."""
    if rate.law != "power":
        return ", and flattening"
    return ", and steepening" if rate.selection.steepens else ""


def _said(verdict: str, evidence: str) -> Verdict:
    return Verdict(verdict=verdict, evidence=evidence)
