"""One block of queries streamed past all keys, outputs folded in at every size.

Logits of a block of keys are computed transposed (keys x queries), in powers of two. A query's
weights are ``2^(logit - shift)``. The shift is

* 0 when the logits are expected to stay within what the exponent of a float can hold, which is
  checked afterwards on the sums (nothing has overflowed or vanished), else
* a running one: the largest logit of the first keys, raised when a later one passes it by
  ``Range.headroom`` bits. This is right for logits of any size, and slower.

How a block of keys is weighed and summed is left to subclasses.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from dataclasses import dataclass
from functools import partial
from typing import NamedTuple, Protocol

from esscher.engine.attention.arrays import (
    AnyArray,
    cast,
    copied,
    full,
    library,
    numbers,
    sum_of_squares,
    zeros,
)
from esscher.engine.attention.blocks import BlockPlan, PassOptions, ReadyHead, Step


class Range(NamedTuple):
    """Bits of exponent that a type can be trusted with, so that no sum overflows."""

    headroom: float  # a weight may exceed 1 by this much, its square still being summable
    floor: float  # smaller weights are raised to it: cheaper than subnormal numbers, and negligible
    plain: float  # logits expected within this need no shift
    plain_squares: float  # the same when squared weights are summed
    smallest: float  # a sum of unshifted weights below this many bits may have lost digits
    largest: float  # and above this many bits


RANGES = {
    "float32": Range(40.0, -60.0, 90.0, 42.0, -30.0, 115.0),
    "float64": Range(300.0, -400.0, 700.0, 400.0, -300.0, 900.0),
}


@dataclass(frozen=True, eq=False)
class Normaliser:
    """Minus the shift (queries) and sum of weights (scales, queries) when a size was passed."""

    lowered: AnyArray
    total: AnyArray
    shifted: bool


@dataclass(frozen=True, eq=False)
class BlockSums:
    """Sums over the queries of one block, axes [scale, size, ...], relative to the centre.

    ``outputs`` are those of the first scale by size, [query, d_v], where they are kept; there are
    no moments then.
    """

    first: AnyArray
    second: AnyArray
    square: AnyArray
    participation: AnyArray | None
    largest: AnyArray | None
    normalisers: dict[int, Normaliser]
    outputs: dict[int, AnyArray]


class Stream(ABC):
    """The state of one block of queries on its way along the keys.

    A subclass adds to ``total``, ``[scale, row, query]``, whose last row is the sum of weights, and
    keeps ``squares`` (sums of squared weights) and ``peak`` (largest shifted logit) up to date
    where they are asked for. It may give all three more queries than the block has.
    """

    def __init__(
        self,
        head: ReadyHead,
        plan: BlockPlan,
        options: PassOptions,
        *,
        queries: int,
        shifted: bool,
    ) -> None:
        self.head, self.plan, self.options = head, plan, options
        self.shifted = shifted
        self.limits = RANGES[options.dtype]
        scales, sizes, d = len(options.relative), len(options.sizes), len(head.centre)
        wide = partial(zeros, head.q, dtype="float64")
        self.total = self.working("total", scales, d + 1, queries, dtype="float64")
        self.total[...] = 0.0
        self.squares = wide(scales, queries)
        self.peak = full(head.q, queries, value=-math.inf, dtype=options.dtype)
        self.relative = numbers(head.q, options.relative, "float64")
        per_query = (scales, sizes, plan.rows.stop - plan.rows.start)
        self.sums = BlockSums(
            first=wide(scales, sizes, d),
            second=wide(scales, sizes, d, d),
            square=wide(scales, sizes),
            participation=wide(*per_query) * math.nan if options.participation else None,
            largest=wide(*per_query) * math.nan if options.largest else None,
            normalisers={},
            outputs={},
        )

    def working(self, name: str, *shape: int, dtype: str | None = None) -> AnyArray:
        """An array of the thread's workspace, of the type of the arithmetic unless told."""
        workspace, like = self.options.workspace, self.head.q
        return workspace.empty(name, like, *shape, dtype=dtype or self.options.dtype)

    @abstractmethod
    def weigh(self, step: Step) -> None:
        """Weigh a block of keys; if it completes a size, all weighed so far is in ``total``."""

    @abstractmethod
    def lowered(self) -> AnyArray:
        """Minus the shift of every query, a copy."""

    @abstractmethod
    def outputs(self, count: int) -> tuple[AnyArray, AnyArray, bool]:
        """Outputs of the first ``count`` queries [scale, row, query], and their sums over queries.

        Also whether all is finite, and all sums of weights in the range of unshifted ones.
        """

    def run(self) -> BlockSums | None:
        """All keys; ``None`` if a shift would have been needed."""
        for step in self.plan.steps:
            self.weigh(step)
            for size in step.sizes:
                if not self._fold(size):
                    return None
        return self.sums

    def _fold(self, size: int) -> bool:
        """Add the outputs at one size to its sums; return whether they can be trusted."""
        count = self.plan.counts[size]
        outputs, first, sound = self.outputs(count)
        if not self.shifted and not sound:
            return False
        sums, of = self.sums, library(outputs)
        if self.options.outputs:
            whole = outputs[0].swapaxes(0, 1) + self.head.centre
            sums.outputs[size] = cast(whole, "float32")
        else:
            self._add_moments(size, count, outputs, first)
        total = self.total[:, -1]
        if sums.participation is not None:
            weights, squares = total[:, :count], self.squares[:, :count]
            sums.participation[:, size, :count] = weights * weights / squares
        if sums.largest is not None:
            peak = of.exp2(self.relative[:, None] * cast(self.peak[:count], "float64"))
            sums.largest[:, size, :count] = peak / total[:, :count]
        if size in self.options.received:
            queries = self.plan.rows.stop - self.plan.rows.start
            normaliser = Normaliser(self.lowered(), copied(total[:, :queries]), self.shifted)
            sums.normalisers[size] = normaliser
        return True

    def _add_moments(self, size: int, count: int, outputs: AnyArray, first: AnyArray) -> None:
        """Moments of the outputs at one size, and their distance from the limit."""
        sums, of = self.sums, library(outputs)
        sums.first[:, size] = first
        of.matmul(outputs, outputs.swapaxes(1, 2), out=sums.second[:, size])
        if self.head.limit is not None:
            limit = cast(self.head.limit[:, self.plan.rows][:, :count], "float64")
            error = self.working("error", *outputs.shape, dtype="float64")
            exact = (limit - cast(self.head.centre, "float64")).swapaxes(1, 2)
            of.subtract(outputs, exact, out=error)
            sums.square[:, size] = sum_of_squares(error)


class Received(Protocol):
    """One block of queries, asked again what it gives to keys."""

    def give(self, start: int, stop: int, lowered: AnyArray | None, factors: AnyArray) -> AnyArray:
        """Attention that keys ``start`` to ``stop`` receive, [scale, size, key].

        Parameters
        ----------
        start, stop
            Of the keys; steps of the plan end there.
        lowered
            Minus the shift of every query; ``None`` for no shift.
        factors
            [scale, query, size] of a weight that is so shifted.
        """
