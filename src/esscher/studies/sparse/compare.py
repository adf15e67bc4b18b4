"""One error curve beside another: exponents, constants and equal budgets.

Patterns are measured on the same tokens. So replicates of both curves are resampled together, and
what they share cancels: intervals are those of the difference, not of two separate fits.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, TypeVar

import numpy as np
import scipy
from msgspec.structs import replace

from esscher.core.validation import Array
from esscher.engine.patterns import BASELINE, PATTERNS
from esscher.math.statistics import LEVEL, Rate, Resamples, fit_rate, resample
from esscher.math.statistics.intervals import family_wise, replicates_needed
from esscher.math.statistics.records import ByMetric, Ends, finite
from esscher.runs.folder import Cell, CellRun
from esscher.studies.sparse.measure import Measurement, read_measurements
from esscher.studies.sparse.result import (
    AHEAD,
    CONSTANT,
    FASTER,
    IS_BASELINE,
    KEEPS,
    MARGIN,
    METRICS,
    NEVER,
    NOTHING,
    SLOWER,
    UNDECIDED,
    AgainstRandom,
    BiasCurve,
    BreakEven,
    Crossing,
    ErrorCurve,
    ErrorCurves,
    RandomKeys,
    Reached,
    Reference,
    Sparse,
    SparseHead,
    SparseLayer,
    SparsePattern,
    State,
    UnitCurve,
    UnitPattern,
    Verdict,
    VersusRandom,
    headline,
)
from esscher.studies.sparse.study import SparseLawStudy, SparseStudy

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


# The verdict on a pattern.
#
# A pattern keeps the exponent of random selection if the interval of the difference lies within
# the margin, and loses (or gains) if all of it lies beyond. Everything else is undecided.

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


# Single heads and layers: exponent, last error and budget of every pattern.
#
# Heads of a layer share passages: intervals are over passages, means of a layer are taken inside
# a passage first, and statements about many heads at once are corrected by Holm's procedure.

#: Errors below this are rounding: they are taken for it before the logarithm.
SMALLEST = 1e-9
MAP = METRICS.index("map")


def describe_units(
    units: Sequence[tuple[int, int]],
    errors: Array,
    corrected: Array,
    names: Sequence[str],
    budgets: Array,
    target: float,
) -> tuple[tuple[SparseHead, ...], tuple[SparseLayer, ...]]:
    """Return heads and layers.

    Parameters
    ----------
    units
        Pairs (layer, head).
    errors, corrected
        Relative errors [pattern, metric, unit, passage, budget], as measured and as they are
        fitted.
    names, budgets
        The patterns, and numbers of keys.
    target
        Relative map error for which the budget is wanted.
    """
    of_heads = _all_patterns(errors, corrected, names, budgets, target)
    heads = tuple(
        SparseHead(layer=layer, head=head, patterns=found)
        for (layer, head), found in zip(units, of_heads, strict=True)
    )
    numbers = np.array([layer for layer, _ in units])
    layers = sorted(set(numbers.tolist()))
    # heads of a passage first: they are not independent
    whole, fitted = (
        np.stack([part[:, :, numbers == layer].mean(axis=2) for layer in layers], axis=2)
        for part in (errors, corrected)
    )
    of_layers = _all_patterns(whole, fitted, names, budgets, target)
    return heads, tuple(
        SparseLayer(layer=layer, patterns=found)
        for layer, found in zip(layers, of_layers, strict=True)
    )


def _all_patterns(
    errors: Array, corrected: Array, names: Sequence[str], budgets: Array, target: float
) -> list[dict[str, UnitPattern]]:
    """The patterns of every unit, from errors [pattern, metric, unit, passage, budget]."""
    found: list[dict[str, UnitPattern]] = [{} for _ in range(errors.shape[2])]
    last = np.log(np.maximum(errors[:, MAP, :, :, -1], SMALLEST))
    for p, name in enumerate(names):
        versus = against_random(last[p] - last[names.index(BASELINE)])
        for u, patterns in enumerate(found):
            own = _pattern(errors[p, :, u], corrected[p, :, u], budgets, target)
            if name == BASELINE:
                patterns[name] = UnitPattern(**own)
                continue
            ratio, interval, said = versus[u]
            patterns[name] = UnitPattern(
                **own, ratio=ratio, ratio_interval=interval, against_random=said
            )
    return found


def _pattern(errors: Array, corrected: Array, budgets: Array, target: float) -> dict[str, Any]:
    """Curves and budget of one unit, from errors [metric, passage, budget]."""
    curves: dict[str, Any] = {}
    for m, metric in enumerate(METRICS):
        exponent, interval = slope_over_passages(corrected[m], budgets)
        error = tuple(errors[m].mean(axis=0).tolist())
        curves[metric] = UnitCurve(exponent=exponent, interval=interval, error=error)
    curve = np.log(np.maximum(errors[MAP].mean(axis=0), SMALLEST))
    place = float(first_below(np.log(budgets), curve[None], math.log(target))[0])
    state = state_of(place)
    budget = finite(math.exp(place)) if state == "inside" else None
    return curves | {"budget": budget, "state": state}


def against_random(logs: Array) -> list[tuple[float, Ends, AgainstRandom]]:
    """Ratio, its interval, and what can be said of all units at once, by unit.

    Parameters
    ----------
    logs
        Logarithms of the ratios of errors, axes [unit, passage].
    """
    count = logs.shape[1]
    mean = logs.mean(axis=1)
    if count < 2:
        return [(math.exp(m), (None, None), "undecided") for m in mean]
    error = np.maximum(logs.std(axis=1, ddof=1) / np.sqrt(count), np.finfo(float).tiny)
    half = scipy.special.stdtrit(count - 1, (1 + LEVEL) / 2) * error
    p = 2 * scipy.special.stdtr(count - 1, -np.abs(mean) / error)
    decided = family_wise(p) <= 1 - LEVEL
    return [
        (
            math.exp(m),
            (math.exp(m - h), math.exp(m + h)),
            "undecided" if not sure else "better" if m < 0 else "worse",
        )
        for m, h, sure in zip(mean.tolist(), half.tolist(), decided.tolist(), strict=True)
    ]


def slope_over_passages(errors: Array, budgets: Array) -> tuple[float, Ends]:
    """Exponent of errors [passage, budget]: mean of the passages' own, with Student's interval."""
    x = np.log(budgets) - np.log(budgets).mean()
    own = -(np.log(np.maximum(errors, SMALLEST)) @ x) / (x @ x)
    exponent = float(own.mean())
    if len(own) < 2:
        return exponent, (None, None)
    quantile = scipy.special.stdtrit(len(own) - 1, (1 + LEVEL) / 2)
    half = float(quantile * own.std(ddof=1) / np.sqrt(len(own)))
    return exponent, (exponent - half, exponent + half)


# From the measurements of all cells to what is said about every pattern.

#: Relative map error for which budgets are given.
TARGET = 0.1
#: The pattern that is also compared with every other one.
CONSISTENT = "corrected"
#: Relative rounding of outputs in float32; errors near it are not resolved.
RESOLUTION = 1e-6

T = TypeVar("T")


@dataclass(frozen=True, eq=False)
class Curves:
    """All cells together.

    Attributes
    ----------
    units
        Pairs (layer, head).
    references
        What outputs are compared with.
    errors
        Relative errors [reference, pattern, metric, unit, replicate, budget]; a replicate is a
        sequence of tokens, or a passage (mean over its draws).
    bias_square
        Squared biases [pattern, unit, cell, budget].
    visible
        Mean number of keys that a query may see.
    norm
        Root mean square norm of dense outputs, mean over units and replicates.
    dense_limit
        Errors of dense attention against the limit, [metric, replicate].
    """

    units: tuple[tuple[int, int], ...]
    references: tuple[Reference, ...]
    errors: Array
    bias_square: Array
    visible: float
    norm: float
    dense_limit: Array

    @classmethod
    def of(cls, parts: Sequence[Measurement], draws_are_replicates: bool) -> Curves:
        """Put cells side by side.

        Parameters
        ----------
        parts
            The cells.
        draws_are_replicates
            Whether the replicates of a cell have tokens of their own (laws); else they are draws
            on the same passage, and the passage is the replicate.
        """
        errors = [
            part.errors if draws_are_replicates else part.errors.mean(axis=4, keepdims=True)
            for part in parts
        ]
        return cls(
            units=parts[0].units,
            references=parts[0].references,
            errors=np.concatenate(errors, axis=4),
            bias_square=np.stack([part.bias_square for part in parts], axis=2),
            visible=float(np.mean([part.visible for part in parts])),
            norm=float(np.mean([part.norms.mean() for part in parts])),
            dense_limit=np.concatenate([part.dense_limit for part in parts], axis=1),
        )


def assemble(
    study: SparseStudy | SparseLawStudy, cells: Mapping[str, Cell], run: CellRun
) -> Sparse:
    """Fit every pattern and compare it with random selection."""
    names, budgets = study.patterns, np.asarray(study.budgets, float)
    parts = read_measurements(cells, run, len(names), len(budgets))
    if not parts:
        return Sparse.of(run, study, 0, NOTHING, budgets=study.budgets)
    is_model = isinstance(study, SparseStudy)
    curves = Curves.of(parts, draws_are_replicates=not is_model)
    patterns = describe_patterns(curves, names, budgets, study.seed)
    heads: tuple[SparseHead, ...] = ()
    layers: tuple[SparseLayer, ...] = ()
    if is_model:
        corrected = curves.errors[0] / population_factor(budgets, curves.visible)
        heads, layers = describe_units(
            curves.units, curves.errors[0], corrected, names, budgets, TARGET
        )
    dense = None
    if curves.dense_limit.size:
        dense = _by_metric([float(own[:, None].mean(axis=0)[0]) for own in curves.dense_limit])
    return Sparse.of(
        run,
        study,
        len(parts),
        headline(patterns, heads),
        budgets=study.budgets,
        patterns=patterns,
        heads=heads,
        layers=layers,
        replicates=curves.errors.shape[4],
        visible=curves.visible,
        norm=curves.norm,
        dense_against_limit=dense,
    )


def population_factor(budgets: Array, visible: float) -> Array:
    """``sqrt(1 - r/N)``: what choosing r of N keys without replacement takes off any error.

    Errors are divided by it before they are fitted, so that a power law can be one: without it even
    a random choice would reach 0 at r = N.
    """
    return np.asarray(np.sqrt(1 - budgets / visible))


def describe_patterns(
    curves: Curves, names: Sequence[str], budgets: Array, seed: int
) -> dict[str, SparsePattern]:
    """Curves, fits, bias, verdicts and break-even budgets, by pattern."""
    factor = population_factor(budgets, curves.visible)
    # heads count alike: relative errors, mean over the heads
    overall = curves.errors.mean(axis=3)
    fits = {
        (reference, name): [
            fit_rate(
                overall[r, p, m] / (factor if reference == "dense" else 1.0),
                budgets,
                seed=seed,
                resolution=RESOLUTION,
            )
            for m in range(len(METRICS))
        ]
        for r, reference in enumerate(curves.references)
        for p, name in enumerate(names)
    }
    base = names.index(BASELINE)
    found = {}
    for p, name in enumerate(names):
        by_reference = {
            reference: _by_metric([_summary(errors) for errors in overall[r, p]])
            for r, reference in enumerate(curves.references)
        }
        limit = fits.get(("limit", name))
        stored, bias = _bias(curves, p, budgets)
        versus, verdicts, even = _against_random(
            name,
            fits["dense", name],
            fits["dense", BASELINE],
            overall[0, p],
            overall[0, base],
            budgets,
            bias,
            seed,
        )
        if name == CONSISTENT:
            # against the others too: from which budget on it is worth its chance
            even = replace(even, against=_crossings(overall[0], names, budgets, seed))
        found[name] = SparsePattern(
            title=PATTERNS[name].title,
            random=PATTERNS[name].is_random,
            curve=ErrorCurves(**by_reference),
            fit=_by_metric([rate.record() for rate in fits["dense", name]]),
            fit_limit=None if limit is None else _by_metric([rate.record() for rate in limit]),
            bias=stored,
            versus_random=versus,
            verdict=verdicts.map.verdict,
            evidence=verdicts.map.evidence,
            verdicts=verdicts,
            break_even=even,
        )
    return found


def _crossings(
    errors: Array, names: Sequence[str], budgets: Array, seed: int
) -> dict[str, Crossing]:
    """Where the map error of corrected selection crosses that of every other pattern."""
    own = names.index(CONSISTENT)
    return {
        name: Pair.of(errors[own, MAP], errors[p, MAP], budgets, seed).crossing(name)
        for p, name in enumerate(names)
        if name != CONSISTENT
    }


def _against_random(
    name: str,
    rates: Sequence[Rate],
    baseline: Sequence[Rate],
    errors: Array,
    base: Array,
    budgets: Array,
    bias: Bias | None,
    seed: int,
) -> tuple[ByMetric[VersusRandom] | None, ByMetric[Verdict], BreakEven]:
    """Comparison, verdicts and break-even budgets of one pattern."""
    needed = budget_for(errors[MAP], budgets, TARGET, seed)
    if name == BASELINE:
        said = Verdict(verdict=IS_BASELINE, evidence="what the others are compared with")
        return None, _by_metric([said] * len(METRICS)), BreakEven(for_target=needed)
    pairs = [Pair.of(errors[m], base[m], budgets, seed) for m in range(len(METRICS))]
    compared = [pair.compare() for pair in pairs]
    verdicts = [
        judge(
            metric,
            rates[m],
            compared[m],
            baseline[m],
            bias if metric == "map" else None,
            PATTERNS[name].is_exact,
        )
        for m, metric in enumerate(METRICS)
    ]
    even = BreakEven(
        for_target=needed, crossing=pairs[MAP].crossing(), as_random=pairs[MAP].as_random()
    )
    return _by_metric([found.record() for found in compared]), _by_metric(verdicts), even


def _by_metric(values: Sequence[T]) -> ByMetric[T]:
    """Values in the order of ``METRICS``."""
    return ByMetric(**dict(zip(METRICS, values, strict=True)))


def _summary(errors: Array) -> ErrorCurve:
    """Mean and standard error over replicates [replicate, budget]."""
    count = len(errors)
    spread = errors.std(axis=0, ddof=1) / np.sqrt(count) if count > 1 else None
    return ErrorCurve(
        mean=_curve(errors.mean(axis=0)),
        median=_curve(np.median(errors, axis=0)),
        standard_error=None if spread is None else _curve(spread),
    )


def _curve(values: Array) -> tuple[float, ...]:
    return tuple(values.tolist())


def _bias(curves: Curves, pattern: int, budgets: Array) -> tuple[BiasCurve, Bias | None]:
    """Relative bias of the outputs by budget, and its share of the squared error."""
    squares = curves.bias_square[pattern].mean(axis=0)
    # mean over heads of the squared error, as the squared bias is one
    error = (curves.errors[0, pattern, MAP] ** 2).mean(axis=(0, 1))
    cells = squares[np.isfinite(squares).all(axis=1)]
    if len(cells) < 2:
        return BiasCurve(square=None, standard_error=None, share=None, exponent=None), None
    mean = cells.mean(axis=0)
    noise = cells.std(axis=0, ddof=1) / np.sqrt(len(cells))
    # cells are what is independent: heads and budgets of a cell share tokens and choices
    quantile = float(scipy.special.stdtrit(len(cells) - 1, (1 + LEVEL) / 2))
    share, half = mean / error, quantile * noise / error
    seen = mean > quantile * noise
    exponent, interval = None, None
    if seen[-1] and seen.sum() >= 2:
        exponent, interval = _bias_exponent(cells[:, seen], budgets[seen], quantile)
    stored = BiasCurve(
        square=_curve(mean), standard_error=_curve(noise), share=_curve(share), exponent=exponent
    )
    last = (float(share[-1] - half[-1]), float(share[-1] + half[-1]))
    return stored, Bias(float(share[-1]), last, exponent, interval)


def _bias_exponent(
    squares: Array, budgets: Array, quantile: float
) -> tuple[float, tuple[float, float]]:
    """Exponent of the bias from its squares [cell, budget], with interval (delta method)."""
    mean, x = squares.mean(axis=0), np.log(budgets)
    form = -(x - x.mean()) / np.sum((x - x.mean()) ** 2) / 2
    exponent = float(form @ np.log(mean))
    error = float((squares / mean @ form).std(ddof=1) / np.sqrt(len(squares)))
    return exponent, (exponent - quantile * error, exponent + quantile * error)
