"""What one layer of a model gives: errors of samples of its keys, and one-pass numbers."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

from esscher.core.validation import Array

#: Errors that are measured, as in a sweep.
METRICS = ("mean", "cov", "map")


@dataclass(frozen=True, eq=False)
class HeadNumbers:
    """One-pass numbers of one head.

    Attributes
    ----------
    tilts, keys, values
        Rows from which moments and predictions are computed; tilts carry the logits' factor.
    outputs
        Attention over ``keys`` at the rows of ``tilts``.
    participation
        ``1 / sum_j p_j^2`` of each query of the reference.
    received
        Mean attention that each key receives (sums to 1).
    norm
        Root mean square of the reference's outputs.
    passages
        Passage of each row of ``keys``; None where they are one sequence.
    """

    tilts: Array
    keys: Array
    values: Array
    outputs: Array
    participation: Array
    received: Array
    norm: float
    passages: NDArray[np.int64] | None = None


@dataclass(frozen=True, eq=False)
class LayerMeasurement:
    """Errors of one layer.

    Attributes
    ----------
    layer
        Its number.
    heads
        Numbers of its heads.
    sizes
        Numbers of keys n.
    errors
        Axes [metric, unit, replicate, size]; units are the heads and, last, the whole layer (heads
        side by side).
    relative
        What makes an error relative: root mean square norm of the reference's outputs, per unit.
    reference_error
        Standard error of the reference's mean, per unit; 0 when all queries were used.
    reference
        How the reference was computed (pooled mode): ``queries`` that attend all keys,
        ``coarse_keys`` (None when all tokens are queries), ``cov_error`` per unit.
    stats
        One dictionary per head: plain numbers, lists and strings.
    products
        Inner products of the heads' errors behind the output projection, axes [error, replicate,
        size, head, head], of the mean output and of single queries (mean over them); None if the
        projection was not handed in.
    """

    layer: int
    heads: tuple[int, ...]
    sizes: tuple[int, ...]
    errors: Array
    relative: Array
    reference_error: Array
    stats: list[dict[str, Any]] = field(default_factory=list)
    products: Array | None = None
    reference: dict[str, Any] | None = None
