"""What one layer of a model gives: errors of samples of its keys, and one-pass numbers."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from torch.nn import functional

from esscher.core.validation import Array
from esscher.engine.attention.outputs import nested_outputs
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


# Attention over samples of keys, and how far its outputs are from the reference.
#
# A layer's output is the sum over heads of ``O_h y_h``, with O_h the columns of W_o that belong to
# a head. So is its error, and all that is needed of it are the inner products ``<O_h e_h, O_g
# e_g>`` of the heads' errors, which the matrix ``O' O`` gives without ever forming the projected
# errors.

#: Dense weights are formed for at most this many queries at a time.
QUERY_BLOCK = 1024
#: Errors whose inner products are kept: that of the mean output, and those of single queries.
PRODUCTS = ("mean", "map")


def attend(q: Tensor, k: Tensor, v: Tensor, scaling: float, softcap: float | None = None) -> Tensor:
    """Softmax attention of [heads, m, d] queries over [key heads, n, d] keys."""
    group = len(q) // len(k)
    if group > 1:
        k, v = k.repeat_interleave(group, 0), v.repeat_interleave(group, 0)
    if softcap is None:
        return functional.scaled_dot_product_attention(q[None], k[None], v[None], scale=scaling)[0]
    outputs = torch.empty(*q.shape[:2], v.shape[-1], dtype=q.dtype)
    for head in range(len(q)):
        for start in range(0, q.shape[1], QUERY_BLOCK):
            logits = q[head, start : start + QUERY_BLOCK] @ k[head].T * scaling
            weights = torch.softmax(torch.tanh(logits / softcap) * softcap, dim=-1)
            outputs[head, start : start + QUERY_BLOCK] = weights @ v[head]
    return outputs


def attend_nested(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    sizes: Sequence[int],
    scaling: float,
    softcap: float | None = None,
) -> list[Tensor]:
    """Attention of the first n queries over the first n keys, [heads, n, d] for every size n."""
    if softcap is None:
        return list(nested_outputs(q, k, v, sizes=sizes, factor=scaling).outputs)
    return [attend(q[:, :n], k[:, :n], v[:, :n], scaling, softcap) for n in sizes]


def soft_capped(logits: Array, softcap: float | None) -> Array:
    """Logits as they enter the softmax of models that bound them."""
    return logits if softcap is None else np.tanh(logits / softcap) * softcap


@dataclass(frozen=True, eq=False)
class OutputReference:
    """Moments of the reference's outputs, heads side by side: mean [H d] and covariance."""

    mean: Array
    covariance: Array
    heads: int

    @classmethod
    def of(cls, outputs: Tensor) -> OutputReference:
        """Of outputs [heads, queries, d]."""
        mean, covariance = _moments(outputs)
        return cls(mean, covariance, len(outputs))

    def moment_errors(self, outputs: Tensor) -> tuple[Array, Array, Array]:
        """Errors of mean and covariance, per head and (last) of the layer, and that of the mean.

        The last one is a vector, heads side by side.
        """
        mean, covariance = _moments(outputs)
        d = len(mean) // self.heads
        error = mean - self.mean
        squares = np.sum(error.reshape(self.heads, d) ** 2, axis=1)
        blocks = (covariance - self.covariance).reshape(self.heads, d, self.heads, d)
        own = np.array([np.linalg.norm(blocks[h, :, h]) for h in range(self.heads)])
        whole = np.linalg.norm(blocks)
        return np.sqrt(np.append(squares, squares.sum())), np.append(own, whole), error


def map_errors(outputs: Tensor, exact: Tensor) -> Array:
    """Root mean square over the queries of the output's error, per head and of the layer."""
    return norms(outputs - exact)


def norms(outputs: Tensor) -> Array:
    """Root mean square norm of outputs, per head and of the layer."""
    total = torch.linalg.vector_norm(outputs, dim=(1, 2), dtype=torch.float64).square()
    squares = (total / outputs.shape[1]).cpu().numpy()
    return np.asarray(np.sqrt(np.append(squares, squares.sum())))


def _moments(outputs: Tensor) -> tuple[Array, Array]:
    """Mean and covariance; rows are centred before they are multiplied, so float32 suffices."""
    heads, queries, d = outputs.shape
    rows = outputs.transpose(0, 1).reshape(queries, heads * d)
    mean = rows.mean(0, dtype=torch.float64)
    rows = rows - mean.to(rows.dtype)
    covariance = (rows.T @ rows).to(torch.float64) / queries
    return mean.cpu().numpy(), covariance.cpu().numpy()


@dataclass(frozen=True, eq=False)
class OutputProjection:
    """``O' O`` of some heads side by side, of shape [H d, H d]."""

    gram: Array
    heads: int

    @classmethod
    def of(cls, weights: Array) -> OutputProjection:
        """Of the columns of W_o by head, [heads, hidden, d]."""
        heads, hidden, d = weights.shape
        columns = weights.transpose(1, 0, 2).reshape(hidden, heads * d)
        return cls(columns.T @ columns, heads)

    def of_mean(self, error: Array) -> Array:
        """``<O_h e_h, O_g e_g>`` of one error vector, heads side by side, as [H, H]."""
        return self._blocks(self.gram * np.outer(error, error))

    def of_queries(self, errors: Tensor) -> Array:
        """Mean over queries of ``<O_h e_h, O_g e_g>``, for errors [heads, queries, d]."""
        heads, queries, d = errors.shape
        rows = errors.transpose(0, 1).reshape(queries, heads * d)
        second = (rows.T @ rows).to(torch.float64) / queries
        return self._blocks(self.gram * second.cpu().numpy())

    def _blocks(self, products: Array) -> Array:
        d = len(products) // self.heads
        return np.asarray(products.reshape(self.heads, d, self.heads, d).sum(axis=(1, 3)))
