"""Heads in working form, and the blocks that their queries and keys are cut into."""

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
    dtype_of,
    full,
    library,
    numbers,
    on_host,
    type_name,
)
from esscher.engine.attention.compiled.kernel import Kernel

#: Keys whose float32 sums are kept before they are added to the float64 ones. Rounding grows with
#: this number, the cost of adding falls with it; at 4,096 both are below what one can measure.
PANEL = 4096
#: Numbers of queries, of keys and of value rows whose multiples make matrix products fastest: tiles
#: of their inner loops with AVX2 and AVX-512.
QUERY_TILE, KEY_TILE, VALUE_TILE = 48, 16, 4


@dataclass(frozen=True)
class PassOptions:
    """Options of a pass, the same for every head.

    Attributes
    ----------
    sizes
        Numbers of keys n, increasing.
    order
        Places of the caller's scales, smallest scale first: the order in which the pass has them.
    relative
        The scales in that order, divided by the largest one.
    bits
        What multiplies ``<q, k>`` to give the logit of the largest scale in powers of two: ``exp2``
        is twice as fast as ``exp``.
    block
        Queries and keys whose logits are held at a time.
    dtype
        Type of the arithmetic inside a block.
    separate
        Whether all queries attend at every size, instead of the first n.
    squares
        Whether squared weights are summed, too; only with one scale.
    kernel
        The compiled one, if it is to do the work.
    workspace
        Memory of each thread.
    """

    sizes: tuple[int, ...]
    order: tuple[int, ...]
    relative: tuple[float, ...]
    bits: float
    block: tuple[int, int]
    dtype: str
    separate: bool
    squares: bool
    kernel: Kernel | None
    workspace: Workspace


@dataclass(frozen=True, eq=False)
class Head:
    """One head in working precision.

    Keys and values are centred: it changes no attention weight and makes the logits smaller, and it
    protects the covariance. Masked queries are left out.

    Attributes
    ----------
    q, k, v, limit
        As they were given.
    positions
        Places of the queries among all tokens.
    key_centre, centre
        What is subtracted from keys and from values.
    dtype
        Type of the arithmetic.
    keys, values
        Both centred, in the layout of who does the work: the compiled kernel's, or
        :func:`centred_keys` and :func:`centred_values`.
    longest_key
        Length of the longest centred key.
    """

    q: AnyArray
    k: AnyArray
    v: AnyArray
    limit: AnyArray | None
    positions: NDArray[np.int64]
    key_centre: AnyArray
    centre: AnyArray
    dtype: str
    keys: AnyArray
    values: AnyArray
    longest_key: float

    @cached_property
    def key_covariance(self) -> AnyArray:
        """Of the keys; needed only where the longest key says too little about the logits."""
        centred = centred_keys(self.k, self.key_centre, self.dtype)[:, :-1]
        return centred.T @ centred / len(centred)


def centred_keys(k: AnyArray, centre: AnyArray, dtype: str) -> AnyArray:
    """Keys less their centre, and a column of ones, through which a shift of the logits is free."""
    keys = full(k, len(k), k.shape[1] + 1, value=1.0, dtype=dtype)
    library(keys).subtract(k, centre, out=keys[:, :-1])
    return keys


