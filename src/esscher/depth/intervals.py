"""Intervals of means and growth factors, from replicates that are independent."""

from __future__ import annotations

from typing import Any

import numpy as np
from scipy import stats

from esscher.rates import fit_rate, resample
from esscher.rates.plain import finite, finite_list
from esscher.validation import Array

#: Level of all intervals.
LEVEL = 0.95


def mean_and_interval(
    values: Array, lowest: float = -np.inf, highest: float = np.inf
) -> dict[str, Any]:
    """Mean, standard error and Student's interval of every size.

    Parameters
    ----------
    values
        Axes [replicate, size]; replicates are independent.
    lowest, highest
        Range of the quantity: intervals end there.
    """
    count = len(values)
    mean = values.mean(axis=0)
    if count < 2:
        nothing = [None] * len(mean)
        return {"mean": finite_list(mean), "standard_error": nothing, "interval": nothing}
    error = values.std(axis=0, ddof=1) / np.sqrt(count)
    half = stats.t.ppf((1 + LEVEL) / 2, count - 1) * error
    return {
        "mean": finite_list(mean),
        "standard_error": finite_list(error),
        "interval": np.stack([mean - half, mean + half], axis=1).clip(lowest, highest).tolist(),
    }


def exponentials(values: Array) -> dict[str, Any]:
    """Exponential of the mean, with its interval: perplexities and ratios.

    Parameters
    ----------
    values
        Logarithms, axes [replicate, size].
    """
    found = mean_and_interval(values)
    ends = found["interval"]
    return {
        "mean": np.exp(np.array(found["mean"])).tolist(),
        "interval": [None if end is None else np.exp(np.array(end)).tolist() for end in ends],
    }


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
    found = [
        {
            "factor": float(np.exp(value[i])),
            "interval": [finite(np.exp(low[i])), finite(np.exp(high[i]))],
        }
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
