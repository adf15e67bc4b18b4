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
from typing import TypeVar

import numpy as np
import xarray as xr

from esscher.core.validation import Array
from esscher.core.variables import joined
from esscher.engine.patterns import BASELINE, PATTERNS
from esscher.math.statistics import LEVEL, Rate, fit_rate, resample
from esscher.math.statistics.intervals import mean_bounds, slopes
from esscher.studies.sparse.study import SparseData, SparseLawData

D = TypeVar("D", bound=SparseLawData)
#: Verdicts; that on random selection, and those on the other patterns.
IS_BASELINE = "baseline"
KEEPS = "keeps the exponent"
FASTER = "converges faster"
SLOWER = "converges more slowly"
NEVER = "does not converge to dense"
UNDECIDED = "undecided"
#: Exponents that differ by no more than this are called the same: half of the width of what is
#: called 1/2 (``math/statistics/intervals.py``).
MARGIN = 0.05
#: Random selection compared with itself.
EQUAL = np.array([[0.0, np.nan, np.nan], [1.0, np.nan, np.nan]])
#: An error that falls no faster than the budget to this power does not fall on any usable range.
FLAT = 0.1
#: Relative rounding of outputs in float32; errors near it are not resolved.
RESOLUTION = 1e-6
#: Largest logarithm of a number that is stored.
LARGEST = 700
#: Errors below this are rounding: they are taken for it before the logarithm.
SMALLEST = 1e-9


def combine(kind: type[D], cells: Sequence[xr.Dataset], seed: int) -> D:
    """Fit every pattern, compare it with random selection, and fit every head of a model."""
    together = joined(cells, "replicate")
    data = kind(together.drop_vars(list(together.data_vars)))
    names, metrics = (data.dataset[axis].values.tolist() for axis in ("pattern", "metric"))
    budgets, at = data.dataset["budget"].values, metrics.index("map")
    # numbers that all errors of a cell have in common
    data.norm = np.mean([float(cell["norm"]) for cell in cells])
    data.visible = np.mean([float(cell["visible"]) for cell in cells])
    factor = np.asarray(np.sqrt(1 - budgets / float(data.visible)))
    errors = together["error"].values
    if isinstance(data, SparseData):
        *_, layers, heads, replicates, _ = errors.shape
        of_heads = errors.reshape(len(names), len(metrics), -1, replicates, len(budgets))
        errors, maps = of_heads.mean(axis=2), of_heads[:, at]
        shape = layers, heads, len(names), -1
        exponents = head_exponents(maps / factor, budgets)
        data.head_error = maps.mean(axis=2).swapaxes(0, 1).reshape(shape)
        data.head_exponent = exponents.swapaxes(0, 1).reshape(shape)
    data.replicate_error = errors
    data.error = [[mean_bounds(e) for e in of_pattern] for of_pattern in errors]
    random, sizes = errors[names.index(BASELINE)], budgets.astype(float)
    fits = [
        [fit_rate(e / factor, sizes, seed=seed, resolution=RESOLUTION) for e in of_pattern]
        for of_pattern in errors
    ]
    data.fit.put(fits)
    versus = np.array(
        [
            [
                EQUAL if name == BASELINE else versus_random(e, base, sizes, seed)
                for e, base in zip(of_pattern, random, strict=True)
            ]
            for name, of_pattern in zip(names, errors, strict=True)
        ]
    )
    data.difference, data.ratio = versus[:, :, 0], versus[:, :, 1]
    data.verdict = [
        IS_BASELINE if name == BASELINE else judge(fit[at], pair[at, 0], PATTERNS[name].is_exact)
        for name, fit, pair in zip(names, fits, versus, strict=True)
    ]
    return data


def versus_random(errors: Array, random: Array, budgets: Array, seed: int) -> Array:
    """Difference of two exponents, and ratio of two errors [replicate, budget]: [2, bound].

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
    bounds = np.array([differences, ratios])
    return np.where(np.isfinite(bounds), bounds, np.nan)


def judge(fit: Rate, difference: Array, is_exact: bool) -> str:
    """Return the verdict on a pattern; the rule is above.

    Parameters
    ----------
    fit
        Rate of its map error.
    difference
        Its exponent minus that of random selection, [bound].
    is_exact
        Whether the pattern is dense attention once its budget holds all keys.
    """
    _, below, above = difference
    if fit.interval[1] is None or np.isnan(below) or np.isnan(above):
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
    exponents = -slopes(np.log(budgets), np.log(np.maximum(errors, SMALLEST)))
    return np.array([[mean_bounds(head) for head in pattern] for pattern in exponents])
