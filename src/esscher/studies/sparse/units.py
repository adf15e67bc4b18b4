"""Single heads and layers: exponent, last error and budget of every pattern.

Heads of a layer share passages and random choices, so that their errors go together. What is
independent are the passages: every interval is over passages, the means of a layer are taken inside
a passage first, and what is said of many heads at once (better or worse than random selection) is
corrected by Holm's procedure, which holds however heads depend on each other.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np
import scipy

from esscher.core.validation import Array
from esscher.engine.patterns import BASELINE
from esscher.math.statistics import LEVEL
from esscher.math.statistics.intervals import family_wise
from esscher.math.statistics.records import Ends, finite
from esscher.studies.sparse.compare import first_below, state_of
from esscher.studies.sparse.records import (
    METRICS,
    AgainstRandom,
    SparseHead,
    SparseLayer,
    UnitCurve,
    UnitPattern,
)

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
