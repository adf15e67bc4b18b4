"""Tokens sent through a stack, all of them queries and keys in every layer."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np
import pandas as pd

from esscher.core.streams import random_stream
from esscher.core.validation import Array
from esscher.engine.attention.outputs import attention_outputs
from esscher.math.laws import Gaussian
from esscher.math.limits import GaussianStack, StackLimit
from esscher.runs.cells import Cell
from esscher.studies.deep.records import StackCell
from esscher.studies.deep.stack import depth_maps

#: Errors of a layer: of each token against the affine limit of its own input, and of the moments.
METRICS = ("map", "mean", "cov")
#: Coordinates whose means and covariances are kept, to compare with the recursion.
COORDINATES = 16
#: Type of the arithmetic of attention, and the relative error it leaves in a token.
DTYPE, RESOLUTION = "float32", 1e-6


def push_tokens(stack: GaussianStack, tokens: Array, dtype: str = DTYPE) -> Iterator[Array]:
    """Yield the tokens after every layer; no matrix of all pairs is ever formed."""
    x = tokens
    for layer in stack.layers:
        moved = layer.residual * x + layer.bias
        for head, output in zip(layer.heads, layer.output, strict=True):
            tilts, keys, values = head.tokens(x)
            found = attention_outputs(tilts, keys, values, dtype=dtype)[0]
            moved += found.astype(np.float64) @ output.T
        x = moved
        yield x


@dataclass(frozen=True, eq=False)
class StackErrors:
    """Errors of one sample after one layer, and its moments."""

    map: float
    mean: float
    cov: float
    moments: Array


def layer_errors(
    stack: GaussianStack, limit: StackLimit, tokens: Array, dtype: str = DTYPE
) -> Iterator[StackErrors]:
    """Yield the errors after every layer, relative to the size of that layer's tokens.

    ``map``: root mean square of ``x_i - T(own input of i)`` with T the affine limit of the layers
    so far. ``mean``: norm of the error of the mean. Both are divided by the root mean square norm
    of a token in the limit. ``cov``: Frobenius norm of the error of the covariance, divided by
    that of the covariance.
    """
    maps = depth_maps(limit)
    for i, x in enumerate(push_tokens(stack, tokens, dtype)):
        mean, covariance = limit.means[i + 1], limit.covariances[i + 1]
        size = np.sqrt(mean @ mean + np.trace(covariance))
        off = x - maps[i](tokens)
        sample_mean = x.mean(axis=0)
        centred = x - sample_mean
        # divided by n - 1: unbiased for independent tokens, so that only attention biases it
        sample_cov = centred.T @ centred / (len(x) - 1)
        yield StackErrors(
            map=float(np.sqrt(np.mean(np.sum(off**2, axis=1))) / size),
            mean=float(np.linalg.norm(sample_mean - mean) / size),
            cov=float(np.linalg.norm(sample_cov - covariance) / np.linalg.norm(covariance)),
            moments=moment_entries(sample_mean, sample_cov),
        )


def moment_entries(mean: Array, covariance: Array) -> Array:
    """Means and covariances of the first coordinates, as one vector."""
    kept = min(COORDINATES, len(mean))
    upper = np.triu_indices(kept)
    return np.concatenate([mean[:kept], covariance[upper]])


def measure_replicate(
    stack: GaussianStack, limit: StackLimit, sizes: Sequence[int], replicate: int, seed: int
) -> Cell:
    """One replicate: the first n of the same tokens, for every size n."""
    rng = random_stream(seed, "deep tokens", replicate)
    tokens = Gaussian(dim=limit.means.shape[1]).sample(sizes[-1], rng)
    rows: list[tuple[int, int, str, int, float]] = []
    for n in sizes:
        for i, found in enumerate(layer_errors(stack, limit, tokens[:n])):
            rows += [(n, i, metric, 0, getattr(found, metric)) for metric in METRICS]
            if n in sizes[-2:]:  # the limit is extrapolated from two sizes
                rows += [(n, i, "moment", j, float(v)) for j, v in enumerate(found.moments)]
    columns = ["n", "layer", "quantity", "entry", "value"]
    return Cell(StackCell(replicate=replicate), pd.DataFrame(rows, columns=columns))