def centred_values(v: AnyArray, centre: AnyArray, dtype: str) -> AnyArray:
    """Values less their centre, transposed, and a row of ones that sums the weights.

    Rows of zeros fill it up to a multiple of a tile.
    """
    n, d = v.shape
    rows = -(-(d + 1) // VALUE_TILE) * VALUE_TILE
    values = full(v, rows, n, value=0.0, dtype=dtype)
    library(values).subtract(v.T, centre[:, None], out=values[:d])
    values[d] = 1.0
    return values


def make_ready(
    q: AnyArray,
    k: AnyArray,
    v: AnyArray,
    limit: AnyArray | None,
    query_mask: AnyArray | None,
    options: PassOptions,
) -> Head:
    """Bring one head into working form.

    Parameters
    ----------
    q, k, v
        [tokens, d]; only the first ones are used, up to the largest size.
    limit
        [1 or scale, query, d_v], scales in the caller's order.
    query_mask
        Which queries count, [query].
    options
        Of the pass.
    """
    n, of = options.sizes[-1], library(q)
    for name, array in (("q", q), ("k", k), ("v", v), ("limit", limit)):
        # the sum hides nothing that is not finite, but it may overflow itself
        if array is not None and not of.isfinite(array.sum()) and not of.isfinite(array).all():
            raise InputError(f"{name} is not finite; hide padding with query_mask, and put 0 there")
    q, k, v = q if options.separate else q[:n], k[:n], v[:n]
    positions = np.arange(len(q), dtype=np.int64)
    if query_mask is not None:
        positions = np.flatnonzero(on_host(query_mask[: len(q)])).astype(np.int64)
        if not len(positions) or (not options.separate and positions[0] >= options.sizes[0]):
            raise InputError(
                f"query_mask leaves no query among the first {options.sizes[0]} tokens; "
                "start sizes higher or keep more queries"
            )
        chosen = numbers(q, positions, "int64")
        q, limit = q[chosen], None if limit is None else limit[:, chosen]
    if limit is not None and len(limit) > 1 and options.order != tuple(sorted(options.order)):
        limit = limit[list(options.order)]  # large: copied only if the order changes
    # any centre will do; subtracted in the wider of the two types, it costs one rounding
    centres = []
    for x in (k, v):
        wide = type_name(of.promote_types(x.dtype, dtype_of(x, options.dtype)))
        centre = x.mean(0, dtype=dtype_of(x, wide))
        if not of.isfinite(centre.sum()):  # the sum overflows, not the mean
            centre = cast(x.mean(0, dtype=of.float64), wide)
        centres.append(centre)
    if options.kernel is not None:
        keys, longest = options.kernel.pack_keys(k, centres[0])
        values, largest = options.kernel.pack_values(v, centres[1])
    else:
        keys = centred_keys(k, centres[0], options.dtype)
        longest = math.sqrt(float((keys[:, :-1] * keys[:, :-1]).sum(1).max()))
        values = centred_values(v, centres[1], options.dtype)
        deviations = values[: v.shape[1]]
        largest = max(float(deviations.max()), -float(deviations.min()))
    if not largest <= (1e20 if options.dtype == "float32" else 1e200):  # weighted sums overflow
        raise InputError(
            f"v has entries {largest:.3g} away from their mean, too far for {options.dtype}; "
            "divide v by a constant or pass dtype='float64'"
        )
    return Head(
        q=q,
        k=k,
        v=v,
        limit=limit,
        positions=positions,
        key_centre=centres[0],
        centre=centres[1],
        dtype=options.dtype,
        keys=keys,
        values=values,
        longest_key=longest,
    )


class Step(NamedTuple):
    """One block of keys.

    ``flush`` says that the working sums go to the float64 ones afterwards, ``size`` which size is
    complete afterwards, by its place.
    """

    start: int
    stop: int
    flush: bool
    size: int | None


class BlockPlan(NamedTuple):
    """The work for one block of queries.

    ``counts[j]`` is the number of the block's queries that belong to size ``j``; queries are in the
    order of their positions, so that these are the first ones.
    """

    rows: slice
    steps: tuple[Step, ...]
    counts: tuple[int, ...]


def block_plans(head: Head, options: PassOptions) -> Iterator[BlockPlan]:
    """The blocks of queries, with their keys cut at the sizes."""
    for start, stop in even_ranges(0, len(head.positions), options.block[0], QUERY_TILE):
        counts = (stop - start,) * len(options.sizes)
        if not options.separate:
            places = np.searchsorted(head.positions[start:stop], options.sizes)
            counts = tuple(int(place) for place in places)
        steps = key_steps(options.sizes, counts, options.block[1])
        yield BlockPlan(slice(start, stop), steps, counts)


def even_ranges(start: int, stop: int, longest: int, tile: int) -> list[tuple[int, int]]:
    """Cut a range into the fewest pieces of at most ``longest``, about equal.

    All but the last are multiples of ``tile`` where ``longest`` is.
    """
    pieces = -(-(stop - start) // longest)
    even = -(-(stop - start) // pieces)
    even = min(-(-even // tile) * tile, longest)
    return list(pairwise([*range(start, stop, even), stop]))


def key_steps(sizes: Sequence[int], counts: Sequence[int], longest: int) -> tuple[Step, ...]:
    """Cut the keys into steps of at most ``longest``, and at every size that has queries."""
    steps: list[Step] = []
    start = unflushed = 0
    for j, (size, count) in enumerate(zip(sizes, counts, strict=True)):
        if not count:
            continue
        for low, high in even_ranges(start, size, longest, KEY_TILE):
            unflushed += high - low
            flush = high == size or unflushed >= PANEL
            steps.append(Step(low, high, flush, j if high == size else None))
            unflushed = 0 if flush else unflushed
        start = size
    return tuple(steps)
