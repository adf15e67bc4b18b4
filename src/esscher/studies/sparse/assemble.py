"""From the measurements of all cells to what is said about every pattern."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TypeVar

import numpy as np
import scipy
from msgspec.structs import replace

from esscher.core.validation import Array
from esscher.engine.patterns import BASELINE, PATTERNS, Corrected
from esscher.math.statistics import LEVEL, Rate, fit_rate
from esscher.math.statistics.records import ByMetric
from esscher.runs.folder import Cell, CellRun
from esscher.studies.sparse.compare import Pair, budget_for
from esscher.studies.sparse.measurement import Measurement
from esscher.studies.sparse.records import (
    METRICS,
    BiasCurve,
    BreakEven,
    Crossing,
    ErrorCurve,
    ErrorCurves,
    Reference,
    SparseHead,
    SparseLayer,
    SparsePattern,
    Verdict,
    VersusRandom,
)
from esscher.studies.sparse.result import NOTHING, Sparse, headline
from esscher.studies.sparse.store import read_measurements
from esscher.studies.sparse.study import SparseLawStudy, SparseStudy
from esscher.studies.sparse.units import describe_units
from esscher.studies.sparse.verdicts import BASELINE as IS_BASELINE
from esscher.studies.sparse.verdicts import Bias, judge

#: Relative map error for which budgets are given.
TARGET = 0.1
#: The pattern that is also compared with every other one.
CONSISTENT = Corrected.name
#: Where the map stands among the metrics.
MAP = METRICS.index("map")
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
            name, fits["dense", name], fits["dense", BASELINE], overall[0, p], overall[0, base],
            budgets, bias, seed,
        )  # fmt: skip
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
