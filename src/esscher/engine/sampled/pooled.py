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

from collections.abc import Collection, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from esscher.core.streams import random_stream
from esscher.core.validation import Array
from esscher.engine.attention.outputs import (
    Chunk,
    StreamedAttention,
    nested_outputs,
    streamed_attention,
)
from esscher.engine.models import LayerCapture
from esscher.engine.sampled.context import delimiter_shares
from esscher.engine.sampled.layer import (
    PRODUCTS,
    HeadNumbers,
    LayerMeasurement,
    OutputProjection,
    OutputReference,
    attend,
    attend_nested,
    norms,
    soft_capped,
)
from esscher.engine.sampled.sizes import METRICS, ReferenceUsed
from esscher.engine.text import CloudFile, LayerCloud, Passage, read_rows
from esscher.engine.text.cloud import let_go
from esscher.engine.text.packing import first_tokens
from esscher.math.coupling import CoupledMoments, RowMoments


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
        asking,
        outputs,
        moments,
        mean_error,
        covariance_error,
        received,
        participation,
        len(coarse),
    )


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
    q, k, v = view.head(head)

    def chunks() -> Iterator[Chunk]:
        for start in range(0, len(k), chunk):
            rows = slice(start, start + chunk)
            yield _loaded(k[rows]), _loaded(v[rows])
            view.let_go()

    queries = torch.from_numpy(read_rows(q, asking))
    return streamed_attention(
        queries, chunks, scaling=view.scaling, softcap=view.softcap, received=True
    )


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


# Pooled mode: the tokens of all passages as one cloud, n of them drawn with replacement.
#
# This is the paper's protocol. The tokens of a sample are its queries and its keys; the reference
# is attention among all N tokens, which is exactly the limit of drawing from them.

#: Queries at which the map error of a sample is measured, if the reference has not all of them.
MAP_QUERIES = 512
#: Rows from which errors are predicted, and tails judged.
PREDICTION_ROWS = 16_384
#: Rows of which moments are summed at a time.
MOMENT_ROWS = 32_768


class PassageMoments:
    """What all tokens of a cloud say where they stand, in their passages: summed as they are read.

    Attributes
    ----------
    delimiters
        By layer: share of their attention that goes to delimiters, per head.
    """

    def __init__(
        self, passages: Iterable[Passage], tokens: int, hidden: Collection[int] = ()
    ) -> None:
        """Passages, the number of their tokens in the cloud, and layers of hidden states."""
        self.delimiters: dict[int, Array] = {}
        self._tokens = tokens
        self._wanted = hidden
        self._hidden: dict[int, RowMoments] = {}
        chosen = zip(passages, first_tokens(passages, tokens), strict=True)
        self._asking = {passage.number: asking for passage, asking in chosen}

    def take(self, passages: Sequence[Passage], capture: LayerCapture) -> None:
        """Take in what a layer sees of some passages."""
        layer = capture.layer
        for i, passage in enumerate(passages):
            asking = self._asking[passage.number]
            share = delimiter_shares(capture, passage.is_delimiter, asking, i)
            share = share * (np.count_nonzero(asking) / self._tokens)
            self.delimiters[layer] = self.delimiters.get(layer, 0.0) + share
            if layer in self._wanted and capture.hidden is not None:
                rows = capture.hidden[i][torch.from_numpy(asking)].to("cpu", torch.float64)
                self._hidden.setdefault(layer, RowMoments()).add(rows.numpy())

    def covariance(self, layer: int) -> Array | None:
        """Covariance of the hidden states of a layer, if it is known."""
        return self._hidden[layer].covariance if layer in self._hidden else None


