"""Results of a pass: immutable, in float64, with named axes."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import groupby, pairwise

import numpy as np
from numpy.typing import NDArray

from esscher.core.errors import InputError
from esscher.core.validation import Array
from esscher.engine.attention.arguments import Inputs, as_inputs, as_options, for_the_kernel
from esscher.engine.attention.arrays import (
    AnyArray,
    Workers,
    cast,
    library,
    numbers,
    on_host,
    working,
    zeros,
)
from esscher.engine.attention.blocks import BlockPlan, PassOptions, RawHead, ReadyHead, make_ready
from esscher.engine.attention.compiled.stream import CompiledReceived, CompiledStream
from esscher.engine.attention.stream import RANGES, BlockSums, Normaliser, Received, Stream

#: Levels of the quantiles by which per-query numbers are summarised.
LEVELS = (0.05, 0.25, 0.5, 0.75, 0.95)


@dataclass(frozen=True, eq=False)
class QuerySummary:
    """A number per query, summarised over the queries of each size.

    Attributes
    ----------
    mean
        Axes [heads..., scale, size].
    quantiles
        Axes [heads..., scale, size, level], at ``levels``.
    values
        Axes [heads..., scale, size, query], ``nan`` for a query that a size or a mask leaves out;
        ``None`` unless asked for.
    """

    levels: tuple[float, ...]
    mean: Array
    quantiles: Array
    values: Array | None = None

    @property
    def median(self) -> Array:
        """Axes [heads..., scale, size]."""
        middle: Array = self.quantiles[..., self.levels.index(0.5)]
        return middle


@dataclass(frozen=True, eq=False)
class AttentionStatistics:
    """Statistics of attention restricted to the first ``sizes[j]`` tokens.

    Attributes
    ----------
    sizes, scales
        The axes "size" and "scale" of every array; leading axes are those of the queries.
    query_counts
        Number of queries, axes [heads..., size].
    mean, covariance
        Of the outputs over the queries (divided by their number); axes [heads..., scale, size, d_v]
        and [heads..., scale, size, d_v, d_v].
    map_square
        Mean over the queries of the squared distance between output and limit, axes
        [heads..., scale, size]; ``None`` without a limit.
    received_sizes, received
        Received attention (column sums), axes [heads..., scale, received size, key]: 0 for a masked
        key, ``nan`` for a key beyond the size. ``None`` unless asked for.
    participation
        ``1 / sum_j p_j^2`` of each query, the number of keys it effectively attends.
    largest
        The largest weight of each query.
    dtype
        Precision of the arithmetic inside a block; sums over blocks and queries are float64.
    """

    sizes: tuple[int, ...]
    scales: tuple[float, ...]
    query_counts: NDArray[np.int64]
    mean: Array
    covariance: Array
    map_square: Array | None
    received_sizes: tuple[int, ...]
    received: Array | None
    participation: QuerySummary | None
    largest: QuerySummary | None
    dtype: str

    @property
    def head_shape(self) -> tuple[int, ...]:
        """Shape of the leading axes."""
        return self.query_counts.shape[:-1]

    @property
    def map_rms(self) -> Array:
        """Root of ``map_square``."""
        if self.map_square is None:
            raise InputError("no map error: pass limit= to attention_statistics")
        root: Array = np.sqrt(self.map_square)
        return root

    def __repr__(self) -> str:
        present = [
            name
            for name in ("map_square", "received", "participation", "largest")
            if getattr(self, name) is not None
        ]
        return (
            f"AttentionStatistics(heads={self.head_shape}, scales={self.scales}, "
            f"sizes={self.sizes}, value_dim={self.mean.shape[-1]}, dtype={self.dtype}, "
            f"with mean, covariance{''.join(f', {name}' for name in present)})"
        )


def summarise(values: Array, *, keep: bool) -> QuerySummary:
    """Summarise [..., query] numbers, of which some are ``nan`` because a size leaves them out."""
    quantiles = np.moveaxis(np.nanquantile(values, LEVELS, axis=-1), 0, -1)
    return QuerySummary(LEVELS, np.nanmean(values, axis=-1), quantiles, values if keep else None)


# The kernel: one block of queries, streamed past all keys.
#
# Received attention, the column sums of the attention matrix, takes a second pass. The weight of a
# key depends on the sum over all keys, which is known only at the end; so the keys are streamed
# past the block again, with the sums known. That costs the logits and the exponentials again, not
# the product with the values: about half a pass, however many sizes ask for it. Per size and query,
# one factor takes the weights of one normaliser to another.

#: Standard deviations of a query's logits that are taken for their range.
SPREAD = 6.5
#: Bits by which a logit must pass the limit before a pass is called in vain: those of rounding.
SURELY = 1.0


def block_sums(head: ReadyHead, plan: BlockPlan, options: PassOptions) -> BlockSums:
    """Stream the keys past one block of queries."""
    stream: Callable[..., Stream]
    if options.kernel is None:
        # Imported here: with the compiled kernel nobody waits for the import of torch.
        from esscher.engine.attention.torch_stream import TorchStream, block_tilts

        tilts = block_tilts(head, plan.rows, options)
        longest = math.sqrt(float(tilts.square().sum(0).max()))  # vector_norm is 10x slower
        stream = partial(TorchStream, head, plan, options, tilts)
    else:
        packed, longest = options.kernel.pack_queries(
            head.q[plan.rows], options.bits, options.workspace
        )
        stream = partial(CompiledStream, head, plan, options, packed)
    if _stays_within(_plain_range(options), head, plan, options, longest):
        sums = stream(shifted=False).run()
        if sums is not None:
            return sums
    shifted = stream(shifted=True).run()
    assert shifted is not None  # only a stream without a shift gives up
    return shifted


def _plain_range(options: PassOptions) -> float:
    limits = RANGES[options.dtype]
    return limits.plain_squares if options.participation else limits.plain


def _stays_within(
    bits: float, head: ReadyHead, plan: BlockPlan, options: PassOptions, longest: float
) -> bool:
    """Tell if logits stay that small: surely (Cauchy-Schwarz), or judging by the keys' spread."""
    bound = longest * head.longest_key
    if bound <= bits:
        return True
    if not bound < np.finfo(options.dtype).max / 1e4:
        raise InputError(
            f"logits may be as large as {bound:.3g} powers of two, too large for {options.dtype}; "
            "divide q by a constant or pass dtype=torch.float64"
        )
    tilts = cast(head.q[plan.rows], options.dtype) * options.bits
    variance = float(((tilts @ head.key_covariance) * tilts).sum(1).max())
    if SPREAD * math.sqrt(max(variance, 0.0)) > bits:
        return False
    return _own_logit(head, plan, options) <= RANGES[options.dtype].largest + SURELY


