"""Mean and covariance of attention outputs, and their distance from a limit, for all sizes at once.

One pass streams the keys past every block of queries and takes the moments of the outputs whenever
a size is complete.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import groupby
from typing import TypeVar

import numpy as np
from numpy.typing import NDArray

from esscher.core.errors import InputError
from esscher.core.validation import Array, as_nonnegative, as_positive, as_sizes
from esscher.engine.attention.arrays import (
    AnyArray,
    Workers,
    Workspace,
    cast,
    full,
    library,
    numbers,
    on_host,
    quiet,
    type_name,
)
from esscher.engine.attention.blocks import (
    BlockPlan,
    Head,
    PassOptions,
    block_plans,
    make_ready,
)
from esscher.engine.attention.compiled.kernel import Kernel, kernel_for
from esscher.engine.attention.stream import RANGES, CompiledStream, Fold, Stream

#: Standard deviations of a query's logits that are taken for their range.
SPREAD = 6.5
#: Bits by which a logit must pass the limit before a pass is called in vain: those of rounding.
SURELY = 1.0


R = TypeVar("R")


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
    dtype
        Precision of the arithmetic inside a block; sums over blocks and queries are float64.
    """

    sizes: tuple[int, ...]
    scales: tuple[float, ...]
    query_counts: NDArray[np.int64]
    mean: Array
    covariance: Array
    map_square: Array | None
    dtype: str


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
    query_mask: AnyArray | None = None,
    dtype: object = "float32",
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
    query_mask
        Bool, [query]: True for queries that count.
    dtype
        Arithmetic inside a block, float32 or float64, by name or as PyTorch's type. In float32 a
        logit of size L is known to about ``1e-7 L``, hence its weight to that relative accuracy.
    """
    if isinstance(q, np.ndarray) and kernel_for("cpu", dtype) is None:
        import torch

        q, k, v, limit, query_mask = (
            None if x is None else torch.from_numpy(x if x.flags.writeable else x.copy())
            for x in (q, k, v, limit, query_mask)
        )
    options = pass_options(
        q, k, v, sizes=sizes, scales=scales, queries=queries, factor=factor, dtype=dtype
    )
    shape = tuple(q.shape[:-2])
    if limit is not None:
        of_scale = (*q.shape[:-1], v.shape[-1])
        if tuple(limit.shape) not in (of_scale, (len(scales), *of_scale)):
            raise InputError(
                f"limit has shape {tuple(limit.shape)}; it must be {of_scale}, or {len(scales)} of "
                "those (one per scale) along a first axis"
            )
        limit = limit.reshape(-1, math.prod(shape), *of_scale[-2:])
    q, k, v = (x.reshape(-1, *x.shape[-2:]) for x in (q, k, v))

    def moments(i: int, head: Head, plan: BlockPlan) -> list[Array]:
        return [on_host(x) for x in block_moments(head, plan, options)]

    parts = over_blocks(q, k, v, options, moments, limit=limit, query_mask=query_mask)
    scale_count, d = len(scales), v.shape[-1]
    mean = np.empty((len(q), scale_count, len(options.sizes), d))
    covariance = np.empty((*mean.shape, d))
    map_square = None if limit is None else np.empty(mean.shape[:3])
    query_counts = np.zeros((len(q), len(options.sizes)), dtype=np.int64)
    order = list(options.order)
    for i, of_head in groupby(parts, key=lambda part: part[0]):
        first, second, square = (np.zeros(x.shape[1:]) for x in (mean, covariance, mean[..., 0]))
        for _, head, plan, sums in of_head:  # always in the same order
            first += sums[0]
            second += sums[1]
            square += sums[2]
            query_counts[i] += plan.counts
            centre = on_host(cast(head.centre, "float64"))
        # relative to the centre, and scales in the order of the pass
        first /= query_counts[i][:, None]
        second /= query_counts[i][:, None, None]
        mean[i, order] = first + centre
        covariance[i, order] = second - first[..., :, None] * first[..., None, :]
        if map_square is not None:
            map_square[i, order] = square / query_counts[i]
    return AttentionStatistics(
        sizes=options.sizes,
        scales=tuple(map(float, scales)),
        query_counts=query_counts.reshape(*shape, -1),
        mean=mean.reshape(*shape, *mean.shape[1:]),
        covariance=covariance.reshape(*shape, *covariance.shape[1:]),
        map_square=None
        if map_square is None
        else map_square.reshape(*shape, *map_square.shape[1:]),
        dtype=options.dtype,
    )


def pass_options(
    q: AnyArray,
    k: AnyArray,
    v: AnyArray,
    *,
    sizes: Sequence[int],
    scales: Sequence[float] = (1.0,),
    queries: str = "tokens",
    factor: float | None = None,
    dtype: object = "float32",
    squares: bool = False,
) -> PassOptions:
    """Check that arrays and options belong together; see :func:`attention_statistics`."""
    for name, array in (("k", k), ("v", v)):
        both_numpy = isinstance(q, np.ndarray) and isinstance(array, np.ndarray)
        if not both_numpy and getattr(array, "device", None) != getattr(q, "device", None):
            raise InputError(f"{name} is not an array of the library and the device of q")
    shapes = f"q {tuple(q.shape)}, k {tuple(k.shape)}, v {tuple(v.shape)}"
    if min(q.ndim, k.ndim, v.ndim) < 2 or not q.ndim == k.ndim == v.ndim:
        raise InputError(f"q, k and v must have the same number of axes, at least 2; got {shapes}")
    if min(map(math.prod, (q.shape, k.shape, v.shape))) == 0:
        raise InputError(f"q, k and v must not be empty; got {shapes}")
    if k.shape[:-1] != v.shape[:-1]:
        raise InputError(f"k and v must agree in all axes but the last; got {shapes}")
    if q.shape[-1] != k.shape[-1]:
        raise InputError(f"q and k must have the same last axis; got {shapes}")
    if q.ndim > 2 and (q.shape[:-3] != k.shape[:-3] or q.shape[-3] % k.shape[-3]):
        raise InputError(
            "leading axes must agree, and query heads be a multiple of key heads "
            f"(third axis from the end); got {shapes}"
        )
    if queries not in ("tokens", "separate"):
        raise InputError(f"queries is {queries!r}; it must be 'tokens' or 'separate'")
    if queries == "tokens" and q.shape[-2] != k.shape[-2]:
        raise InputError(
            f"with queries='tokens' there must be as many queries as keys; got {shapes}; "
            "for other queries pass queries='separate'"
        )
    tokens, key_dim = k.shape[-2:]
    n = tuple(int(size) for size in as_sizes(list(sizes), smallest=1))
    if n[-1] > tokens:
        raise InputError(f"sizes contains n = {n[-1]}, but there are only {tokens} keys")
    alphas = [as_nonnegative(alpha, f"scales[{i}]") for i, alpha in enumerate(scales)]
    if not alphas:
        raise InputError("scales is empty; pass at least one, such as 1.0")
    factor = key_dim**-0.5 if factor is None else as_positive(factor, "factor")
    kind = type_name(dtype)
    if kind not in RANGES:
        raise InputError(f"dtype is {dtype}; it must be {' or '.join(RANGES)}")
    device = "cpu" if isinstance(k, np.ndarray) else k.device
    kernel = kernel_for(device, kind)
    top = max(alphas) or 1.0
    order = tuple(sorted(range(len(alphas)), key=lambda s: alphas[s]))
    return PassOptions(
        sizes=n,
        order=order,
        relative=tuple(alphas[s] / top for s in order),
        bits=top * factor * math.log2(math.e),
        block=block_shape(device, kind, kernel),
        dtype=kind,
        separate=queries == "separate",
        squares=squares,
        kernel=kernel,
        workspace=Workspace(),
    )


def over_blocks(
    q: AnyArray,
    k: AnyArray,
    v: AnyArray,
    options: PassOptions,
    work: Callable[[int, Head, BlockPlan], R],
    *,
    limit: AnyArray | None = None,
    query_mask: AnyArray | None = None,
) -> Iterator[tuple[int, Head, BlockPlan, R]]:
    """Do some work for every block of queries of every head, [head, token, d], in their order."""
    group = len(q) // len(k)

    def ready(i: int) -> Head:
        with quiet(q):
            of_head = None if limit is None else limit[:, i]
            return make_ready(q[i], k[i // group], v[i // group], of_head, query_mask, options)

    def blocks() -> Iterator[tuple[int, Head, BlockPlan]]:
        for i in range(len(q)):
            # in a worker, too: torch's own threads would go on spinning for a while after their
            # work and take the time of the workers
            for head in workers.map(ready, [i]):
                for plan in block_plans(head, options):
                    yield i, head, plan

    def done(block: tuple[int, Head, BlockPlan]) -> tuple[int, Head, BlockPlan, R]:
        with quiet(q):
            return *block, work(*block)

    with Workers(q) as workers:
        yield from workers.map(done, blocks())


def block_shape(device: object, dtype: str, kernel: Kernel | None) -> tuple[int, int]:
    """Queries and keys of a block that stays in the caches of a core, or of one that fills a GPU.

    It must not depend on the number of threads: results would then depend on it too.
    """
    if str(device).partition(":")[0] != "cpu":
        return 4096, 4096
    if kernel is not None:
        return 1008, 252
    return (768, 384) if dtype == "float32" else (512, 256)


def block_moments(
    head: Head, plan: BlockPlan, options: PassOptions
) -> tuple[AnyArray, AnyArray, AnyArray]:
    """Sums over the queries of one block, relative to the centre of the values.

    Of the outputs, [scale, size, d_v]; of their products, [scale, size, d_v, d_v]; and of their
    squared distances from the limit, [scale, size].
    """
    shape = len(options.relative), len(options.sizes)
    d = len(head.centre)
    first, second, square = (
        full(head.q, *shape, *axes, value=0.0, dtype="float64") for axes in ((d,), (d, d), ())
    )

    def fold(size: int, outputs: AnyArray, sums: AnyArray) -> None:
        of = library(outputs)
        first[:, size] = sums
        of.matmul(outputs, outputs.swapaxes(1, 2), out=second[:, size])
        if head.limit is None:
            return
        limit = cast(head.limit[:, plan.rows][:, : outputs.shape[2]], "float64")
        exact = (limit - cast(head.centre, "float64")).swapaxes(1, 2)
        error = options.workspace.empty("error", head.q, *outputs.shape, dtype="float64")
        of.subtract(outputs, exact, out=error)
        if isinstance(error, np.ndarray):
            square[:, size] = np.square(error, out=error).reshape(len(error), -1).sum(axis=1)
        else:
            square[:, size] = of.linalg.vector_norm(error, dim=(1, 2)).square()

    stream_block(head, plan, options, fold)
    return first, second, square


def stream_block(head: Head, plan: BlockPlan, options: PassOptions, fold: Fold) -> Stream:
    """Stream the keys past one block of queries; return the stream at its end.

    ``fold`` is called at every size, and once more where a pass without a shift has to be repeated.
    """
    make: Callable[..., Stream]
    if options.kernel is None:
        # Imported here: with the compiled kernel nobody waits for the import of torch.
        from esscher.engine.attention.torch_stream import TorchStream, block_tilts

        tilts = block_tilts(head, plan.rows, options)
        longest = math.sqrt(float(tilts.square().sum(0).max()))  # vector_norm is 10x slower
        make = partial(TorchStream, head, plan, options, tilts)
    else:
        tilts, longest = options.kernel.pack_queries(
            head.q[plan.rows], options.bits, options.workspace
        )
        make = partial(CompiledStream, head, plan, options, tilts)
    if needs_no_shift(head, plan, options, longest):
        stream = make(shifted=False)
        if stream.run(fold):
            return stream
    stream = make(shifted=True)
    stream.run(fold)
    return stream


def needs_no_shift(head: Head, plan: BlockPlan, options: PassOptions, longest: float) -> bool:
    """Tell if logits are small enough: surely (Cauchy-Schwarz), or judging by the keys' spread."""
    limits = RANGES[options.dtype]
    bits = limits.plain_squares if options.squares else limits.plain
    bound = longest * head.longest_key
    if bound <= bits:
        return True
    if not bound < np.finfo(options.dtype).max / 1e4:
        raise InputError(
            f"logits may be as large as {bound:.3g} powers of two, too large for {options.dtype}; "
            "divide q by a constant or pass dtype='float64'"
        )
    q = head.q[plan.rows]
    tilts = cast(q, options.dtype) * options.bits
    variance = float(((tilts @ head.key_covariance) * tilts).sum(1).max())
    if SPREAD * math.sqrt(max(variance, 0.0)) > bits:
        return False
    if options.separate:
        return True
    # A token often has its largest logit at its own key, far beyond the spread of the others. Where
    # this alone is more than a sum may be, the pass without a shift would be in vain.
    k = head.k[numbers(head.k, head.positions[plan.rows], "int64")]
    logits = (cast(q, "float64") * cast(k - head.key_centre, "float64")).sum(1)
    return float(logits.max()) * options.bits <= limits.largest + SURELY
