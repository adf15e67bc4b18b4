"""Measurements of one layer: errors of samples of its keys, and one-pass numbers."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from esscher.core.streams import random_stream
from esscher.core.validation import Array
from esscher.engine.models.inputs import QUERY_BLOCK
from esscher.math.coupling import CoupledMoments
from esscher.math.theory.cloud_pass import CloudHead
from esscher.math.theory.cloud_table import map_errors


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
    query_rows
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
    """

    tilts: Array
    keys: Array
    values: Array
    outputs: Array
    logits: Callable[[NDArray[np.int64]], Array]
    query_rows: NDArray[np.int64] | None
    participation: Array
    received: Array
    norm: float
    coupled: CoupledMoments

    @property
    def cloud(self) -> CloudHead:
        """The head as predictions take it."""
        averaged = float(len(self.outputs))
        return CloudHead(self.values, self.outputs, self.logits, self.query_rows, averaged)


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
    reference_error
        Standard error of the reference's mean, per unit; 0 when all queries were used.
    cov_error
        Standard error of the reference's covariance, per unit; None in context mode.
    products
        Inner products of the heads' errors behind the output projection, axes [error, replicate,
        size, head, head], of the mean output and of single queries (mean over them); None if the
        projection was not handed in.
    """

    layer: int
    heads: tuple[int, ...]
    sizes: tuple[int, ...]
    errors: Array
    reference_error: Array
    cov_error: Array | None
    products: Array | None = None


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


# Tokens that a tolerance takes.

#: Queries at which the exact error is evaluated, and up to which factor around the first guess.
EXACT, AROUND = 4, 8.0
#: Largest number of tokens that is told from "never".
MOST = 1e8


def tokens_for(numbers: HeadNumbers, tolerance: float, seed: int) -> float:
    """Return the tokens from which a head's output error is at most ``tolerance``; inf beyond 1e8.

    The error over n tokens drawn with replacement is the root mean square over the queries,
    relative to that of the outputs. A query that attends n of N tokens has the mean square error
    ``D/n`` for large n, ``D = N sum_j p_j^2 |v_j - y|^2``, and ``S = (1/N) sum_j |v_j - y|^2`` at
    n = 1. Between them ``1/((n - 1)/D + 1/S)`` is close, and costs one pass for all queries. What
    it misses is measured at a few queries by the exact formula and divided out. Queries differ
    widely: 16 of them, with the exact formula alone, give the number of tokens of a head of MiniLM
    with a standard deviation of 7 to 37%; all of them with 8 exact ones, to 0.3%.

    Parameters
    ----------
    numbers
        One pass of a head.
    tolerance
        Relative error.
    seed
        Seed of the choice of the queries with the exact formula.
    """
    wanted = (tolerance * numbers.norm) ** 2
    if wanted <= 0:
        return np.inf
    count = len(numbers.tilts)
    rows = random_stream(seed, "tokens needed").choice(count, min(EXACT, count), replace=False)
    logits = numbers.logits(rows).astype(np.float64)
    exact = map_errors(logits, numbers.values, numbers.outputs[rows], 2.0, MOST)
    large, small = _square_errors(numbers)

    def between(n: Array) -> Array:
        """``1/((n - 1)/D + 1/S)`` of every query, [query, size]; 0 where D or S is."""
        d, s = large[:, None], small[:, None]
        bottom = (n - 1) * s + d
        return np.divide(d * s, bottom, out=np.zeros_like(bottom), where=bottom > 0)

    def squares(n: Array) -> Array:
        """Mean square errors at sizes n, corrected at the queries with the exact formula."""
        each = between(n)
        right, known = exact(n).mean(axis=0), each[rows].mean(axis=0)
        # all weights on identical values: no error, and nothing to correct
        ratio = np.divide(right, known, out=np.ones_like(right), where=known > 0)
        return np.asarray(each.mean(axis=0) * ratio)

    guess = min(_crossing(lambda n: between(n).mean(axis=0), wanted, 2.0, MOST), MOST)
    low, high = max(2.0, guess / AROUND), min(MOST, max(guess * AROUND, 4.0))
    tokens = _crossing(squares, wanted, low, high)
    if (tokens <= low and low > 2) or (tokens >= high and high < MOST):
        tokens = _crossing(squares, wanted, 2.0, MOST)
    return tokens


def _square_errors(numbers: HeadNumbers) -> tuple[Array, Array]:
    """D and S of every query; see :func:`tokens_for`."""
    values = torch.from_numpy(np.asarray(numbers.values, dtype=np.float32))
    count = len(values)
    squares = values.square().sum(1)
    large, small = [], []
    for start in range(0, len(numbers.tilts), QUERY_BLOCK):
        rows = np.arange(start, min(start + QUERY_BLOCK, len(numbers.tilts)))
        logits = torch.from_numpy(np.asarray(numbers.logits(rows), dtype=np.float32))
        outputs = torch.from_numpy(np.asarray(numbers.outputs[rows], dtype=np.float32))
        weights = torch.softmax(logits, dim=-1).square_()
        norms = outputs.square().sum(1)
        # sum_j p_j^2 |v_j - y|^2, the square multiplied out
        cross = ((weights @ values) * outputs).sum(1)
        large.append(count * (weights @ squares - 2 * cross + norms * weights.sum(1)))
        small.append(squares.mean() - 2 * outputs @ values.mean(0) + norms)
    first, second = (torch.cat(parts).clamp_min(0).double().numpy() for parts in (large, small))
    return first, second


def _crossing(curve: Callable[[Array], Array], wanted: float, low: float, high: float) -> float:
    """Where a falling curve reaches ``wanted``, by interpolation in logarithms on a grid."""
    count = max(8, int(np.ceil(3 * np.log(high / low))))
    n = np.unique(np.geomspace(low, high, count).round())
    values = curve(n)
    below = np.flatnonzero(values <= wanted)
    if not below.size:
        return np.inf if high >= MOST else high
    i = int(below[0])
    if i == 0 or values[i] <= 0:
        return float(n[i])
    x = np.interp(-np.log(wanted), -np.log(values[[i - 1, i]]), np.log(n[[i - 1, i]]))
    return float(np.exp(x))
