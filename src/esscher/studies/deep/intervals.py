"""Means, growth factors and rates with intervals, from replicates that are independent."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from esscher.core.codec import Interval
from esscher.core.validation import Array
from esscher.math.statistics import LEVEL, fit_rate, resample
from esscher.math.statistics.intervals import exponentials, mean_and_interval
from esscher.math.statistics.records import FittedRate, finite
from esscher.studies.deep.records import Curve, Growth, Means


def independent_errors(values: Array, draws: int) -> Array:
    """Errors of what is independent: passages, their draws averaged, or draws of a single passage.

    Draws of one passage share its text. Taken for replicates, they make intervals too narrow: where
    two thirds of the variance are the passage's, with 4 draws of 8 passages, 24% of the 95%
    intervals of a growth factor miss it, and 4% of those over passages
    (``tests/studies/deep/test_passages.py``).

    Parameters
    ----------
    values
        Axes [passage and draw, ...], draws of a passage side by side.
    draws
        Draws per passage.
    """
    passages = values.reshape(-1, draws, *values.shape[1:])
    return np.asarray(passages.mean(axis=1) if len(passages) > 1 else passages[0])


def means(values: Array, lowest: float = -np.inf, highest: float = np.inf) -> Means:
    """Mean, standard error and interval of every size: see :func:`mean_and_interval`."""
    found = mean_and_interval(values, lowest, highest)
    return Means(
        mean=tuple(found["mean"]),
        standard_error=tuple(found["standard_error"]),
        interval=_ends(found["interval"]),
    )


def ratios(logarithms: Array) -> Curve:
    """Exponential of the mean of every size, with its interval: see :func:`exponentials`."""
    found = exponentials(logarithms)
    return Curve(mean=tuple(found["mean"]), interval=_ends(found["interval"]))


def _ends(intervals: Sequence[Any]) -> tuple[Interval | None, ...]:
    return tuple(None if ends is None else (ends[0], ends[1]) for ends in intervals)


@dataclass(frozen=True)
class GrowthFactors:
    """Growth of an error: one factor per layer, None for the first, and their geometric mean."""

    steps: tuple[Growth | None, ...]
    overall: Growth | None


def growth_factors(errors: Array, seed: int) -> GrowthFactors:
    """Growth of the mean error from layer to layer, with intervals from resampled replicates.

    Parameters
    ----------
    errors
        Axes [replicate, layer], positive.
    seed
        Seed of the resampling.
    """
    layers = errors.shape[1]
    if layers < 2:
        return GrowthFactors((None,), None)
    # the logarithms of the mean errors take the place that sizes have in a rate
    resamples = resample(errors, np.arange(1.0, layers + 1), "mean", seed)
    steps = np.diff(np.eye(layers), axis=0)
    overall = (np.eye(layers)[-1] - np.eye(layers)[0]) / (layers - 1)
    value, low, high = resamples.intervals(np.vstack([steps, overall]), LEVEL)
    with np.errstate(over="ignore"):  # an end beyond all numbers is no end: None
        value, low, high = np.exp(value), np.exp(low), np.exp(high)
    found = [
        Growth(factor=float(value[i]), interval=(finite(low[i]), finite(high[i])))
        for i in range(layers)
    ]
    return GrowthFactors((None, *found[:-1]), found[-1])


def fitted(errors: Array, sizes: Sequence[int], seed: int, **options: Any) -> FittedRate | None:
    """The rate of errors with axes [replicate, size]; None where there is none to be seen."""
    if len(sizes) < 2 or np.sum(np.mean(errors > 0, axis=0) > 0.5) < 2:
        return None
    sharp = options.pop("sharp", None)
    rate = fit_rate(errors, np.asarray(sizes, dtype=np.float64), seed=seed, **options)
    return rate.with_predictions(sharp=sharp).record()
