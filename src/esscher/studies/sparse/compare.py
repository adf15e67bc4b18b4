"""One error curve beside another: exponents, constants and equal budgets.

Patterns are measured on the same tokens. So replicates of both curves are resampled together, and
what they share cancels: intervals are those of the difference, not of two separate fits.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
import scipy

from esscher.core.validation import Array
from esscher.math.statistics import LEVEL, Resamples, resample
from esscher.math.statistics.records import finite
from esscher.studies.sparse.records import (
    Crossing,
    RandomKeys,
    Reached,
    State,
    VersusRandom,
)

#: What is said of two curves that cannot be told apart at one end.
NO_CROSSING = "no crossing beyond noise"


@dataclass(frozen=True)
class Comparison:
    """A pattern's error curve compared with that of random selection.

    Attributes
    ----------
    difference, difference_interval, difference_error
        Exponent of the pattern minus that of random selection, on the same budgets, with interval
        and standard error.
    ratio, ratio_interval
        Its error over that of random selection, geometric mean over the budgets.
    last_ratio, last_ratio_interval
        The same at the largest budget.
    replicates
        How many there are.
    """

    difference: float
    difference_interval: tuple[float, float]
    difference_error: float
    ratio: float
    ratio_interval: tuple[float, float]
    last_ratio: float
    last_ratio_interval: tuple[float, float]
    replicates: int

    def record(self) -> VersusRandom:
        """Return what is stored of it."""
        return VersusRandom(
            exponent_difference=finite(self.difference),
            exponent_difference_interval=_finite(self.difference_interval),
            ratio=finite(self.ratio),
            ratio_interval=_finite(self.ratio_interval),
            last_ratio=finite(self.last_ratio),
            last_ratio_interval=_finite(self.last_ratio_interval),
        )


@dataclass(frozen=True, eq=False)
class Pair:
    """Two error curves on the same replicates and budgets, resampled together."""

    budgets: Array
    resamples: Resamples

    @classmethod
    def of(cls, errors: Array, baseline: Array, budgets: Array, seed: int) -> Pair:
        """Of errors [replicate, budget]; budgets without error on either side are left out."""
        used = (errors.mean(axis=0) > 0) & (baseline.mean(axis=0) > 0)
        both = np.hstack([errors[:, used], baseline[:, used]])
        at = np.asarray(budgets, dtype=np.float64)[used]
        return cls(at, resample(both, np.tile(at, 2), "mean", seed))

    def compare(self) -> Comparison:
        """Exponent and constant of the first against the second."""
        count = len(self.budgets)
        x = np.log(self.budgets)
        # exponents are minus the slopes; equal weights, the same for both curves
        slope = -(x - x.mean()) / np.sum((x - x.mean()) ** 2)
        forms = np.stack(
            [
                np.concatenate([slope, -slope]),
                np.concatenate([np.full(count, 1 / count), np.full(count, -1 / count)]),
                np.concatenate([np.eye(count)[-1], -np.eye(count)[-1]]),
            ]
        )
        value, low, high = self.resamples.intervals(forms, LEVEL)
        return Comparison(
            float(value[0]),
            (float(low[0]), float(high[0])),
            float(self.resamples.standard_errors(forms)[0]),
            *(_exponential(value[1], low[1], high[1])),
            *(_exponential(value[2], low[2], high[2])),
            self.resamples.n_replicates,
        )

    def crossing(self, other: str = "random selection") -> Crossing:
        """Budget from which on, or up to which, the first is better than the second, ``other``."""
        count = len(self.budgets)
        forms = np.hstack([np.eye(count), -np.eye(count)])
        value, low, high = self.resamples.intervals(forms, LEVEL)
        worse, better = low > 0, high < 0
        if (worse[0] and better[-1]) or (better[0] and worse[-1]):
            sign = 1.0 if worse[0] else -1.0
            x = np.log(self.budgets)
            draws = student_draws(self.resamples) @ forms.T
            point = first_below(x, sign * value[None], 0.0)[0]
            low_end, high_end = np.quantile(first_below(x, sign * draws, 0.0), _ends())
            says = "from here on" if worse[0] else "up to here"
            return Crossing(
                budget=finite(math.exp(point)),
                interval=(_budget(low_end), _budget(high_end)),
                says=f"better than {other} {says}",
            )
        says = NO_CROSSING
        if worse[0] and worse[-1] and np.all(value > 0):
            says = f"worse than {other} at every budget"
        elif better[0] and better[-1] and np.all(value < 0):
            says = f"better than {other} at every budget"
        return Crossing(budget=None, interval=(None, None), says=says)

    def as_random(self) -> RandomKeys:
        """Random keys that are worth the largest budget of the first curve."""
        count, x = len(self.budgets), np.log(self.budgets)
        draws = student_draws(self.resamples)
        point = self.resamples.log_errors
        found = first_below(x, point[None, count:], point[None, count - 1])
        resampled = first_below(x, draws[:, count:], draws[:, count - 1])
        return RandomKeys(
            keys=float(self.budgets[-1]),
            random_keys=_budget(found[0]),
            interval=_interval(resampled),
            state=state_of(found[0]),
        )


def budget_for(errors: Array, budgets: Array, target: float, seed: int) -> Reached:
    """Budget from which the mean of errors [replicate, budget] is at most ``target``.

    Interpolated between the budgets, never beyond them: the state says "below" where the smallest
    budget does it already, "above" where the largest does not.
    """
    used = errors.mean(axis=0) > 0
    x = np.log(np.asarray(budgets, dtype=np.float64)[used])
    resamples = resample(errors[:, used], np.exp(x), "mean", seed)
    found = first_below(x, resamples.log_errors[None], math.log(target))
    draws = first_below(x, student_draws(resamples), math.log(target))
    return Reached(
        target=target,
        budget=_budget(found[0]),
        interval=_interval(draws),
        state=state_of(found[0]),
    )


def student_draws(resamples: Resamples) -> Array:
    """Resampled log errors, spread by what a few replicates make uncertain about their spread."""
    count = resamples.n_replicates
    if count < 2:
        return resamples.draws
    level = (1 + LEVEL) / 2
    quantiles = scipy.special.stdtrit(count - 1, level) / scipy.special.ndtri(level)
    factor = quantiles * math.sqrt(count / (count - 1))
    return np.asarray(resamples.log_errors + factor * (resamples.draws - resamples.log_errors))


def first_below(x: Array, curves: Array, targets: Array | float) -> Array:
    """Where each of the curves [curve, point] first is at most its target, on straight pieces.

    -inf if at the first point already, inf if nowhere.
    """
    aim = np.broadcast_to(np.asarray(targets, dtype=np.float64), len(curves))
    below = curves <= aim[:, None]
    at = np.argmax(below, axis=1)
    rows = np.arange(len(curves))
    before = np.maximum(at - 1, 0)
    upper, lower = curves[rows, before], curves[rows, at]
    with np.errstate(divide="ignore", invalid="ignore"):
        share = (upper - aim) / (upper - lower)
        place = x[before] + share * (x[at] - x[before])
    place = np.where(at == 0, -np.inf, place)
    return np.asarray(np.where(below.any(axis=1), place, np.inf))


def state_of(point: float) -> State:
    """Whether a place that :func:`first_below` found lies on the grid."""
    return "inside" if math.isfinite(point) else "below" if point < 0 else "above"


def _interval(draws: Array) -> tuple[float | None, float | None]:
    low, high = np.quantile(draws, _ends(), method="nearest")
    return _budget(float(low)), _budget(float(high))


def _finite(ends: tuple[float, float]) -> tuple[float | None, float | None]:
    return finite(ends[0]), finite(ends[1])


def _ends() -> list[float]:
    return [(1 - LEVEL) / 2, (1 + LEVEL) / 2]


def _budget(log_budget: float) -> float | None:
    return math.exp(log_budget) if math.isfinite(log_budget) else None


def _exponential(value: float, low: float, high: float) -> tuple[float, tuple[float, float]]:
    return math.exp(value), (_exp(low), _exp(high))


def _exp(value: float) -> float:
    return math.exp(value) if value < 700 else math.inf
