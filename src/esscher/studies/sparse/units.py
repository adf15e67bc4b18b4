"""Single heads and layers: exponent, last error and budget of every pattern."""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np
from scipy import special

from esscher.core.validation import Array
from esscher.math.statistics import LEVEL
from esscher.math.statistics.records import Ends, finite
from esscher.studies.sparse.compare import first_below, state_of
from esscher.studies.sparse.records import METRICS, SparseHead, SparseLayer, UnitCurve, UnitPattern

#: Errors below this are rounding: they are taken for it before the logarithm.
SMALLEST = 1e-9


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
    heads = tuple(
        SparseHead(
            layer=layer,
            head=head,
            patterns=_patterns(errors[:, :, u], corrected[:, :, u], names, budgets, target),
        )
        for u, (layer, head) in enumerate(units)
    )
    numbers = np.array([layer for layer, _ in units])
    layers = []
    for layer in sorted(set(numbers.tolist())):
        chosen = numbers == layer
        whole, fitted = (part[:, :, chosen].mean(axis=2) for part in (errors, corrected))
        found = _patterns(whole, fitted, names, budgets, target)
        layers.append(SparseLayer(layer=layer, patterns=found))
    return heads, tuple(layers)


def _patterns(
    errors: Array, corrected: Array, names: Sequence[str], budgets: Array, target: float
) -> dict[str, UnitPattern]:
    found = {}
    for p, name in enumerate(names):
        curves = {}
        for m, metric in enumerate(METRICS):
            exponent, interval = slope_over_passages(corrected[p, m], budgets)
            error = tuple(errors[p, m].mean(axis=0).tolist())
            curves[metric] = UnitCurve(exponent=exponent, interval=interval, error=error)
        curve = np.log(np.maximum(errors[p, METRICS.index("map")].mean(axis=0), SMALLEST))
        place = float(first_below(np.log(budgets), curve[None], math.log(target))[0])
        state = state_of(place)
        budget = finite(math.exp(place)) if state == "inside" else None
        found[name] = UnitPattern(**curves, budget=budget, state=state)
    return found


def slope_over_passages(errors: Array, budgets: Array) -> tuple[float, Ends]:
    """Exponent of errors [passage, budget]: mean of the passages' own, with Student's interval."""
    x = np.log(budgets) - np.log(budgets).mean()
    own = -(np.log(np.maximum(errors, SMALLEST)) @ x) / (x @ x)
    exponent = float(own.mean())
    if len(own) < 2:
        return exponent, (None, None)
    quantile = special.stdtrit(len(own) - 1, (1 + LEVEL) / 2)
    half = float(quantile * own.std(ddof=1) / np.sqrt(len(own)))
    return exponent, (exponent - half, exponent + half)
