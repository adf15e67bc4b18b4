"""Means and ratios over independent replicates, with Student's interval."""

from __future__ import annotations

from typing import Any

import numpy as np
import scipy

from esscher.core.validation import Array
from esscher.math.statistics.records import finite_list

#: Level of every interval, unless a caller asks for another one.
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
    half = scipy.special.stdtrit(count - 1, (1 + LEVEL) / 2) * error
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


def wilson(right: float, count: int) -> tuple[float, float]:
    """Wilson's interval of a share; wide enough for items that are partly right, too."""
    z2 = float(scipy.special.ndtri((1 + LEVEL) / 2)) ** 2
    share = right / count
    middle = (share + z2 / (2 * count)) / (1 + z2 / count)
    half = np.sqrt(z2 * (share * (1 - share) + z2 / (4 * count)) / count) / (1 + z2 / count)
    return (max(0.0, float(middle - half)), min(1.0, float(middle + half)))
