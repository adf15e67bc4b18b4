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
from collections.abc import Sequence

import numpy as np
import xarray as xr

from esscher.core.codec import Estimate
from esscher.core.validation import Array
from esscher.core.variables import estimate, joined
from esscher.engine.patterns import BASELINE, PATTERNS
from esscher.math.statistics import LEVEL, Rate, fit_rate, resample
from esscher.math.statistics.intervals import mean_bounds
from esscher.math.statistics.records import finite
from esscher.studies.sparse.study import LawErrors, PassageErrors, SparseData, SparseLawData

#: Verdicts; that on random selection, and those on the other patterns.
IS_BASELINE = "baseline"
KEEPS = "keeps the exponent"
FASTER = "converges faster"
SLOWER = "converges more slowly"
NEVER = "does not converge to dense"
UNDECIDED = "undecided"
#: Exponents that differ by no more than this are called the same: half of the width of what is
#: called 1/2 (``math/statistics/records.py``).
MARGIN = 0.05
#: Random selection compared with itself.
EQUAL = (
    Estimate(value=0.0, interval=(None, None)),
    Estimate(value=1.0, interval=(None, None)),
)
#: An error that falls no faster than the budget to this power does not fall on any usable range.
FLAT = 0.1
#: Relative rounding of outputs in float32; errors near it are not resolved.
RESOLUTION = 1e-6
#: Largest logarithm of a number that is stored.
LARGEST = 700
#: Errors below this are rounding: they are taken for it before the logarithm.
SMALLEST = 1e-9


def combine(cells: Sequence[xr.Dataset], seed: int) -> SparseLawData:
    """Fit every pattern on tokens of a law, and compare it with random selection."""
    errors = LawErrors(joined(cells, "replicate"))
    data = SparseLawData(errors.dataset.drop_vars(list(errors.dataset.data_vars)))
    return compare_patterns(data, errors.error.values, cells, seed)


def combine_passages(cells: Sequence[xr.Dataset], seed: int) -> SparseData:
    """Fit every pattern on a model, compare it with random selection, and fit every head."""
    errors = PassageErrors(joined(cells, "replicate"))
    data = SparseData(errors.dataset.drop_vars(list(errors.dataset.data_vars)))
    patterns, metrics, *heads, replicates, budgets = errors.error.shape
    of_heads = errors.error.values.reshape(patterns, metrics, -1, replicates, budgets)
    compare_patterns(data, of_heads.mean(axis=2), cells, seed)
    maps = of_heads[:, data.dataset["metric"].values.tolist().index("map")]
    exponents = head_exponents(maps / _factor(data), data.dataset["budget"].values)
    data.head_error = maps.mean(axis=2).swapaxes(0, 1).reshape(*heads, patterns, budgets)
    data.head_exponent = exponents.swapaxes(0, 1).reshape(*heads, patterns, 3)
    return data


def compare_patterns(
    data: SparseLawData, errors: Array, cells: Sequence[xr.Dataset], seed: int
) -> SparseLawData:
    """Fill in curves, fits, comparisons with random selection and verdicts.

    Parameters
    ----------
    data
        The result, with the labels of its axes.
    errors
        Relative errors, mean over the heads, [pattern, metric, replicate, budget].
    cells
        For the numbers that all errors of a cell have in common.
    seed
        Seed of the resamples.
    """
    names = data.dataset["pattern"].values.tolist()
    budgets = data.dataset["budget"].values.astype(float)
    data.norm = np.mean([float(cell["norm"]) for cell in cells])
    data.visible = np.mean([float(cell["visible"]) for cell in cells])
    data.replicate_error = errors
    data.error = [[mean_bounds(e) for e in of_pattern] for of_pattern in errors]
    factor, random = _factor(data), errors[names.index(BASELINE)]
    fits = [
        [fit_rate(e / factor, budgets, seed=seed, resolution=RESOLUTION) for e in of_pattern]
        for of_pattern in errors
    ]
    data.fit.put(fits)
    versus = [
        [
            EQUAL if name == BASELINE else versus_random(e, base, budgets, seed)
            for e, base in zip(of_pattern, random, strict=True)
        ]
        for name, of_pattern in zip(names, errors, strict=True)
    ]
    data.difference = [[estimate(difference) for difference, _ in row] for row in versus]
    data.ratio = [[estimate(ratio) for _, ratio in row] for row in versus]
    at = data.dataset["metric"].values.tolist().index("map")
    data.verdict = [
        IS_BASELINE if name == BASELINE else judge(fit[at], pair[at][0], PATTERNS[name].is_exact)
        for name, fit, pair in zip(names, fits, versus, strict=True)
    ]
    return data


def _factor(data: SparseLawData) -> Array:
    """What errors are divided by before they are fitted, by budget."""
    return np.asarray(np.sqrt(1 - data.dataset["budget"].values / float(data.visible)))


def versus_random(
    errors: Array, random: Array, budgets: Array, seed: int
) -> tuple[Estimate, Estimate]:
    """Difference of two exponents, and ratio of two errors, from errors [replicate, budget].

    Replicates of both are resampled together. Budgets without error on either side are left out.
    """
    used = (errors.mean(axis=0) > 0) & (random.mean(axis=0) > 0)
    both, at = np.hstack([errors[:, used], random[:, used]]), budgets[used]
    resamples = resample(both, np.tile(at, 2), seed)
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


def head_exponents(errors: Array, budgets: Array) -> Array:
    """Exponents of errors [pattern, head, passage, budget], with Student's intervals.

    An exponent is the mean of those of the passages: [pattern, head, bound].
    """
    x = np.log(budgets) - np.log(budgets).mean()
    slopes = -(np.log(np.maximum(errors, SMALLEST)) @ x) / (x @ x)
    return np.array([[mean_bounds(head) for head in pattern] for pattern in slopes])
