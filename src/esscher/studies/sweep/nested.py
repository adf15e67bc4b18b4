"""Nested sizes in numpy: statistics of attention over the first n tokens, all n in one pass.

The engine for machines without PyTorch, and a second opinion for the tests. Key blocks are cut at
the sizes; running (largest logit, sum, weighted sum) are kept per query and scale, and outputs are
folded into the sums of every size as it is passed.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise

import numpy as np

from esscher.core.validation import Array

#: Queries and keys whose logits are held at a time.
ROWS, COLUMNS = 512, 512


@dataclass(frozen=True, eq=False)
class OutputStatistics:
    """Statistics of the outputs, axes [scale, size, ...].

    ``mean`` and ``covariance`` are over the queries (divided by their number); ``map_square`` is
    the mean over the queries of the squared distance between output and limit.
    """

    mean: Array
    covariance: Array
    map_square: Array


def nested_statistics(
    tilts: Array,
    keys: Array,
    values: Array,
    exact: Array,
    *,
    sizes: Sequence[int],
    scales: Sequence[float],
    separate: bool,
    dtype: str = "float64",
) -> OutputStatistics:
    """Statistics of softmax attention over the first n keys, for every scale and size.

    Parameters
    ----------
    tilts, keys, values
        One row per query, or per token.
    exact
        Outputs in the limit, axes [scale, query, d_v].
    sizes
        Strictly increasing numbers of keys.
    scales
        Positive multipliers of the logits, which are computed once for all.
    separate
        Whether all queries count at every size; otherwise query i is token i and counts from size
        i + 1 on.
    dtype
        Arithmetic inside a block, ``"float32"`` or ``"float64"``; sums are float64.
    """
    centre = values.mean(axis=0)
    # Centred keys change no weight and make logits smaller; centred values protect the covariance.
    k = (keys - keys.mean(axis=0)).astype(dtype)
    v = (values - centre).astype(dtype)
    t = tilts.astype(dtype)
    d, shape = values.shape[1], (len(scales), len(sizes))
    first, second, square = np.zeros((*shape, d)), np.zeros((*shape, d, d)), np.zeros(shape)
    factors = np.asarray(scales, dtype=np.float64)
    for start in range(0, len(t), ROWS):
        block = t[start : start + ROWS]
        limit = exact[:, start : start + ROWS] - centre
        peak = np.full(len(block), -np.inf)
        total = np.zeros((len(scales), len(block)))
        weighted = np.zeros((len(scales), len(block), d))
        for j, (low, high) in enumerate(pairwise((0, *sizes))):
            for left in range(low, high, COLUMNS):
                right = min(left + COLUMNS, high)
                logits = block @ k[left:right].T
                top = np.maximum(peak, logits.max(axis=1))
                shrink = np.exp(factors[:, None] * (peak - top))
                logits -= top[:, None].astype(dtype)
                for s, factor in enumerate(scales):
                    weights = np.exp(logits * logits.dtype.type(factor))
                    total[s] = total[s] * shrink[s] + weights.sum(axis=1, dtype=np.float64)
                    weighted[s] = weighted[s] * shrink[s][:, None] + weights @ v[left:right]
                peak = top
            count = len(block) if separate else max(0, min(len(block), high - start))
            output = weighted[:, :count] / total[:, :count, None]
            first[:, j] += output.sum(axis=1)
            second[:, j] += output.transpose(0, 2, 1) @ output
            square[:, j] += np.sum((output - limit[:, :count]) ** 2, axis=(1, 2))
    counts = np.array([len(t) if separate else min(n, len(t)) for n in sizes], dtype=np.float64)
    mean = first / counts[:, None]
    covariance = second / counts[:, None, None] - mean[..., :, None] * mean[..., None, :]
    return OutputStatistics(mean + centre, covariance, square / counts)
