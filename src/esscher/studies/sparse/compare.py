"""From the errors of all cells to exponents, and one verdict per pattern.

**Fits.** Choosing r of N keys without replacement takes a factor ``sqrt(1 - r/N)`` off any error:
errors are divided by it before they are fitted, so that a power law can be one.

**The rule.** The verdict on a pattern is about the exponent of its map error minus that of random
selection, on the same budgets. It is *kept* if the 95% interval of the difference lies within 0.05
of 0, *faster* or *slower* if the interval lies beyond. A pattern *does not converge* if its error
does not fall (its exponent lies below 0.1), or if it is not dense attention even at r = N.
Everything else is undecided.

**The assumption.** Replicates are independent, and errors over budgets are close enough to a power
law that one exponent stands for these budgets. Patterns are measured on the same tokens: replicates
of both are resampled together, and what they share cancels.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import TypeVar

import numpy as np

from esscher.core.codec import Estimate
from esscher.core.shown import between, rates_said
from esscher.core.validation import Array
from esscher.engine.patterns import PATTERNS
from esscher.engine.sampled.sizes import METRICS
from esscher.math.statistics import LEVEL, Rate, fit_rate, resample
from esscher.math.statistics.intervals import mean_and_interval
from esscher.math.statistics.records import ByMetric, class_counts, finite, rate_words
from esscher.runs.folder import Cell, CellRun
from esscher.studies.sparse.measure import read_errors
from esscher.studies.sparse.result import (
    FASTER,
    IS_BASELINE,
    KEEPS,
    MARGIN,
    NEVER,
    RANDOM,
    SLOWER,
    UNDECIDED,
    HeadPattern,
    Sparse,
    SparseHead,
    SparsePattern,
)
from esscher.studies.sparse.study import SparseLawStudy, SparseStudy

T = TypeVar("T")

NOTHING = "Nothing has been measured yet."
#: An error that falls no faster than the budget to this power does not fall on any usable range.
FLAT = 0.1
#: Relative rounding of outputs in float32; errors near it are not resolved.
RESOLUTION = 1e-6
#: Largest logarithm of a number that is stored.
LARGEST = 700
#: Errors below this are rounding: they are taken for it before the logarithm.
SMALLEST = 1e-9
#: Verdicts in the order of the headline, of one pattern and of several.
WORDS = {
    KEEPS: (KEEPS, "keep the exponent"),
    FASTER: (FASTER, "converge faster"),
    SLOWER: (SLOWER, "converge more slowly"),
    NEVER: (f"{NEVER} on these budgets", "do not converge to dense on these budgets"),
    UNDECIDED: ("is undecided", "are undecided"),
}


def assemble(
    study: SparseStudy | SparseLawStudy, cells: Mapping[str, Cell], run: CellRun
) -> Sparse:
    """Fit every pattern and compare it with random selection."""
    names, budgets = study.patterns, np.asarray(study.budgets, float)
    parts = read_errors(cells, run, len(names), len(budgets))
    if not parts:
        return Sparse.of(run, study, 0, NOTHING, budgets=study.budgets)
    is_model = isinstance(study, SparseStudy)
    if is_model:  # draws on a passage share its tokens: the passage is the replicate
        parts = [part.mean(axis=3, keepdims=True) for part in parts]
    errors = np.concatenate(parts, axis=3)
    stored = [cell.about for cell in cells.values()]
    visible = float(np.mean([about.visible for about in stored]))
    factor = np.sqrt(1 - budgets / visible)
    patterns = describe_patterns(errors.mean(axis=2), factor, names, budgets, study.seed)
    heads = describe_heads(stored[0].units, errors, factor, names, budgets) if is_model else ()
    return Sparse.of(
        run,
        study,
        len(parts),
        _headline(patterns, heads),
        budgets=study.budgets,
        patterns=patterns,
        heads=heads,
        replicates=errors.shape[3],
        visible=visible,
        norm=float(np.mean([about.norm for about in stored])),
    )


def describe_patterns(
    errors: Array, factor: Array, names: Sequence[str], budgets: Array, seed: int
) -> dict[str, SparsePattern]:
    """Curves, fits, comparison with random selection and verdict, by pattern.

    Parameters
    ----------
    errors
        Relative errors, mean over the heads, axes [pattern, metric, replicate, budget].
    factor
        What errors are divided by before they are fitted, by budget.
    names, budgets
        Of the patterns, and numbers of keys.
    seed
        Seed of the resamples.
    """
    base = names.index(RANDOM)
    patterns = {}
    for p, name in enumerate(names):
        fit = _by_metric(
            [fit_rate(e / factor, budgets, seed=seed, resolution=RESOLUTION) for e in errors[p]]
        )
        difference = ratio = None
        verdict = IS_BASELINE
        if name != RANDOM:
            both = [
                versus_random(e, random, budgets, seed)
                for e, random in zip(errors[p], errors[base], strict=True)
            ]
            difference, ratio = (_by_metric([pair[i] for pair in both]) for i in range(2))
            verdict = judge(fit.map, difference.map, PATTERNS[name].is_exact)
        patterns[name] = SparsePattern(
            title=PATTERNS[name].title,
            curve=_by_metric([mean_and_interval(e) for e in errors[p]]),
            fit=fit,
            difference=difference,
            ratio=ratio,
            verdict=verdict,
        )
    return patterns


def versus_random(
    errors: Array, random: Array, budgets: Array, seed: int
) -> tuple[Estimate, Estimate]:
    """Difference of two exponents, and ratio of two errors, from errors [replicate, budget].

    Replicates of both are resampled together. Budgets without error on either side are left out.
    """
    used = (errors.mean(axis=0) > 0) & (random.mean(axis=0) > 0)
    both, at = np.hstack([errors[:, used], random[:, used]]), budgets[used]
    resamples = resample(both, np.tile(at, 2), "mean", seed)
    # exponents are minus the slopes; equal weights, the same for both curves
    x = np.log(at)
    slope = -(x - x.mean()) / np.sum((x - x.mean()) ** 2)
    level = np.full(len(at), 1 / len(at))
    forms = np.stack([np.concatenate([form, -form]) for form in (slope, level)])
    differences, logarithms = np.stack(resamples.intervals(forms, LEVEL), axis=1).tolist()
    ratios = [math.exp(end) if end < LARGEST else math.inf for end in logarithms]
    difference, ratio = (
        Estimate(value=finite(value), interval=(finite(low), finite(high)))
        for value, low, high in (differences, ratios)
    )
    return difference, ratio


def judge(fit: Rate, difference: Estimate, is_exact: bool) -> str:
    """Return the verdict on a pattern; the rule is above.

    Parameters
    ----------
    fit
        Rate of its map error.
    difference
        Its exponent minus that of random selection.
    is_exact
        Whether the pattern is dense attention once its budget holds all keys.
    """
    below, above = difference.interval
    if fit.interval[1] is None or below is None or above is None:
        return UNDECIDED
    if not is_exact or fit.interval[1] < FLAT:
        return NEVER
    if below > MARGIN:
        return FASTER
    if above < -MARGIN:
        return SLOWER
    return KEEPS if below >= -MARGIN and above <= MARGIN else UNDECIDED


def describe_heads(
    units: Sequence[tuple[int, int]],
    errors: Array,
    factor: Array,
    names: Sequence[str],
    budgets: Array,
) -> tuple[SparseHead, ...]:
    """Map errors and exponents of every head.

    An exponent is the mean of those of the passages, with Student's interval.
    """
    maps = errors[:, METRICS.index("map")]  # [pattern, unit, passage, budget]
    x = np.log(budgets) - np.log(budgets).mean()
    slopes = -(np.log(np.maximum(maps / factor, SMALLEST)) @ x) / (x @ x)
    curves = maps.mean(axis=2)
    heads = []
    for u, (layer, head) in enumerate(units):
        patterns = {}
        for p, name in enumerate(names):
            exponent = mean_and_interval(slopes[p, u][:, None])
            patterns[name] = HeadPattern(
                exponent=Estimate(
                    value=exponent.mean[0], interval=exponent.interval[0] or (None, None)
                ),
                error=tuple(curves[p, u].tolist()),
            )
        heads.append(SparseHead(layer=layer, head=head, patterns=patterns))
    return tuple(heads)


def _headline(patterns: Mapping[str, SparsePattern], heads: Sequence[SparseHead]) -> str:
    """The answer in a few sentences."""
    base = patterns[RANDOM].fit.map
    sentences = [
        "Random selection: the error falls with the number of keys, with exponent "
        f"{between(base.exponent, base.interval)}, {rate_words(base.interval)}."
    ]
    groups = []
    for verdict, (singular, plural) in WORDS.items():
        names = [name for name, pattern in patterns.items() if pattern.verdict == verdict]
        if len(names) > 1:
            groups.append(f"{', '.join(names[:-1])} and {names[-1]} {plural}")
        elif names:
            groups.append(f"{names[0]} {singular}")
    if groups:
        sentences.append(
            f"Compared with it (exponents within {MARGIN:g} count as equal): {'; '.join(groups)}."
        )
    if heads:
        counts = class_counts(unit.patterns[RANDOM].exponent.interval for unit in heads)
        sentences.append(f"With random keys the error falls {rates_said(counts, 'head')}.")
    return " ".join(sentences)


def _by_metric(values: Sequence[T]) -> ByMetric[T]:
    """Values in the order of ``METRICS``."""
    return ByMetric(**dict(zip(METRICS, values, strict=True)))
