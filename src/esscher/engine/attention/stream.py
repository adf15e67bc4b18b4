"""One block of queries streamed past all keys, the outputs handed over at every size.

Logits of a block of keys are computed transposed (keys x queries), in powers of two. A query's
weights are ``2^(logit - shift)``. The shift is

* 0 when the logits are expected to stay within what the exponent of a float can hold, which is
  checked afterwards on the sums (nothing has overflowed or vanished), else
* a running one: the largest logit of the first keys, raised when a later one passes it by
  ``Range.headroom`` bits. This is right for logits of any size, and slower.

How a block of keys is weighed and summed is left to subclasses: by the compiled kernel here, by
PyTorch in ``torch_stream.py``.
"""

from __future__ import annotations

import ctypes
from abc import ABC, abstractmethod
from collections.abc import Callable
from typing import NamedTuple

from esscher.engine.attention.arrays import AnyArray, address, empty, full, numbers
from esscher.engine.attention.blocks import PANEL, BlockPlan, Head, PassOptions, Step
from esscher.engine.attention.compiled.kernel import FLOAT, KEYS, Pass

#: Bytes of working sums, so that they stay in a core's second-level cache.
PART = 192 * 1024
#: Weights of one call, about a quarter of a second: a signal waits for it.
CALL = 100_000_000


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


class CompiledStream(Stream):
    """The stream by the compiled kernel: float32 on a processor it was compiled for.

    Arrays are padded to whole panels of queries; queries that are not there are zero tilts.
    """

    def __init__(
        self, head: Head, plan: BlockPlan, options: PassOptions, tilts: AnyArray, *, shifted: bool
    ) -> None:
        assert options.kernel is not None
        panels, width, panel = tilts.shape
        queries = panels * panel
        super().__init__(head, plan, options, queries=queries, shifted=shifted)
        self.library = options.kernel.library
        self.done = 0
        scales, rows = len(options.relative), len(head.centre)
        fitting = PART // (4 * scales * (rows + 1) * panel)
        group = min(max(fitting, 1) * panel, queries)
        # arrays whose addresses the state holds must live as long as it is used
        self.part = self.working("part", scales, rows + 1, group)
        self.shift = full(tilts, queries if shifted else 0, value=0.0, dtype=FLOAT)
        self.scratch = self.working("scratch", 2 * panel * (options.block[1] + 2 * KEYS))
        self.tilts, self.factors = tilts, numbers(tilts, options.relative, FLOAT)
        self.state = Pass(
            keys=address(head.keys),
            values=address(head.values),
            tilts=address(tilts),
            relative=address(self.factors),
            part=address(self.part),
            total=address(self.total),
            squares=address(self.squares) if options.squares else None,
            shift=address(self.shift) if shifted else None,
            scratch=address(self.scratch),
            all_keys=len(head.k),
            width=width,
            rows=rows,
            queries=queries,
            scales=scales,
            group=group,
            block=options.block[1],
            flush=PANEL,
            headroom=self.limits.headroom,
        )

    def weigh(self, step: Step) -> None:
        """Nothing until a size is complete: the kernel cuts the keys into blocks itself."""
        weights = (step.stop - self.done) * self.total.shape[2] * len(self.total)
        if step.size is not None or weights >= CALL:
            self.library.esscher_keys(ctypes.byref(self.state), self.done, step.stop)
            self.done = step.stop

    def outputs(self, count: int) -> tuple[AnyArray, AnyArray, bool]:
        """Outputs of the first ``count`` queries, and their sums."""
        scales, rows = self.total.shape[0], self.total.shape[1] - 1
        outputs = self.working("outputs", scales, rows, count, dtype="float64")
        sums = empty(outputs, scales, rows, dtype="float64")
        least, most = 2.0**self.limits.smallest, 2.0**self.limits.largest
        sound = self.library.esscher_outputs(
            ctypes.byref(self.state), count, least, most, address(outputs), address(sums)
        )
        return outputs, sums, bool(sound)

    def received(self) -> AnyArray:
        """Attention that all keys receive, [key]."""
        count, stop, panel = self.plan.counts[-1], self.plan.steps[-1].stop, self.tilts.shape[2]
        factors = full(self.tilts, self.state.queries, value=0.0, dtype=FLOAT)
        factors[:count] = 1.0 / self.total[0, -1, :count]
        room = self.working("room", self.state.block * panel // 2)
        received = empty(factors, stop, dtype="float64")
        self.library.esscher_received(
            ctypes.byref(self.state), 0, stop, 1, address(factors), address(room), address(received)
        )
        return received
