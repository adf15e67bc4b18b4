"""What samples are compared with in pooled mode: attention among all N tokens of the cloud.

Up to 16,384 tokens that is what is computed. Beyond, the cost N^2 is too much, and M
random queries alone would not do: their mean is off by ``sd / sqrt(M)``, hardly less than what is
to be measured. So the reference has two levels, each of linear cost:

* every one of the N queries attends the same m random keys (``coarse``), output c(x);
* M random queries attend all N keys, output y(x), and the m keys as well.

    mean = mean_N[b c] + mean_M[y - b c]

is unbiased for any b, and its standard error is the spread of ``y - b c``, a few percent of that of
y, over ``sqrt(M)``. One b per head, by least squares. The covariance likewise.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from esscher.core.validation import Array
from esscher.engine.attention.nested import nested_outputs
from esscher.engine.attention.outputs import Chunk, StreamedAttention, streamed_attention
from esscher.engine.sampled.layer import ReferenceUsed
from esscher.engine.sampled.outputs import OutputReference, attend
from esscher.engine.text import LayerCloud, read_rows


@dataclass(frozen=True)
class Levels:
    """How much is computed of attention among all tokens.

    Attributes
    ----------
    whole
        Up to this many tokens all of them are queries; beyond, there are two levels.
    queries
        Queries that attend all keys, then.
    keys
        Keys that all queries attend, then.
    chunk
        Tokens that are read from the disk at a time.
    """

    whole: int = 16_384
    queries: int = 4_096
    keys: int = 4_096
    chunk: int = 32_768


#: Fine enough for the errors of a probe, at a cost that grows with the tokens, not their square.
LEVELS = Levels()


@dataclass(frozen=True, eq=False)
class PooledReference:
    """Attention among all tokens of a layer, or its estimate by two levels.

    Attributes
    ----------
    asking
        Tokens whose output is known, in the order of the text.
    outputs
        Their outputs over all keys, [heads, queries, d].
    moments
        Mean and covariance of the outputs of all tokens.
    mean_error, covariance_error
        Standard errors of the two (Euclidean, Frobenius), per head and (last) of the layer; 0 if
        all tokens are asking.
    received
        Mean attention that each token receives from those that are asking, per head.
    participation
        ``1 / sum_j p_j^2`` of each asking token, per head.
    coarse
        Number of keys of the coarse level; None if all tokens are asking.
    """

    asking: NDArray[np.int64]
    outputs: Tensor
    moments: OutputReference
    mean_error: Array
    covariance_error: Array
    received: list[Array]
    participation: list[Array]
    coarse: int | None

    def record(self) -> ReferenceUsed:
        """How it was computed, and what is stored of its errors beside that of the mean."""
        return ReferenceUsed(
            queries=len(self.asking),
            coarse_keys=self.coarse,
            cov_error=tuple(self.covariance_error.tolist()),
        )


def pooled_reference(
    view: LayerCloud, rng: np.random.Generator, levels: Levels = LEVELS
) -> PooledReference:
    """Attention among all tokens of a layer.

    Parameters
    ----------
    view
        The tokens.
    rng
        Chooses queries and coarse keys.
    levels
        From how many tokens on it is estimated, and how well.
    """
    tokens = view.q.shape[1]
    two_levels = tokens > levels.whole
    asking = np.arange(tokens)
    if two_levels:
        asking = np.sort(rng.choice(tokens, size=min(levels.queries, tokens), replace=False))
    if two_levels or view.softcap is not None:
        passes = [_one_pass(view, head, asking, levels.chunk) for head in view.heads]
        outputs = torch.stack([found.outputs for found in passes])
        received = [found.received / len(asking) for found in passes if found.received is not None]
        participation = [found.participation for found in passes]
    else:
        outputs, received, participation = _all_tokens(view)
    if not two_levels:
        none = np.zeros(len(view.heads) + 1)
        return PooledReference(
            asking, outputs, OutputReference.of(outputs), none, none, received, participation, None
        )
    coarse = np.sort(rng.choice(tokens, size=min(levels.keys, tokens), replace=False))
    moments, mean_error, covariance_error = _two_levels(view, asking, outputs, coarse, levels.chunk)
    return PooledReference(
        asking, outputs, moments, mean_error, covariance_error, received, participation,
        len(coarse),
    )  # fmt: skip


def _all_tokens(view: LayerCloud) -> tuple[Tensor, list[Array], list[Array]]:
    """Outputs, received attention and participation of all tokens, which fit into memory."""
    q, k, v = (_loaded(array) for array in (view.q, view.k, view.v))
    served = view.served_by
    found = nested_outputs(
        q, k[served], v[served], sizes=(q.shape[1],), factor=view.scaling, weights=True
    )
    view.let_go()
    assert found.received is not None
    assert found.participation is not None
    return found.outputs[0], list(found.received / q.shape[1]), list(found.participation)


def _one_pass(
    view: LayerCloud, head: int, asking: NDArray[np.int64], chunk: int
) -> StreamedAttention:
    """Asking tokens of one head over all keys, which are read in chunks."""
    tokens = view.head(head)

    def chunks() -> Iterator[Chunk]:
        for start in range(0, len(tokens.k), chunk):
            rows = slice(start, start + chunk)
            yield _loaded(tokens.k[rows]), _loaded(tokens.v[rows])
            view.let_go()

    q = torch.from_numpy(read_rows(tokens.q, asking))
    return streamed_attention(q, chunks, scaling=view.scaling, softcap=view.softcap, received=True)


def _two_levels(
    view: LayerCloud,
    asking: NDArray[np.int64],
    fine: Tensor,
    coarse: NDArray[np.int64],
    chunk: int,
) -> tuple[OutputReference, Array, Array]:
    """Moments of all outputs, and the standard errors of mean and covariance, per unit."""
    heads, count, d = fine.shape
    tokens = view.q.shape[1]
    few = _Few(view, coarse)
    rough = few.outputs(torch.from_numpy(read_rows(view.q, asking)))
    factors = _least_squares(fine, rough).repeat_interleave(d)
    # rows are queries, columns the outputs of all heads side by side
    y = _side_by_side(fine)
    c = _side_by_side(rough) * factors
    rough_mean, rough_covariance = _all_queries(view, few, factors, chunk // 4)
    mean = rough_mean + (y - c).mean(0)
    u, w = y - mean, c - rough_mean
    covariance = rough_covariance + (u.T @ u - w.T @ w) / count
    # tokens that are asking are no source of error: finite population
    share = (1 - count / tokens) / (count - 1)
    mean_variance, covariance_variance = [], []
    for unit in [*(slice(h * d, (h + 1) * d) for h in range(heads)), slice(None)]:
        a, b = u[:, unit], w[:, unit]
        mean_variance.append(share * float((a - b).var(0, unbiased=False).sum()))
        square = a.square().sum(1) ** 2 + b.square().sum(1) ** 2 - 2 * (a * b).sum(1) ** 2
        shift = (a.T @ a - b.T @ b) / count
        covariance_variance.append(share * float(square.mean() - shift.square().sum()))
    return (
        OutputReference(mean.numpy(), covariance.numpy(), heads),
        np.sqrt(mean_variance),
        np.sqrt(np.maximum(covariance_variance, 0.0)),
    )


class _Few:
    """Attention over a few keys of the cloud, which stay in memory."""

    def __init__(self, view: LayerCloud, rows: NDArray[np.int64]) -> None:
        self._view = view
        # with some heads chosen, groups need not be whole
        self._k, self._v = (
            torch.from_numpy(read_rows(array, rows))[view.served_by] for array in (view.k, view.v)
        )

    def outputs(self, q: Tensor) -> Tensor:
        """Outputs of queries [heads, n, d]."""
        return attend(q, self._k, self._v, self._view.scaling, self._view.softcap)


def _all_queries(view: LayerCloud, few: _Few, factors: Tensor, chunk: int) -> tuple[Tensor, Tensor]:
    """Mean and covariance of the coarse outputs of all tokens, times the factors."""
    tokens = view.q.shape[1]
    total, products, origin = torch.zeros(()), torch.zeros(()), None
    for start in range(0, tokens, chunk):
        rows = _side_by_side(few.outputs(_loaded(view.q[:, start : start + chunk])))
        view.let_go()
        rows = rows * factors
        origin = rows.mean(0) if origin is None else origin  # so that little cancels
        rows = rows - origin
        total = total + rows.sum(0)
        products = products + rows.T @ rows
    assert origin is not None
    shift = total / tokens
    return origin + shift, products / tokens - torch.outer(shift, shift)


def _least_squares(fine: Tensor, rough: Tensor) -> Tensor:
    """Per head, the factor that takes coarse outputs closest to the fine ones; not below 0."""
    y = (fine - fine.mean(1, keepdim=True)).to(torch.float64)
    c = (rough - rough.mean(1, keepdim=True)).to(torch.float64)
    square = c.square().sum((1, 2))
    return torch.where(square > 0, (y * c).sum((1, 2)) / square, 0.0).clamp_min(0.0)


def _side_by_side(outputs: Tensor) -> Tensor:
    """[heads, queries, d] as float64 rows of queries."""
    return outputs.transpose(0, 1).flatten(1).to(torch.float64)


def _loaded(array: NDArray[np.float32]) -> Tensor:
    return torch.from_numpy(np.array(array))