def measure_pooled(
    cloud: CloudFile,
    layer: int,
    sizes: tuple[int, ...],
    replicates: int,
    seed: int,
    sampling: str,
    projection: OutputProjection | None = None,
    *,
    alpha: float = 1.0,
    levels: Levels = LEVELS,
    map_queries: int = MAP_QUERIES,
) -> tuple[LayerMeasurement, list[HeadNumbers]]:
    """Errors and one-pass numbers of one layer.

    Parameters
    ----------
    cloud, layer
        Which tokens.
    sizes, replicates, seed
        Samples of the largest size; smaller ones are their beginnings.
    sampling
        ``"with"`` or ``"without"`` replacement.
    projection
        Output projection of the cloud's heads, to see how their errors add up.
    alpha
        Factor of the tilts.
    levels
        From how many tokens on the reference is estimated, and how well.
    map_queries
        Queries at which the map error is measured then.
    """
    view = cloud.layer(layer)
    view = replace(view, scaling=alpha * view.scaling)
    rng = random_stream(seed, "probe reference", layer)
    reference = pooled_reference(view, rng, levels)
    outputs = reference.outputs
    every = reference.coarse is None
    # all over the text
    chosen = np.linspace(0, len(reference.asking) - 1, map_queries).round().astype(np.int64)
    questions = None if every else _take(view.q, reference.asking[chosen])
    units = len(view.heads) + 1
    errors = np.empty((len(METRICS), units, replicates, len(sizes)))
    products = np.empty((len(PRODUCTS), replicates, len(sizes), units - 1, units - 1))
    for r in range(replicates):
        rows = _draw(cloud.rows, sizes[-1], seed, layer, r, sampling)
        q = _take(view.q, rows)
        # with some heads chosen, groups need not be whole
        k, v = (_take(array, rows)[view.served_by] for array in (view.k, view.v))
        nested = attend_nested(q, k, v, sizes, view.scaling, view.softcap)
        for j, (n, found) in enumerate(zip(sizes, nested, strict=True)):
            errors[0, :, r, j], errors[1, :, r, j], shift = reference.moments.moment_errors(found)
            if questions is None:
                gap = found - outputs[:, rows[:n]]
            else:
                other = attend(questions, k[:, :n], v[:, :n], view.scaling, view.softcap)
                gap = other - outputs[:, chosen]
            errors[2, :, r, j] = norms(gap)
            if projection is not None:
                products[0, r, j] = projection.of_mean(shift)
                products[1, r, j] = projection.of_queries(gap)
    measurement = LayerMeasurement(
        layer=layer,
        heads=view.heads,
        sizes=sizes,
        errors=errors,
        relative=norms(outputs),
        reference_error=reference.mean_error,
        reference=reference.record(),
        products=None if projection is None else products,
    )
    passage = np.asarray(cloud.passage, dtype=np.int64)
    return measurement, [_numbers(view, h, reference, passage, rng) for h in range(len(view.heads))]


def _draw(
    tokens: int, n: int, seed: int, layer: int, replicate: int, sampling: str
) -> NDArray[np.int64]:
    """Rows of a sample; the same for all heads of a layer, so that their errors can be compared."""
    rng = random_stream(seed, "probe", layer, replicate)
    if sampling == "without":
        return np.asarray(rng.choice(tokens, size=n, replace=False), dtype=np.int64)
    return rng.integers(tokens, size=n)


def _take(array: NDArray[np.float32], rows: NDArray[np.int64]) -> Tensor:
    return torch.from_numpy(read_rows(array, rows))


def _numbers(
    view: LayerCloud,
    h: int,
    reference: PooledReference,
    passage: NDArray[np.int64],
    rng: np.random.Generator,
) -> HeadNumbers:
    """What the reference's pass over all keys says about a head."""
    all_q, all_k, all_v = view.head(view.heads[h])
    outputs = reference.outputs[h]
    norm = float(outputs.to(torch.float64).square().sum(-1).mean().sqrt())
    rows = np.arange(len(all_k))
    if len(rows) > PREDICTION_ROWS:
        # those that ask are among them: a query attends its own key, too
        others = np.setdiff1d(rows, reference.asking)
        more = rng.choice(others, size=PREDICTION_ROWS - len(reference.asking), replace=False)
        rows = np.sort(np.concatenate([reference.asking, more]))
    q, k, v = (
        _take(array, chosen)
        for array, chosen in ((all_q, reference.asking), (all_k, rows), (all_v, rows))
    )
    if len(rows) < len(all_k):
        # predictions are about draws from these rows, so their limit is attention over these
        outputs = attend(q[None], k[None], v[None], view.scaling, view.softcap)[0]
    tilts, keys = q.to(torch.float64).numpy() * view.scaling, k.to(torch.float64).numpy()
    asked, known = (q * view.scaling).numpy(), k.numpy()
    return HeadNumbers(
        tilts=tilts,
        keys=keys,
        values=v.to(torch.float64).numpy(),
        outputs=outputs.to(torch.float64).numpy(),
        logits=lambda chosen: soft_capped(asked[chosen] @ known.T, view.softcap),
        own=np.searchsorted(rows, reference.asking),
        participation=reference.participation[h],
        received=reference.received[h],
        norm=norm,
        coupled=CoupledMoments.from_moments(_moments(all_q, view.scaling), _moments(all_k), tilts),
        passages=passage[rows],
    )


def _moments(array: NDArray[np.float32], factor: float = 1.0) -> RowMoments:
    """Moments of all tokens of a mapped array, times a factor."""
    found = RowMoments()
    for start in range(0, len(array), MOMENT_ROWS):
        found.add(array[start : start + MOMENT_ROWS].astype(np.float64) * factor)
        let_go(array)
    return found
