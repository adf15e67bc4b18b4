"""One block of queries streamed past all keys, the outputs handed over at every size.

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
from collections.abc import Callable
from typing import NamedTuple

from esscher.engine.attention.arrays import AnyArray, full, numbers
from esscher.engine.attention.blocks import BlockPlan, Head, PassOptions, Step


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

#: Takes the place of a size, the outputs of the block's queries there less the centre of the
#: values, [scale, d_v, query] in float64, and their sums over the queries. They are valid until
#: the next keys are weighed.
Fold = Callable[[int, AnyArray, AnyArray], None]


class Stream(ABC):
    """The state of one block of queries on its way along the keys.

    A subclass adds to ``total``, ``[scale, row, query]``, whose last row is the sum of weights, and
    to ``squares``, sums of squared weights, if the options say so. It may give both more queries
    than the block has.
    """

    def __init__(
        self, head: Head, plan: BlockPlan, options: PassOptions, *, queries: int, shifted: bool
    ) -> None:
        self.head, self.plan, self.options = head, plan, options
        self.shifted = shifted
        self.limits = RANGES[options.dtype]
        scales = len(options.relative)
        self.total = self.working("total", scales, len(head.centre) + 1, queries, dtype="float64")
        self.total[...] = 0.0
        self.squares = full(head.q, scales, queries, value=0.0, dtype="float64")
        self.relative = numbers(head.q, options.relative, "float64")

    def working(self, name: str, *shape: int, dtype: str | None = None) -> AnyArray:
        """An array of the thread's workspace, of the type of the arithmetic unless told."""
        workspace, like = self.options.workspace, self.head.q
        return workspace.empty(name, like, *shape, dtype=dtype or self.options.dtype)

    def run(self, fold: Fold) -> bool:
        """Weigh all keys, and hand over the outputs; False where a shift would have been needed."""
        for step in self.plan.steps:
            self.weigh(step)
            if step.size is not None:
                outputs, sums, sound = self.outputs(self.plan.counts[step.size])
                if not (self.shifted or sound):
                    return False
                fold(step.size, outputs, sums)
        return True

    def participation(self) -> AnyArray:
        """``1 / sum_j p_j^2`` over all keys of each query of the block, [scale, query]."""
        count = self.plan.counts[-1]
        total = self.total[:, -1, :count]
        return total * total / self.squares[:, :count]

    @abstractmethod
    def weigh(self, step: Step) -> None:
        """Weigh a block of keys; if it completes a size, all weighed so far is in ``total``."""

    @abstractmethod
    def outputs(self, count: int) -> tuple[AnyArray, AnyArray, bool]:
        """Outputs of the first ``count`` queries, and their sums, as for :data:`Fold`.

        Also whether all is finite, and all sums of weights in the range of unshifted ones.
        """

    @abstractmethod
    def received(self) -> AnyArray:
        """Attention that all keys receive from the block's queries at the one scale, [key].

        The weight of a key depends on the sum over all keys, which is known only at the end: so the
        keys are streamed past the block again, which costs the logits and the exponentials.
        """
