"""Planning: which queries are worked on together, and where their keys are cut."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import pairwise
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from esscher.core.errors import InputError
from esscher.engine.attention.arrays import (
    AnyArray,
    Workspace,
    cast,
    full,
    library,
    numbers,
    on_host,
    wider,
    zeros,
)
from esscher.engine.attention.compiled.kernel import Kernel, on_processor

#: Keys whose float32 sums are kept before they are added to the float64 ones. Rounding grows with
#: this number, the cost of adding falls with it; at 4,096 both are below what one can measure.
PANEL = 4096
#: Numbers of queries, of keys and of value rows whose multiples make matrix products fastest: tiles
#: of their inner loops with AVX2 and AVX-512.
QUERY_TILE, KEY_TILE, VALUE_TILE = 48, 16, 4


class BlockShape(NamedTuple):
    """Queries and keys whose logits are held at a time."""

    queries: int
    keys: int


class Step(NamedTuple):
    """One block of keys, as a range of the keys that may be attended.

    ``hidden`` says that some queries may not attend some of these keys, ``flush`` that the working
    sums go to the float64 ones afterwards, ``sizes`` which sizes are complete afterwards.
    """

    start: int
    stop: int
    hidden: bool
    flush: bool
    sizes: tuple[int, ...]


@dataclass(frozen=True)
class BlockPlan:
    """The work for one block of queries.

    ``counts[j]`` is the number of the block's queries that belong to size ``j``; queries are in the
    order of their positions, so that these are the first ones.
    """

    rows: slice
    steps: tuple[Step, ...]
    counts: tuple[int, ...]


def default_shape(device: object, dtype: str, kernel: Kernel | None) -> BlockShape:
    """A block that stays in the caches of a core, or one that fills a GPU.

    It must not depend on the number of threads: results would then depend on it too.
    """
    if not on_processor(device):
        return BlockShape(4096, 4096)
    if kernel is not None:
        return BlockShape(1008, 252)
    return BlockShape(768, 384) if dtype == "float32" else BlockShape(512, 256)


def even_ranges(start: int, stop: int, longest: int, tile: int) -> list[tuple[int, int]]:
    """Cut a range into the fewest pieces of at most ``longest``, about equal.

    All but the last are multiples of ``tile`` where ``longest`` is.
    """
    pieces = -(-(stop - start) // longest)
    if not pieces:
        return []
    even = -(-(stop - start) // pieces)
    even = min(-(-even // tile) * tile, longest)
    return list(pairwise([*range(start, stop, even), stop]))


def key_steps(ends: Sequence[int | None], visible: int, shape: BlockShape) -> tuple[Step, ...]:
    """Cut the keys at the sizes.

    Parameters
    ----------
    ends
        Number of keys at each size, not decreasing; ``None`` for a size that needs no output.
    visible
        Number of keys that every query of the block may attend; the rest are partly hidden.
    shape
        At most ``shape.keys`` keys make a step.
    """
    wanted = [end for end in ends if end is not None]
    cuts = sorted({*wanted, min(visible, wanted[-1])} - {0})
    steps: list[Step] = []
    start = unflushed = 0
    for cut in cuts:
        done = tuple(j for j, end in enumerate(ends) if end == cut)
        for low, high in even_ranges(start, cut, shape.keys, KEY_TILE):
            unflushed += high - low
            last = high == cut
            flush = unflushed >= PANEL or (last and bool(done))
            steps.append(Step(low, high, low >= visible, flush, done if last else ()))
            unflushed = 0 if flush else unflushed
        start = cut
    return tuple(steps)


# One head made ready for a pass: centred, cast, and stripped of what is masked.


@dataclass(frozen=True)
class PassOptions:
    """Options of a pass, the same for every head.

    ``relative`` are the scales divided by the largest one, in increasing order, and ``bits`` what
    multiplies ``<q, k>`` to give the logit of the largest scale in powers of two: ``exp2`` is twice
    as fast as ``exp``.
    """

    sizes: tuple[int, ...]
    relative: tuple[float, ...]
    bits: float
    shape: BlockShape
    dtype: str
    causal: bool
    separate: bool
    participation: bool
    largest: bool
    received: tuple[int, ...]
    kernel: Kernel | None  # the compiled one, if it is to do the work
    workspace: Workspace
    outputs: bool = False  # whether outputs are kept, instead of their moments


@dataclass(frozen=True, eq=False)
class RawHead:
    """One head as the caller gave it; ``index`` is its place among the heads, for messages."""

    index: tuple[int, ...]
    q: AnyArray
    k: AnyArray
    v: AnyArray
    limit: AnyArray | None
    key_mask: AnyArray | None
    query_mask: AnyArray | None


class Packed(NamedTuple):
    """Centred keys and values in the layout of the compiled kernel; what was seen on the way."""

    keys: AnyArray
    values: AnyArray
    longest_key: float
    largest_value: float


@dataclass(frozen=True, eq=False)
class ReadyHead:
    """One head in working precision.

    Keys and values are centred: it changes no attention weight and makes the logits smaller, and it
    protects the covariance. Masked tokens are left out; positions are places among all tokens.
    ``packed`` is for the compiled kernel, ``keys`` and ``values`` are for PyTorch, made when used;
    ``k`` and ``v`` are what was given, ``key_centre`` and ``centre`` what is subtracted.
    """

    q: AnyArray
    k: AnyArray
    v: AnyArray
    key_centre: AnyArray
    centre: AnyArray
    dtype: str
    limit: AnyArray | None
    query_positions: NDArray[np.int64]
    key_positions: NDArray[np.int64]
    packed: Packed | None

    @cached_property
    def keys(self) -> AnyArray:
        """Centred keys and a column of ones, through which a shift of the logits costs nothing."""
        n, d = self.k.shape
        keys = full(self.k, n, d + 1, value=1.0, dtype=self.dtype)
        library(keys).subtract(self.k, self.key_centre, out=keys[:, :-1])
        return keys

    @cached_property
    def values(self) -> AnyArray:
        """Values transposed, with a row of ones, through which the sum of weights costs little.

        Rows of zeros fill it up to a multiple of a tile.
        """
        n, d = self.v.shape
        rows = -(-(d + 1) // VALUE_TILE) * VALUE_TILE
        values = zeros(self.v, rows, n, dtype=self.dtype)
        library(values).subtract(self.v.T, self.centre[:, None], out=values[:d])
        values[d] = 1.0
        return values

    @cached_property
    def longest_key(self) -> float:
        """Length of the longest key."""
        if self.packed is not None:
            return self.packed.longest_key
        keys = self.keys[:, :-1]
        return math.sqrt(float((keys * keys).sum(1).max()))

    @cached_property
    def largest_value(self) -> float:
        """Largest distance of an entry of the values from their mean."""
        if self.packed is not None:
            return self.packed.largest_value
        values = self.values[: len(self.centre)]
        return max(float(values.max()), -float(values.min()))

    @cached_property
    def key_covariance(self) -> AnyArray:
        """Of the keys; needed only where the longest key says too little about the logits."""
        centred = self.keys[:, :-1]
        return centred.T @ centred / len(centred)

    def plans(self, options: PassOptions) -> Iterator[BlockPlan]:
        """The blocks of queries, with their keys cut at the sizes."""
        sizes = np.asarray(options.sizes)
        ends = np.searchsorted(self.key_positions, sizes)
        queries = len(self.query_positions)
        for start, stop in even_ranges(0, queries, options.shape.queries, QUERY_TILE):
            at = self.query_positions[start:stop]
            if options.separate:
                counts = np.full(len(sizes), stop - start)
            else:
                counts = np.searchsorted(at, sizes)
            visible, last = int(ends[-1]), int(ends[-1])
            if options.causal:
                visible, last = (
                    int(i) for i in np.searchsorted(self.key_positions, at[[0, -1]], side="right")
                )
            if not counts[-1]:
                continue
            wanted = [min(int(e), last) if c else None for e, c in zip(ends, counts, strict=True)]
            steps = key_steps(wanted, visible, options.shape)
            yield BlockPlan(slice(start, stop), steps, tuple(int(c) for c in counts))


def make_ready(raw: RawHead, options: PassOptions) -> ReadyHead:
    """Check the entries of one head and bring it into working form."""
    for name, array in (("q", raw.q), ("k", raw.k), ("v", raw.v), ("limit", raw.limit)):
        if array is not None:
            _check_finite(array, name, raw.index)
    n = options.sizes[-1]
    kept_keys = _kept(raw.key_mask, n)
    kept_queries = _kept(raw.query_mask, len(raw.q) if options.separate else n)
    _check_attended(kept_queries, kept_keys, options, raw.index)
    q, limit = raw.q[: len(raw.q) if options.separate else n], raw.limit
    k, v = raw.k[:n], raw.v[:n]
    if raw.query_mask is not None:
        chosen = numbers(q, kept_queries, "int64")
        q, limit = q[chosen], None if limit is None else limit[:, chosen]
    if raw.key_mask is not None:
        chosen = numbers(k, kept_keys, "int64")
        k, v = k[chosen], v[chosen]
    # any centre will do; subtracted in the wider of the two types, it costs one rounding
    key_centre, centre = _centre(k, options), _centre(v, options)
    packed = None
    if options.kernel is not None:
        keys, longest = options.kernel.pack_keys(k, key_centre)
        values, largest = options.kernel.pack_values(v, centre)
        packed = Packed(keys, values, longest, largest)
    head = ReadyHead(
        q=q,
        k=k,
        v=v,
        key_centre=key_centre,
        centre=centre,
        dtype=options.dtype,
        limit=limit,
        query_positions=kept_queries,
        key_positions=kept_keys,
        packed=packed,
    )
    _check_range(head, raw.index)
    return head


def _kept(mask: AnyArray | None, n: int) -> NDArray[np.int64]:
    """Positions that a mask leaves among the first ``n``."""
    if mask is None:
        return np.arange(n, dtype=np.int64)
    return np.flatnonzero(on_host(mask[:n])).astype(np.int64)


def _centre(x: AnyArray, options: PassOptions) -> AnyArray:
    """Mean of the rows; in float64 if their sum overflows in the type of the arithmetic."""
    wide, of = wider(x, options.dtype), library(x)
    centre = x.mean(0, dtype=getattr(of, wide))
    return centre if _finite(centre) else cast(x.mean(0, dtype=of.float64), wide)


def _check_range(head: ReadyHead, index: tuple[int, ...]) -> None:
    """Refuse values so large that their weighted sums may overflow."""
    most = 1e20 if head.dtype == "float32" else 1e200
    if not head.largest_value <= most:
        of_head = f" of head {index}" if index else ""
        raise InputError(
            f"v{of_head} has entries {head.largest_value:.3g} away from their mean, too far for "
            f"{head.dtype}; divide v by a constant or pass dtype=torch.float64"
        )


def _finite(x: AnyArray) -> bool:
    """Tell if the sum is: it hides nothing that is not finite, but it may overflow itself."""
    return bool(library(x).isfinite(x.sum()))


def _check_finite(array: AnyArray, name: str, head: tuple[int, ...]) -> None:
    if _finite(array):
        return
    good = library(array).isfinite(array)
    if not bool(good.all()):
        place = tuple(int(i) for i in library(array).argwhere(~good)[0])
        of_head = f" of head {head}" if head else ""
        raise InputError(
            f"{name} is not finite: entry {place}{of_head} is {float(array[place])}; "
            "hide padding with key_mask and query_mask, and put a number in its place"
        )


def _check_attended(
    queries: NDArray[np.int64],
    keys: NDArray[np.int64],
    options: PassOptions,
    head: tuple[int, ...],
) -> None:
    """Refuse a query that may attend nothing: its softmax is 0/0."""
    of_head = f" of head {head}" if head else ""
    smallest = options.sizes[0]
    if not options.separate and (not len(queries) or queries[0] >= smallest):
        raise InputError(
            f"query_mask{of_head} leaves no query among the first {smallest} tokens; "
            "start sizes higher or keep more queries"
        )
    if not len(queries):
        raise InputError(f"query_mask{of_head} leaves no query")
    if not len(keys) or keys[0] >= smallest:
        raise InputError(
            f"key_mask{of_head} leaves no key among the first {smallest}, so that attention over "
            "that size is not defined; start sizes higher or keep more keys"
        )
    if options.causal and queries[0] < keys[0]:
        raise InputError(
            f"query {int(queries[0])}{of_head} may attend nothing: the first key that key_mask "
            f"leaves is {int(keys[0])} and causal hides it; leave such queries out with query_mask"
        )
