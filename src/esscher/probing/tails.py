"""Are the tokens sub-Gaussian? A first test, on projections of the keys."""

from __future__ import annotations

from typing import Any

import numpy as np
from scipy import stats

from esscher.streams import random_stream
from esscher.validation import Array

#: Random directions that are tried beside the principal ones.
DIRECTIONS = 64
#: A projection with this excess kurtosis or more is not taken for sub-Gaussian with its variance.
HEAVY = 2.0


def projection_tails(keys: Array, seed: int) -> dict[str, Any]:
    """Largest excess kurtosis over whitened directions, and the probability of such a one.

    Principal axes and random directions are tried. For N Gaussian tokens the excess kurtosis of one
    projection has standard deviation ``sqrt(24/N)``; the p-value is corrected for their number.
    """
    centred = keys - keys.mean(axis=0)
    values, axes = np.linalg.eigh(centred.T @ centred / len(keys))
    kept = values > 1e-10 * values[-1]
    whitened = centred @ (axes[:, kept] / np.sqrt(values[kept]))
    d = whitened.shape[1]
    random = random_stream(seed, "tail directions").standard_normal((d, DIRECTIONS))
    directions = np.hstack([np.eye(d), random / np.linalg.norm(random, axis=0)])
    projected = whitened @ directions
    kurtosis = np.mean(projected**4, axis=0) / np.mean(projected**2, axis=0) ** 2 - 3.0
    worst = int(np.argmax(kurtosis))
    z = float(kurtosis[worst] / np.sqrt(24 / len(keys)))
    # largest |projection| in units of what n Gaussian tokens reach
    reach = float(np.abs(projected[:, worst]).max() / np.sqrt(2 * np.log(2 * len(keys))))
    return {
        "excess_kurtosis": float(kurtosis[worst]),
        "p_value": float(min(1.0, directions.shape[1] * stats.norm.sf(z))),
        "largest_over_gaussian": reach,
        "direction": "principal" if worst < d else "random",
        "heavy": bool(kurtosis[worst] > HEAVY),
    }
