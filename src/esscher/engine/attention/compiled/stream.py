"""The stream by the compiled kernel: float32 on a processor it was compiled for."""

from __future__ import annotations

import ctypes

from esscher.engine.attention.arrays import AnyArray, address, empty, full, numbers
from esscher.engine.attention.blocks import PANEL, BlockPlan, Head, PassOptions, Step
from esscher.engine.attention.compiled.kernel import FLOAT, KEYS, Pass
from esscher.engine.attention.stream import Stream

#: Bytes of working sums, so that they stay in a core's second-level cache.
PART = 192 * 1024
#: Weights of one call, about a quarter of a second: a signal waits for it.
CALL = 100_000_000


class CompiledStream(Stream):
    """Arrays are padded to whole panels of queries; queries that are not there are zero tilts."""

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
