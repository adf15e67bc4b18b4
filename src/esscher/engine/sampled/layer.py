"""What one layer of a model gives: errors of samples of its keys, and one-pass numbers."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from esscher.core.validation import Array
from esscher.engine.sampled.sizes import ReferenceUsed
from esscher.math.coupling import CoupledMoments
from esscher.math.theory.cloud_pass import CloudHead


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
        averaged = float(len(self.outputs))
        return CloudHead(self.values, self.outputs, self.logits, self.own, averaged)


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


# How far outputs over samples of keys are from the reference.
#
# A layer's output is the sum over heads of ``O_h y_h``, with O_h the columns of W_o that belong to
# a head. So is its error, and all that is needed of it are the inner products ``<O_h e_h, O_g
# e_g>`` of the heads' errors, which the matrix ``O' O`` gives without ever forming the projected
# errors.

#: Errors whose inner products are kept: that of the mean output, and those of single queries.
PRODUCTS = ("mean", "map")


def output_moments(outputs: Tensor) -> tuple[Array, Array]:
    """Mean [H d] and covariance of outputs [heads, queries, d], heads side by side.

    Rows are centred before they are multiplied, so float32 suffices.
    """
    heads, queries, d = outputs.shape
    rows = outputs.transpose(0, 1).reshape(queries, heads * d)
    mean = rows.mean(0, dtype=torch.float64)
    rows = rows - mean.to(rows.dtype)
    covariance = (rows.T @ rows).to(torch.float64) / queries
    return mean.cpu().numpy(), covariance.cpu().numpy()


def moment_errors(outputs: Tensor, mean: Array, covariance: Array) -> tuple[Array, Array, Array]:
    """Errors of the moments of outputs [heads, queries, d] against those of the reference.

    Returns
    -------
    Errors of mean and of covariance (Euclidean, Frobenius), per head and (last) of the layer; and
    the error of the mean as a vector, heads side by side.
    """
    heads, _, d = outputs.shape
    sample_mean, sample_covariance = output_moments(outputs)
    error = sample_mean - mean
    squares = np.sum(error.reshape(heads, d) ** 2, axis=1)
    blocks = (sample_covariance - covariance).reshape(heads, d, heads, d)
    per_head = np.array([np.linalg.norm(blocks[h, :, h]) for h in range(heads)])
    of_mean = np.sqrt(np.append(squares, squares.sum()))
    return of_mean, np.append(per_head, np.linalg.norm(blocks)), error


def norms(outputs: Tensor) -> Array:
    """Root mean square norm of outputs [heads, queries, d], per head and of the layer."""
    total = torch.linalg.vector_norm(outputs, dim=(1, 2), dtype=torch.float64).square()
    squares = (total / outputs.shape[1]).cpu().numpy()
    return np.asarray(np.sqrt(np.append(squares, squares.sum())))


def output_gram(weights: Array) -> Array:
    """``O' O`` of the columns of W_o by head, [heads, hidden, d], as [heads, d, heads, d]."""
    heads, hidden, d = weights.shape
    columns = weights.transpose(1, 0, 2).reshape(hidden, heads * d)
    return np.asarray((columns.T @ columns).reshape(heads, d, heads, d))


def projected_products(gram: Array, mean_error: Array, errors: Tensor) -> Array:
    """Inner products ``<O_h e_h, O_g e_g>`` of the heads' errors behind the output projection.

    Parameters
    ----------
    gram
        Of :func:`output_gram`.
    mean_error
        Error of the mean output, heads side by side.
    errors
        Errors of single queries, [heads, queries, d].

    Returns
    -------
    [error, head, head], errors as in ``PRODUCTS``: of single queries the mean over them.
    """
    heads, queries, d = errors.shape
    rows = errors.transpose(0, 1).reshape(queries, heads * d)
    second = (rows.T @ rows).to(torch.float64) / queries
    moments = (np.outer(mean_error, mean_error), second.cpu().numpy())
    return np.stack([(gram * m.reshape(gram.shape)).sum(axis=(1, 3)) for m in moments])
