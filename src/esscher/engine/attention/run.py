"""The entry point: heads and blocks of queries go through the kernel, sums come together here."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import groupby

import numpy as np
from numpy.typing import NDArray

from esscher.core.errors import InputError
from esscher.core.validation import Array
from esscher.engine.attention.arguments import Inputs, as_inputs, as_options, for_the_kernel
from esscher.engine.attention.arrays import AnyArray, cast, on_host, working
from esscher.engine.attention.blocks import BlockPlan
from esscher.engine.attention.head import PassOptions, RawHead, ReadyHead, make_ready
from esscher.engine.attention.passes import block_sums, received_by_keys
from esscher.engine.attention.statistics import AttentionStatistics, QuerySummary, summarise
from esscher.engine.attention.threads import Workers


def attention_statistics(
    q: AnyArray,
    k: AnyArray,
    v: AnyArray,
    *,
    sizes: Sequence[int],
    scales: Sequence[float] = (1.0,),
    queries: str = "tokens",
    factor: float | None = None,
    limit: AnyArray | None = None,
    causal: bool = False,
    key_mask: AnyArray | None = None,
    query_mask: AnyArray | None = None,
    received_sizes: Sequence[int] = (),
    weights: Sequence[str] = (),
    per_query: bool = False,
    dtype: object = "float32",
    block: tuple[int, int] | None = None,
) -> AttentionStatistics:
    """Statistics of softmax attention over the first n tokens, for all n at once.

    One pass over the largest size gives all smaller ones. Memory is bounded by a block per thread;
    the result does not depend on the number of threads.

    Parameters
    ----------
    q, k, v
        Arrays [..., heads, tokens, d], PyTorch's or numpy's; two axes are one head. There may be
        fewer key heads than query heads; each then serves a group of neighbouring query heads.
    sizes
        Strictly increasing numbers of tokens n.
    scales
        Tilt multipliers alpha: the logits are ``alpha * factor * <q, k>``, computed once for all.
        Equally spaced ones are cheapest. Not negative.
    queries
        ``"tokens"``: at size n the first n queries attend the first n keys. ``"separate"``: all
        queries attend the first n keys.
    factor
        1/sqrt(d_k) unless given; 1.0 when ``q`` are tilts already.
    limit
        Output in the limit at each query, of the outputs' shape, or one such per scale along a new
        first axis; gives the map error.
    causal
        A query attends its own and earlier positions only.
    key_mask, query_mask
        Bool, broadcast to the axes of ``k`` and ``q`` without the last: True for keys that may be
        attended, for queries that count. A query left with nothing to attend is an error.
    received_sizes
        Sizes at which received attention (column sums) is wanted; costs half a pass in all.
    weights
        Any of ``"participation"`` and ``"largest"``: per-query numbers, summarised. Each costs
        about a seventh of a pass.
    per_query
        Also return those numbers themselves.
    dtype
        Arithmetic inside a block, float32 or float64, by name or as PyTorch's type. In float32 a
        logit of size L is known to about ``1e-7 L``, hence its weight to that relative accuracy.
    block
        (queries, keys) held at a time; chosen for the device unless given.
    """
    if queries not in ("tokens", "separate"):
        raise InputError(f"queries is {queries!r}; it must be 'tokens' or 'separate'")
    separate = queries == "separate"
    q, k, v, limit, key_mask, query_mask = for_the_kernel(
        dtype, q, k, v, limit, key_mask, query_mask
    )
    inputs = as_inputs(
        q,
        k,
        v,
        limit=limit,
        key_mask=key_mask,
        query_mask=query_mask,
        scale_count=len(scales),
        separate=separate,
    )
    options, alphas, order = as_options(
        inputs,
        sizes=sizes,
        scales=scales,
        factor=factor,
        separate=separate,
        causal=causal,
        received_sizes=received_sizes,
        weights=weights,
        dtype=dtype,
        block=block,
    )
    with Workers(k) as workers:
        blocks = _blocks(inputs, options, order, workers)
        parts = workers.map(lambda block: _work(block, options), blocks)
        results = [
            _gather(head, head_parts, inputs, options, keep=per_query)
            for head, head_parts in groupby(parts, key=lambda part: part.head)
        ]
    return _assemble(results, inputs.head_shape, options, alphas, order)


@dataclass(frozen=True, eq=False)
class _Part:
    """One block of queries and what came of it, as arrays on the CPU."""

    head: ReadyHead
    plan: BlockPlan
    first: Array
    second: Array
    square: Array
    participation: Array | None
    largest: Array | None
    received: Array | None


@dataclass(frozen=True, eq=False)
class _HeadResult:
    """The statistics of one head, scales in the order of the pass."""

    counts: NDArray[np.int64]
    mean: Array
    covariance: Array
    map_square: Array | None
    received: Array | None
    participation: QuerySummary | None
    largest: QuerySummary | None


def _blocks(
    inputs: Inputs, options: PassOptions, order: Sequence[int], workers: Workers
) -> Iterator[tuple[ReadyHead, BlockPlan]]:
    # Heads are made ready in a worker too: torch's own threads would go on spinning for a while
    # after their work and take the time of the workers.
    for raw in inputs.heads(order):
        head = workers.call(partial(_ready, options=options), raw)
        for plan in head.plans(options):
            yield head, plan


def _ready(raw: RawHead, options: PassOptions) -> ReadyHead:
    with working(raw.q):
        return make_ready(raw, options)


def _work(block: tuple[ReadyHead, BlockPlan], options: PassOptions) -> _Part:
    head, plan = block
    received = None
    with working(head.q):
        sums = block_sums(head, plan, options)
        if options.received:
            received = received_by_keys(head, plan, options, sums.normalisers)
    return _Part(
        head=head,
        plan=plan,
        first=on_host(sums.first),
        second=on_host(sums.second),
        square=on_host(sums.square),
        participation=None if sums.participation is None else on_host(sums.participation),
        largest=None if sums.largest is None else on_host(sums.largest),
        received=None if received is None else on_host(received),
    )


def _gather(
    head: ReadyHead, parts: Iterator[_Part], inputs: Inputs, options: PassOptions, *, keep: bool
) -> _HeadResult:
    """Add up the blocks of one head, always in the same order."""
    scales, sizes, d = len(options.relative), len(options.sizes), len(head.centre)
    first, second = np.zeros((scales, sizes, d)), np.zeros((scales, sizes, d, d))
    square = np.zeros((scales, sizes))
    counts = np.zeros(sizes, dtype=np.int64)
    per_query = (scales, sizes, inputs.q.shape[-2])
    participation = np.full(per_query, np.nan) if options.participation else None
    largest = np.full(per_query, np.nan) if options.largest else None
    received = np.zeros((scales, len(options.received), len(head.key_positions)))
    for part in parts:
        first += part.first
        second += part.second
        square += part.square
        counts += part.plan.counts
        at = head.query_positions[part.plan.rows]
        if participation is not None and part.participation is not None:
            participation[..., at] = part.participation
        if largest is not None and part.largest is not None:
            largest[..., at] = part.largest
        if part.received is not None:
            received += part.received
    mean = first / counts[:, None]
    second /= counts[:, None, None]
    return _HeadResult(
        counts=counts,
        mean=mean + on_host(cast(head.centre, "float64")),
        covariance=second - mean[..., :, None] * mean[..., None, :],
        map_square=None if head.limit is None else square / counts,
        received=_at_positions(received, head, inputs, options) if options.received else None,
        participation=None if participation is None else summarise(participation, keep=keep),
        largest=None if largest is None else summarise(largest, keep=keep),
    )


def _at_positions(received: Array, head: ReadyHead, inputs: Inputs, options: PassOptions) -> Array:
    """Received attention by position: 0 for masked keys, ``nan`` beyond the size."""
    placed = np.zeros((*received.shape[:-1], inputs.k.shape[-2]))
    placed[..., head.key_positions] = received
    for r, j in enumerate(options.received):
        placed[:, r, options.sizes[j] :] = np.nan
    return placed


def _assemble(
    results: Sequence[_HeadResult],
    head_shape: tuple[int, ...],
    options: PassOptions,
    alphas: tuple[float, ...],
    order: Sequence[int],
) -> AttentionStatistics:
    """Put the heads together and the scales back into the caller's order."""
    back = np.argsort(order)

    def stacked(arrays: Sequence[Array | None]) -> Array | None:
        if any(array is None for array in arrays):
            return None
        joined = np.stack([np.asarray(array)[back] for array in arrays])
        return joined.reshape(*head_shape, *joined.shape[1:])

    def needed(arrays: Sequence[Array]) -> Array:
        array = stacked(arrays)
        assert array is not None
        return array

    def summary(summaries: Sequence[QuerySummary | None]) -> QuerySummary | None:
        present = [s for s in summaries if s is not None]
        if not present:
            return None
        return QuerySummary(
            present[0].levels,
            needed([s.mean for s in present]),
            needed([s.quantiles for s in present]),
            stacked([s.values for s in present]),
        )

    counts = np.stack([result.counts for result in results])
    return AttentionStatistics(
        sizes=options.sizes,
        scales=alphas,
        query_counts=counts.reshape(*head_shape, -1),
        mean=needed([result.mean for result in results]),
        covariance=needed([result.covariance for result in results]),
        map_square=stacked([result.map_square for result in results]),
        received_sizes=tuple(options.sizes[j] for j in options.received),
        received=stacked([result.received for result in results]),
        participation=summary([result.participation for result in results]),
        largest=summary([result.largest for result in results]),
        dtype=options.dtype,
    )
