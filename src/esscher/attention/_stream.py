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

from abc import ABC, abstractmethod
from dataclasses import dataclass
from typing import NamedTuple

import torch
from torch import Tensor

from esscher.attention._blocks import BlockPlan, Step
from esscher.attention._head import PassOptions, ReadyHead


class Range(NamedTuple):
    """Bits of exponent that a type can be trusted with, so that no sum overflows."""

    headroom: float  # a weight may exceed 1 by this much, its square still being summable
    floor: float  # smaller weights are raised to it: cheaper than subnormal numbers, and negligible
    plain: float  # logits expected within this need no shift
    plain_squares: float  # the same when squared weights are summed
    smallest: float  # a sum of unshifted weights below this many bits may have lost digits
    largest: float  # and above this many bits


RANGES = {
    torch.float32: Range(40.0, -60.0, 90.0, 42.0, -30.0, 115.0),
    torch.float64: Range(300.0, -400.0, 700.0, 400.0, -300.0, 900.0),
}


@dataclass(frozen=True, eq=False)
class Normaliser:
    """Minus the shift (queries) and sum of weights (scales, queries) when a size was passed."""

    lowered: Tensor
    total: Tensor
    shifted: bool


@dataclass(frozen=True, eq=False)
class BlockSums:
    """Sums over the queries of one block, axes [scale, size, ...], relative to the centre."""

    first: Tensor
    second: Tensor
    square: Tensor
    participation: Tensor | None
    largest: Tensor | None
    normalisers: dict[int, Normaliser]


class Stream(ABC):
    """The state of one block of queries on its way along the keys.

    ``part`` are working sums in the type of the arithmetic, ``[scale, row, query]`` with at least
    the rows of ``total``, to which they are added at flushes; the last of those is the sum of
    weights. A subclass may give ``part`` more rows or queries, and keeps ``squares`` (sums of
    squared weights) and ``peak`` (largest shifted logit) up to date where they are asked for.
    """

    part: Tensor

    def __init__(
        self,
        head: ReadyHead,
        plan: BlockPlan,
        options: PassOptions,
        tilts: Tensor,
        *,
        shifted: bool,
    ) -> None:
        self.head, self.plan, self.options = head, plan, options
        self.shifted = shifted
        self.limits = RANGES[options.dtype]
        self.fresh = True
        wide = torch.float64
        scales, sizes = len(options.relative), len(options.sizes)
        queries, d = tilts.shape[1], len(head.centre)
        self.total = tilts.new_zeros(scales, d + 1, queries, dtype=wide)
        self.squares = tilts.new_zeros(scales, queries, dtype=wide)
        self.peak = tilts.new_full((queries,), -torch.inf)
        self.relative = tilts.new_tensor(options.relative, dtype=wide)
        per_query = (scales, sizes, queries)
        self.sums = BlockSums(
            first=tilts.new_zeros(scales, sizes, d, dtype=wide),
            second=tilts.new_zeros(scales, sizes, d, d, dtype=wide),
            square=tilts.new_zeros(scales, sizes, dtype=wide),
            participation=(
                tilts.new_full(per_query, torch.nan, dtype=wide) if options.participation else None
            ),
            largest=tilts.new_full(per_query, torch.nan, dtype=wide) if options.largest else None,
            normalisers={},
        )

    @abstractmethod
    def weigh(self, step: Step) -> None:
        """Add the weights and weighted values of a block of keys to ``part``."""

    @abstractmethod
    def lowered(self) -> Tensor:
        """Minus the shift of every query, a copy."""

    def run(self) -> BlockSums | None:
        """All keys; ``None`` if a shift would have been needed."""
        for step in self.plan.steps:
            self.weigh(step)
            self.fresh = False
            if step.flush:
                self.total += self.part[:, : self.total.shape[1], : self.total.shape[2]]
                self.fresh = True
            for size in step.sizes:
                if not self._fold(size):
                    return None
        return self.sums

    def shrink_totals(self, rise: Tensor) -> Tensor:
        """Rescale what was summed under a shift lower by ``rise``; the factors [scale, query]."""
        # the first keys may lower the shift below 0, but then there is nothing to rescale yet
        smaller = torch.exp2(-self.relative[:, None] * rise.clamp_min(0.0))
        self.total *= smaller[:, None]
        self.squares *= smaller.square()
        return smaller

    def _fold(self, size: int) -> bool:
        """Add the outputs at one size to its sums; whether they can be trusted."""
        count = self.plan.counts[size]
        total = self.total[:, -1, :count]
        outputs = self.total[:, :-1, :count] / total[:, None]
        squares = self.squares[:, :count]
        first = outputs.sum(-1)
        if not self.shifted:
            # an overflow anywhere shows here as a number that is not finite
            sound = torch.isfinite(first.sum() + squares.sum())
            sound &= total.min() > 2.0**self.limits.smallest
            sound &= total.sum() < 2.0**self.limits.largest
            if not bool(sound):
                return False
        sums = self.sums
        sums.first[:, size] = first
        sums.second[:, size] = outputs @ outputs.mT
        if self.head.limit is not None:
            limit = self.head.limit[:, self.plan.rows][:, :count].to(torch.float64)
            error = outputs - (limit - self.head.centre).mT
            sums.square[:, size] = error.square().sum((1, 2))
        if sums.participation is not None:
            sums.participation[:, size, :count] = total.square() / squares
        if sums.largest is not None:
            peak = torch.exp2(self.relative[:, None] * self.peak[:count].to(torch.float64))
            sums.largest[:, size, :count] = peak / total
        if size in self.options.received:
            sums.normalisers[size] = Normaliser(
                self.lowered(), self.total[:, -1].clone(), self.shifted
            )
        return True
