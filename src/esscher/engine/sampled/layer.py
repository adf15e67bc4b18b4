"""What one layer of a model gives: errors of samples of its keys, and one-pass numbers."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from esscher.core.codec import Count, Record
from esscher.core.validation import Array
from esscher.math.coupling import CoupledMoments
from esscher.math.theory.cloud_pass import CloudHead

#: Errors that are measured, as in a sweep.
METRICS = ("mean", "cov", "map")


@dataclass(frozen=True, eq=False)
class HeadNumbers:
    """One-pass numbers of one head.

    Attributes
    ----------
    tilts, keys, values
        Rows from which predictions are computed; tilts carry the logits' factor.
    outputs
        Attention over ``keys`` at the rows of ``tilts``.
    logits
        Logits of some rows of ``tilts`` over ``keys``, as they enter the softmax.
    own
        Row of ``keys`` that is the token of each row of ``tilts``; None where queries are not among
        the tokens that are drawn.
    participation
        ``1 / sum_j p_j^2`` of each query of the reference.
    received
        Mean attention that each key receives (sums to 1).
    norm
        Root mean square of the reference's outputs.
    coupled
        Moments of the head.
    passages
        Passage of each row of ``keys``; None where they are one sequence.
    """

    tilts: Array
    keys: Array
    values: Array
    outputs: Array
    logits: Callable[[NDArray[np.int64]], Array]
    own: NDArray[np.int64] | None
    participation: Array
    received: Array
    norm: float
    coupled: CoupledMoments
    passages: NDArray[np.int64] | None = None

    @property
    def cloud(self) -> CloudHead:
        """The head as predictions take it."""
        asked = float(len(self.outputs))
        return CloudHead(self.values, self.outputs, self.logits, self.own, asked)


class ReferenceUsed(Record, frozen=True, kw_only=True):
    """What the errors of a layer are measured against, in pooled mode.

    Attributes
    ----------
    queries
        Tokens that attend all keys.
    coarse_keys
        Keys of the coarse level; None if all tokens attend all keys.
    cov_error
        Standard error of its covariance, per head and (last) of the layer.
    """

    queries: Count
    coarse_keys: Count | None
    cov_error: tuple[float, ...]


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
        How the reference was computed, in pooled mode.
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
    products: Array | None = None
    reference: ReferenceUsed | None = None