def _own_logit(head: ReadyHead, plan: BlockPlan, options: PassOptions) -> float:
    """Largest logit of a query at the key of its own token, of those that are asked.

    A token often has its largest logit there, far beyond the spread of the others. Where this alone
    is more than a sum may be, the pass without a shift would be in vain.
    """
    if options.separate:
        return -math.inf
    at = head.query_positions[plan.rows][: plan.counts[-1]]
    places = np.minimum(np.searchsorted(head.key_positions, at), len(head.key_positions) - 1)
    own = head.key_positions[places] == at
    if not own.any():
        return -math.inf
    rows = plan.rows.start + np.flatnonzero(own)
    q, k = head.q[numbers(head.q, rows, "int64")], head.k[numbers(head.k, places[own], "int64")]
    logits = (cast(q, "float64") * cast(k - head.key_centre, "float64")).sum(1)
    return float(logits.max()) * options.bits


def received_by_keys(
    head: ReadyHead,
    plan: BlockPlan,
    options: PassOptions,
    normalisers: dict[int, Normaliser],
) -> AnyArray:
    """Attention that one block of queries gives to every key, [scale, received size, key].

    Parameters
    ----------
    head, plan, options
        As in the pass.
    normalisers
        By size, from the pass; sizes without a query of this block are absent.
    """
    shape = len(options.relative), len(options.received), len(head.key_positions)
    given = zeros(head.q, *shape, dtype="float64")
    present = [size for size in options.received if size in normalisers]
    if not present:
        return given
    if options.kernel is None:
        from esscher.engine.attention.torch_stream import TorchReceived

        again: Received = TorchReceived(head, plan, options)
    else:
        again = CompiledReceived(head, plan, options)
    ends = {size: step.stop for step in plan.steps for size in step.sizes}
    for start, stop in pairwise(sorted({0, *(ends[size] for size in present)})):
        later = [size for size in present if ends[size] >= stop]
        # a shift that these keys were weighed with, or a higher one: no weight overflows, and the
        # factors to larger sizes are at most 1
        base = normalisers[later[0]]
        factors = _factors(base, later, normalisers, plan, options)
        lowered = base.lowered if base.shifted else None
        columns = [options.received.index(size) for size in later]
        given[:, columns, start:stop] = again.give(start, stop, lowered, factors)
    return given


def _factors(
    base: Normaliser,
    sizes: list[int],
    normalisers: dict[int, Normaliser],
    plan: BlockPlan,
    options: PassOptions,
) -> AnyArray:
    """Factors that turn weights shifted as at ``base`` into attention, [scale, query, size]."""
    relative = numbers(base.total, options.relative, "float64")[:, None]
    lowered, of = cast(base.lowered, "float64"), library(base.total)
    factors = []
    for size in sizes:
        at = normalisers[size]
        factor = of.exp2(relative * (cast(at.lowered, "float64") - lowered)) / at.total
        factor[:, plan.counts[size] :] = 0.0
        factors.append(factor)
    return cast(of.stack(factors, -1), options.dtype)


# The entry point: heads and blocks of queries go through the kernel, sums come together here.


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
