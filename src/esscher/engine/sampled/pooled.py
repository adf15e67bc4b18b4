"""The reference of pooled mode: attention among all N tokens of the cloud.

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
from esscher.engine.attention.outputs import Chunk, attend, nested_outputs, streamed_attention
from esscher.engine.models.inputs import LayerInputs
from esscher.engine.sampled.context import delimiter_shares
from esscher.engine.sampled.layer import (
    PRODUCTS,
    HeadNumbers,
    LayerMeasurement,
    moment_errors,
    norms,
    output_moments,
    projected_products,
)
from esscher.engine.sampled.sizes import METRICS
from esscher.engine.text.collect import CloudFile, LayerCloud, let_go, read_rows
from esscher.engine.text.packing import Passage
from esscher.math.coupling import CoupledMoments, RowMoments

#: Up to this many tokens all of them are queries of the reference; beyond, there are two levels.
WHOLE = 16_384
#: Then: queries that attend all keys, and keys that all queries attend. Fine enough for the errors
#: of a probe, at a cost that grows with the tokens, not their square.
QUERIES, KEYS = 4_096, 4_096
#: Tokens that are read from the disk at a time.
CHUNK = 32_768


@dataclass(frozen=True, eq=False)
class PooledReference:
    """Attention among all tokens of a layer, or its estimate by two levels.

    Attributes
    ----------
    queries
        Tokens whose output is known, in the order of the text.
    outputs
        Their outputs over all keys, [heads, queries, d].
    mean, covariance
        Of the outputs of all tokens, heads side by side.
    mean_error, covariance_error
        Standard errors of the two (Euclidean, Frobenius), per head and (last) of the layer; 0 if
        all tokens are queries.
    received
        Mean attention that each token receives from the queries, per head.
    participation
        ``1 / sum_j p_j^2`` of each query, per head.
    coarse
        Number of keys of the coarse level; None if all tokens are queries.
    """

    queries: NDArray[np.int64]
    outputs: Tensor
    mean: Array
    covariance: Array
    mean_error: Array
    covariance_error: Array
    received: list[Array]
    participation: list[Array]
    coarse: int | None


def pooled_reference(
    view: LayerCloud, rng: np.random.Generator, whole: int | None = None
) -> PooledReference:
    """Attention among all tokens of a layer.

    Parameters
    ----------
    view
        The tokens.
    rng
        Chooses queries and coarse keys.
    whole
        From how many tokens on it is estimated; ``WHOLE`` unless given.
    """
    tokens = view.q.shape[1]
    two_levels = tokens > (WHOLE if whole is None else whole)
    queries = np.arange(tokens)
    if two_levels:
        queries = np.sort(rng.choice(tokens, size=min(QUERIES, tokens), replace=False))
    if two_levels or view.softcap is not None:
        passes = [_streamed(view, head, queries) for head in view.heads]
        outputs = torch.stack([rows for rows, _, _ in passes])
        participation = [of_queries for _, of_queries, _ in passes]
        received = [of_keys / len(queries) for _, _, of_keys in passes]
    else:
        q, k, v = (_loaded(array) for array in (view.q, view.k, view.v))
        served = list(view.served_by)
        (outputs,), of_queries, of_keys = nested_outputs(
            q, k[served], v[served], sizes=(tokens,), factor=view.scaling, weights=True
        )
        view.let_go()
        participation, received = list(of_queries), list(of_keys / tokens)
    coarse = None
    if two_levels:
        keys = np.sort(rng.choice(tokens, size=min(KEYS, tokens), replace=False))
        mean, covariance, mean_error, covariance_error = _two_levels(view, queries, outputs, keys)
        coarse = len(keys)
    else:
        mean, covariance = output_moments(outputs)
        mean_error = covariance_error = np.zeros(len(view.heads) + 1)
    return PooledReference(
        queries=queries,
        outputs=outputs,
        mean=mean,
        covariance=covariance,
        mean_error=mean_error,
        covariance_error=covariance_error,
        received=received,
        participation=participation,
        coarse=coarse,
    )


def _streamed(
    view: LayerCloud, head: int, queries: NDArray[np.int64]
) -> tuple[Tensor, Array, Array]:
    """Some queries of one head over all keys, which are read in chunks."""
    q, k, v = view.head(head)

    def chunks() -> Iterator[Chunk]:
        for start in range(0, len(k), CHUNK):
            rows = slice(start, start + CHUNK)
            yield _loaded(k[rows]), _loaded(v[rows])
            view.let_go()

    tilts = _rows(q, queries)
    return streamed_attention(tilts, chunks, scaling=view.scaling, softcap=view.softcap)


def _two_levels(
    view: LayerCloud, queries: NDArray[np.int64], fine: Tensor, keys: NDArray[np.int64]
) -> tuple[Array, Array, Array, Array]:
    """Moments of all outputs, and the standard errors of mean and covariance, per unit."""
    heads, count, d = fine.shape
    tokens = view.q.shape[1]
    # the coarse level stays in memory; with some heads chosen, groups need not be whole
    k, v = (_rows(array, keys)[list(view.served_by)] for array in (view.k, view.v))
    rough = attend(_rows(view.q, queries), k, v, view.scaling, view.softcap)
    # per head, the factor that takes coarse outputs closest to the fine ones; not below 0
    y, c = (
        (outputs - outputs.mean(1, keepdim=True)).to(torch.float64) for outputs in (fine, rough)
    )
    square = c.square().sum((1, 2))
    best = torch.where(square > 0, (y * c).sum((1, 2)) / square, 0.0).clamp_min(0.0)
    factors = best.repeat_interleave(d)
    # mean and covariance of the coarse outputs of all tokens, times the factors
    total, products, origin = torch.zeros(()), torch.zeros(()), torch.empty(0)
    chunk = CHUNK // 4
    for start in range(0, tokens, chunk):
        q = _loaded(view.q[:, start : start + chunk])
        rows = _side_by_side(attend(q, k, v, view.scaling, view.softcap))
        view.let_go()
        rows = rows * factors
        if start == 0:
            origin = rows.mean(0)  # so that little cancels
        rows = rows - origin
        total = total + rows.sum(0)
        products = products + rows.T @ rows
    shift = total / tokens
    rough_mean, rough_covariance = origin + shift, products / tokens - torch.outer(shift, shift)
    # rows are queries, columns the outputs of all heads side by side
    y, c = _side_by_side(fine), _side_by_side(rough) * factors
    mean = rough_mean + (y - c).mean(0)
    u, w = y - mean, c - rough_mean
    covariance = rough_covariance + (u.T @ u - w.T @ w) / count
    # tokens that are queries are no source of error: finite population
    share = (1 - count / tokens) / (count - 1)
    mean_variance, covariance_variance = [], []
    for unit in [*(slice(h * d, (h + 1) * d) for h in range(heads)), slice(None)]:
        a, b = u[:, unit], w[:, unit]
        mean_variance.append(share * float((a - b).var(0, unbiased=False).sum()))
        squares = a.square().sum(1) ** 2 + b.square().sum(1) ** 2 - 2 * (a * b).sum(1) ** 2
        gap = (a.T @ a - b.T @ b) / count
        covariance_variance.append(share * float(squares.mean() - gap.square().sum()))
    return (
        mean.numpy(),
        covariance.numpy(),
        np.sqrt(mean_variance),
        np.sqrt(np.maximum(covariance_variance, 0.0)),
    )


def _side_by_side(outputs: Tensor) -> Tensor:
    """[heads, queries, d] as float64 rows of queries."""
    return outputs.transpose(0, 1).flatten(1).to(torch.float64)


def _loaded(array: NDArray[np.float32]) -> Tensor:
    return torch.from_numpy(np.array(array))


def _rows(array: NDArray[np.float32], rows: NDArray[np.int64]) -> Tensor:
    return torch.from_numpy(read_rows(array, rows))


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
    """Sums over the tokens of a cloud in their passages, taken while the passages are read.

    Parameters
    ----------
    passages
        The passages.
    tokens
        Number of their tokens in the cloud.
    hidden
        Layers whose hidden states are wanted.

    Attributes
    ----------
    delimiters
        By layer: share of the tokens' attention that goes to delimiters, per head.
    """

    def __init__(
        self, passages: Iterable[Passage], tokens: int, hidden: Collection[int] = ()
    ) -> None:
        self.delimiters: dict[int, Array] = {}
        self._tokens = tokens
        self._wanted = hidden
        self._hidden: dict[int, RowMoments] = {}
        # of each passage, the tokens that are among the first ``tokens`` without delimiters
        self._queries: dict[int, NDArray[np.bool_]] = {}
        for passage in passages:
            text = ~passage.is_delimiter
            self._queries[passage.number] = text & (np.cumsum(text) <= tokens)
            tokens -= passage.text_tokens

    def take(self, passages: Sequence[Passage], capture: LayerInputs) -> None:
        """Add one layer of some passages."""
        layer = capture.layer
        for i, passage in enumerate(passages):
            queries = self._queries[passage.number]
            share = delimiter_shares(capture, passage.is_delimiter, queries, i)
            share = share * (np.count_nonzero(queries) / self._tokens)
            self.delimiters[layer] = self.delimiters.get(layer, 0.0) + share
            if layer in self._wanted and capture.hidden is not None:
                rows = capture.hidden[i][torch.from_numpy(queries)].to("cpu", torch.float64)
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
    gram: Array | None = None,
    alpha: float = 1.0,
) -> tuple[LayerMeasurement, list[HeadNumbers]]:
    """Errors and one-pass numbers of one layer.

    Parameters
    ----------
    cloud, layer
        Which tokens.
    sizes, replicates, seed
        Samples of the largest size, with replacement; smaller ones are their beginnings.
    gram
        Output projection of the cloud's heads, see :func:`.layer.output_gram`, to see how their
        errors add up.
    alpha
        Factor of the tilts.
    """
    view = cloud.layer(layer)
    view = replace(view, scaling=alpha * view.scaling)
    rng = random_stream(seed, "probe reference", layer)
    reference = pooled_reference(view, rng)
    # queries of the map error, all over the text, where a sample's tokens are not among those known
    chosen = np.linspace(0, len(reference.queries) - 1, MAP_QUERIES).round().astype(np.int64)
    other_queries = None
    if reference.coarse is not None:
        other_queries = _rows(view.q, reference.queries[chosen])
    units = len(view.heads) + 1
    errors = np.empty((len(METRICS), units, replicates, len(sizes)))
    products = np.empty((len(PRODUCTS), replicates, len(sizes), units - 1, units - 1))
    for r in range(replicates):
        # the same rows for all heads of a layer, so that their errors can be compared
        draws = random_stream(seed, "probe", layer, r)
        rows = draws.integers(cloud.rows, size=sizes[-1])
        q = _rows(view.q, rows)
        k, v = (_rows(array, rows)[list(view.served_by)] for array in (view.k, view.v))
        if view.softcap is None:
            nested, _, _ = nested_outputs(q, k, v, sizes=sizes, factor=view.scaling)
        else:
            nested = [
                attend(q[:, :n], k[:, :n], v[:, :n], view.scaling, view.softcap) for n in sizes
            ]
        for j, (n, outputs) in enumerate(zip(sizes, nested, strict=True)):
            errors[0, :, r, j], errors[1, :, r, j], shift = moment_errors(
                outputs, reference.mean, reference.covariance
            )
            if other_queries is None:
                gap = outputs - reference.outputs[:, rows[:n]]
            else:
                other = attend(other_queries, k[:, :n], v[:, :n], view.scaling, view.softcap)
                gap = other - reference.outputs[:, chosen]
            errors[2, :, r, j] = norms(gap)
            if gram is not None:
                products[:, r, j] = projected_products(gram, shift, gap)
    measurement = LayerMeasurement(
        layer=layer,
        heads=view.heads,
        sizes=sizes,
        errors=errors,
        reference_error=reference.mean_error,
        cov_error=reference.covariance_error,
        products=None if gram is None else products,
    )
    return measurement, [_numbers(view, h, reference, rng) for h in range(len(view.heads))]


def _numbers(
    view: LayerCloud, h: int, reference: PooledReference, rng: np.random.Generator
) -> HeadNumbers:
    """One-pass numbers of a head from the reference's pass over all keys."""
    all_q, all_k, all_v = view.head(view.heads[h])
    outputs = reference.outputs[h]
    norm = float(outputs.to(torch.float64).square().sum(-1).mean().sqrt())
    rows = np.arange(len(all_k))
    if len(rows) > PREDICTION_ROWS:
        # the queries are among them: a query attends its own key, too
        others = np.setdiff1d(rows, reference.queries)
        more = rng.choice(others, size=PREDICTION_ROWS - len(reference.queries), replace=False)
        rows = np.sort(np.concatenate([reference.queries, more]))
    q, k, v = _rows(all_q, reference.queries), _rows(all_k, rows), _rows(all_v, rows)
    if len(rows) < len(all_k):
        # predictions are about draws from these rows, so their limit is attention over these
        outputs = attend(q[None], k[None], v[None], view.scaling, view.softcap)[0]
    tilts = q.to(torch.float64).numpy() * view.scaling
    narrow_tilts, narrow_keys = (q * view.scaling).numpy(), k.numpy()

    def logits(chosen: NDArray[np.int64]) -> Array:
        products = narrow_tilts[chosen] @ narrow_keys.T
        capped = (
            products if view.softcap is None else view.softcap * np.tanh(products / view.softcap)
        )
        return np.asarray(capped)

    return HeadNumbers(
        tilts=tilts,
        keys=k.to(torch.float64).numpy(),
        values=v.to(torch.float64).numpy(),
        outputs=outputs.to(torch.float64).numpy(),
        logits=logits,
        query_rows=np.searchsorted(rows, reference.queries),
        participation=reference.participation[h],
        received=reference.received[h],
        norm=norm,
        coupled=CoupledMoments.from_moments(_moments(all_q, view.scaling), _moments(all_k, 1.0)),
    )


def _moments(array: NDArray[np.float32], factor: float) -> RowMoments:
    """Moments of all tokens of a mapped array, times a factor."""
    moments = RowMoments()
    for start in range(0, len(array), MOMENT_ROWS):
        moments.add(array[start : start + MOMENT_ROWS].astype(np.float64) * factor)
        let_go(array)
    return moments
