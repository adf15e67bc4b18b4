"""Direct Monte Carlo in one dimension at linear cost.

On the line the output is a smooth function of the tilt, so it is computed on a grid of tilts and
interpolated at the queries: n = 10^5 tokens cost as many exponentials as grid points times n.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike
from scipy.interpolate import CubicSpline

from esscher.core.errors import InputError
from esscher.core.streams import random_stream
from esscher.core.validation import Array, as_dim, as_sizes

#: Nodes of the grid of tilts, and its half-width in standard deviations of the tilt.
NODES, HALF_WIDTH = 201, 8.5
#: Keys taken at a time.
BLOCK = 20_000


@dataclass(frozen=True, eq=False)
class LineErrors:
    """Errors per replicate (first axis) and size (second axis), tokens standard normal, M = h.

    ``population`` is the error of the mean with the query law integrated out; ``mean`` and ``cov``
    are the errors of mean and variance when the tokens attend to each other.
    """

    sizes: Array
    population: Array
    mean: Array
    cov: Array


def line_errors(h: float, sizes: ArrayLike, *, replicates: int, seed: int) -> LineErrors:
    """Errors of mean and covariance over n standard normal tokens with ``M = h``, h not 0."""
    if not np.isfinite(h) or h == 0:
        raise InputError(f"h is {h!r}; it must be finite and not 0")
    n = as_sizes(sizes).astype(int)
    count = as_dim(replicates, "replicates")
    top = HALF_WIDTH * abs(h)
    grid = np.linspace(-top, top, NODES)
    mass = np.exp(-0.5 * (grid / h) ** 2)
    mass /= mass.sum()
    population, mean, cov = (np.empty((count, len(n))) for _ in range(3))
    for r in range(count):
        rng = random_stream(seed, "line", r)
        sample = rng.standard_normal(int(n[-1]))
        for i, size in enumerate(n):
            tokens = sample[:size]
            output = _outputs(grid, tokens)
            own = CubicSpline(grid, output)(np.clip(h * tokens, -top, top))
            population[r, i] = mass @ output
            mean[r, i], cov[r, i] = own.mean(), own.var() - h * h
    return LineErrors(n.astype(np.float64), population, mean, cov)


def _outputs(tilts: Array, tokens: Array) -> Array:
    """Softmax attention of each tilt over scalar tokens."""
    shift = np.where(tilts > 0, tilts * tokens.max(), tilts * tokens.min())
    weighted, total = np.zeros(len(tilts)), np.zeros(len(tilts))
    for start in range(0, len(tokens), BLOCK):
        part = tokens[start : start + BLOCK]
        weight = np.exp(np.outer(tilts, part) - shift[:, None])
        weighted += weight @ part
        total += weight.sum(axis=1)
    return np.asarray(weighted / total)
