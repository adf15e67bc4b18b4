"""Many tests at once: adjusted p-values, and intervals for what was picked out among many.

The false discovery rate (Benjamini and Hochberg 1995) is ``scipy.stats.false_discovery_control``.
Here is what goes with it: Holm's procedure, which bounds the probability of even one false
statement, and the level of intervals that are shown only because a test rejected.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
from numpy.typing import ArrayLike

from esscher.core.errors import InputError
from esscher.core.validation import Array, as_array


def discoveries(p_values: ArrayLike) -> Array:
    """Benjamini and Hochberg's adjusted p-values; ``nan`` stands for a test that was not made.

    Among the tests with an adjusted p-value of at most alpha, a share of alpha is false on average
    (for independent tests and for those that depend on each other positively).
    """
    from scipy import stats  # here: it takes half a second

    return _adjusted(p_values, lambda p: np.asarray(stats.false_discovery_control(p)))


def family_wise(p_values: ArrayLike) -> Array:
    """Holm's adjusted p-values; ``nan`` stands for a test that was not made.

    With probability 1 - alpha not one of the tests with an adjusted p-value of at most alpha is
    false, however the tests depend on each other: ``max_{j <= i} (m - j + 1) p_(j)``.
    """
    return _adjusted(p_values, _holm)


def selected_level(selected: int, comparisons: int, alpha: float) -> float:
    """Level at which to draw the intervals of the discoveries (Benjamini and Yekutieli 2005).

    Of the intervals of R comparisons that were selected among m at the false discovery rate alpha,
    drawn at level ``1 - alpha R/m``, a share of at most alpha misses on average. With none
    selected this is Bonferroni's level.
    """
    if comparisons < 1 or not 0 <= selected <= comparisons:
        raise InputError(f"{selected} of {comparisons} comparisons cannot have been selected")
    return 1 - alpha * max(selected, 1) / comparisons


def _holm(p: Array) -> Array:
    order = np.argsort(p, kind="stable")
    steps = (len(p) - np.arange(len(p))) * p[order]
    adjusted = np.empty_like(p)
    adjusted[order] = np.minimum(np.maximum.accumulate(steps), 1.0)
    return adjusted


def _adjusted(p_values: ArrayLike, adjust: Callable[[Array], Array]) -> Array:
    values = np.asarray(p_values, dtype=np.float64)
    made = ~np.isnan(values)
    p = as_array(values[made], "p_values")
    if p.size and (p.min() < 0 or p.max() > 1):
        raise InputError("p_values must lie between 0 and 1")
    out = np.full(values.shape, np.nan)
    if p.size:
        out[made] = adjust(p)
    return out
