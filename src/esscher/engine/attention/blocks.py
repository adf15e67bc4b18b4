"""Planning: which queries are worked on together, and where their keys are cut."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import NamedTuple

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
