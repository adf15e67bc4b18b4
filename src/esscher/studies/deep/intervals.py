"""Intervals of growth factors and rates, from replicates that are independent."""

from __future__ import annotations

from typing import Any

import numpy as np

from esscher.core.validation import Array
from esscher.math.statistics import LEVEL, fit_rate, resample
from esscher.math.statistics.plain import finite


def growth_factors(errors: Array, seed: int) -> dict[str, Any]:
    """Growth of the mean error from layer to layer, with intervals from resampled replicates.

    Parameters
    ----------
    errors
        Axes [replicate, layer], positive.
    seed
        Seed of the resampling.

    Returns
    -------
    dict
        ``steps``: one {factor, interval} per layer, None for the first; ``overall``: the same for
        the geometric mean of all steps, None for a single layer.
    """
    layers = errors.shape[1]
    if layers < 2:
        return {"steps": [None], "overall": None}
    # the logarithms of the mean errors take the place that sizes have in a rate
    resamples = resample(errors, np.arange(1.0, layers + 1), "mean", seed)
    steps = np.diff(np.eye(layers), axis=0)
    overall = (np.eye(layers)[-1] - np.eye(layers)[0]) / (layers - 1)
    value, low, high = resamples.intervals(np.vstack([steps, overall]), LEVEL)
    with np.errstate(over="ignore"):  # an end beyond all numbers is no end: None
        value, low, high = np.exp(value), np.exp(low), np.exp(high)
    found = [
        {"factor": float(value[i]), "interval": [finite(low[i]), finite(high[i])]}
        for i in range(layers)
    ]
    return {"steps": [None, *found[:-1]], "overall": found[-1]}


def fitted(errors: Array, sizes: list[int], seed: int, **options: Any) -> dict[str, Any] | None:
    """The rate of errors with axes [replicate, size]; None where there is none to be seen."""
    if len(sizes) < 2 or np.sum(np.mean(errors > 0, axis=0) > 0.5) < 2:
        return None
    sharp = options.pop("sharp", None)
    rate = fit_rate(errors, np.asarray(sizes, dtype=np.float64), seed=seed, **options)
    return rate.with_predictions(sharp=sharp).to_dict()
