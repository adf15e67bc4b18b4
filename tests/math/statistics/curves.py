"""Error curves whose expected value is known exactly."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
from scipy import stats

from esscher.core.streams import random_stream
from esscher.core.validation import Array

SIZES = np.array([32.0, 64, 128, 256, 512, 1024, 2048])

#: How a standard normal variable becomes a positive one of mean 1.
NOISE: dict[str, Callable[[Array], Array]] = {
    "half-normal": lambda z: np.abs(z) * np.sqrt(np.pi / 2),
    "small": lambda z: np.exp(0.1 * z - 0.005),
    "lognormal": lambda z: np.exp(0.8 * z - 0.32),
    "pareto": lambda z: stats.norm.sf(z) ** (-1 / 1.4) * 0.4 / 1.4,
}


def noisy(expected: Array, sizes: Array, replicates: int, seed: int, noise: str) -> Array:
    """Replicates of mean ``expected``, correlated along n as nested sizes are."""
    x = np.log(sizes)
    root = np.linalg.cholesky(np.exp(-0.5 * np.abs(x[:, None] - x)))
    rng = random_stream(seed, "test curves", replicates)
    return NOISE[noise](rng.standard_normal((replicates, len(x))) @ root.T) * expected


def power_curve(
    beta: float, replicates: int, seed: int, noise: str = "half-normal", sizes: Array = SIZES
) -> Array:
    """Replicates of mean ``n^-beta``."""
    return noisy(sizes**-beta, sizes, replicates, seed, noise)
