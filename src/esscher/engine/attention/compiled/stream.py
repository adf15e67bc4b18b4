"""The stream by the compiled kernel: float32 on a processor it was compiled for."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from esscher.engine.attention.arrays import AnyArray, address, empty, numbers, zeros
from esscher.engine.attention.blocks import PANEL, BlockPlan, PassOptions, ReadyHead, Step
from esscher.engine.attention.compiled.kernel import FLOAT, KEYS, Pass
from esscher.engine.attention.stream import Stream

#: Bytes of working sums, so that they stay in a core's second-level cache.
PART = 192 * 1024
#: Weights of one call, about a quarter of a second: a signal waits for it.
CALL = 100_000_000


class Prepared(NamedTuple):
    """A pass over the keys of a head, ready but for what it is to sum.

    ``kept`` are the arrays whose addresses it holds: they must live as long as it is used.
    """

    state: Pass
    kept: tuple[AnyArray | None, ...]


def prepare(head: ReadyHead, plan: BlockPlan, options: PassOptions, tilts: AnyArray) -> Prepared:
    """Keys, tilts (packed), scales and what is hidden, for one block of queries."""
    assert head.packed is not None
    panels, width, panel = tilts.shape
    queries = panels * panel
    visible = _visible_keys(head, plan, queries) if options.causal else None
    relative = numbers(tilts, options.relative, FLOAT)
    room = 2 * panel * (options.shape.keys + 2 * KEYS)
    scratch = options.workspace.empty("scratch", tilts, room, dtype=FLOAT)
    state = Pass(
        keys=address(head.packed.keys),
        tilts=address(tilts),
        relative=address(relative),
        visible=None if visible is None else address(visible),
        scratch=address(scratch),
        all_keys=len(head.key_positions),
        width=width,
        queries=queries,
        scales=len(relative),
        block=options.shape.keys,
    )
    return Prepared(state, (head.packed.keys, tilts, relative, visible, scratch))


def _visible_keys(head: ReadyHead, plan: BlockPlan, queries: int) -> AnyArray:
    """How many keys each query of a block may attend: those up to its own position.

    There may be more queries than the block has, as padding.
    """
    visible = np.full(queries, len(head.key_positions), dtype=np.int32)
    at = head.query_positions[plan.rows]
    visible[: len(at)] = np.searchsorted(head.key_positions, at, side="right")
    return numbers(head.q, visible, "int32")


class CompiledStream(Stream):
    """Arrays are padded to whole panels of queries; queries that are not there are zero tilts."""

    def __init__(
        self,
        head: ReadyHead,
        plan: BlockPlan,
        options: PassOptions,
        tilts: AnyArray,
        *,
        shifted: bool,
    ) -> None:
        assert head.packed is not None
        assert options.kernel is not None
        self.state, self.kept = prepare(head, plan, options, tilts)
        panel, queries = tilts.shape[2], self.state.queries
        super().__init__(head, plan, options, queries=queries, shifted=shifted)
        self.kernel = options.kernel
        self.done = 0
        scales, rows = len(options.relative), len(head.centre)
        fitting = PART // (4 * scales * (rows + 1) * panel)
        group = min(max(fitting, 1) * panel, queries)
        self.part = self.working("part", scales, rows + 1, group)
        self.shift = zeros(tilts, queries if shifted else 0, dtype=FLOAT)
        state = self.state
        state.values = address(head.packed.values)
        state.part = address(self.part)
        state.total = address(self.total)
        state.squares = address(self.squares) if options.participation else None
        state.shift = address(self.shift) if shifted else None
        state.peak = address(self.peak) if options.largest else None
        state.rows, state.group, state.flush = rows, group, PANEL
        state.headroom = self.limits.headroom

    def lowered(self) -> AnyArray:
        """Minus the shift."""
        queries = self.plan.rows.stop - self.plan.rows.start
        return -self.shift[:queries] if self.shifted else zeros(self.total, queries, dtype=FLOAT)

    def weigh(self, step: Step) -> None:
        """Nothing until a size is complete: the kernel cuts the keys into blocks itself."""
        weights = (step.stop - self.done) * self.total.shape[2] * len(self.total)
        if step.sizes or weights >= CALL:
            self.kernel.attend(self.state, self.done, step.stop)
            self.done = step.stop

    def outputs(self, count: int) -> tuple[AnyArray, AnyArray, bool]:
        """Outputs of the first ``count`` queries, and their sums."""
        scales, rows = self.total.shape[0], self.total.shape[1] - 1
        outputs = self.working("outputs", scales, rows, count, dtype="float64")
        sums = empty(outputs, scales, rows, dtype="float64")
        least, most = 2.0**self.limits.smallest, 2.0**self.limits.largest
        sound = self.kernel.outputs(self.state, least, most, outputs, sums)
        return outputs, sums, sound


class CompiledReceived:
    """One block of queries, asked again what it gives to keys."""

    def __init__(self, head: ReadyHead, plan: BlockPlan, options: PassOptions) -> None:
        assert options.kernel is not None
        self.kernel, self.workspace = options.kernel, options.workspace
        tilts, _ = self.kernel.pack_queries(head.q[plan.rows], options.bits, self.workspace)
        self.state, self.kept = prepare(head, plan, options, tilts)

    def give(self, start: int, stop: int, lowered: AnyArray | None, factors: AnyArray) -> AnyArray:
        """Attention that keys receive: see :class:`~esscher.engine.attention.stream.Received`."""
        shift = None
        if lowered is not None:
            shift = zeros(factors, self.state.queries, dtype=FLOAT)
            shift[: len(lowered)] = -lowered
        self.state.shift = None if shift is None else address(shift)
        scales, queries, sizes = factors.shape
        padded = zeros(factors, scales, sizes, self.state.queries, dtype=FLOAT)
        padded[:, :, :queries] = factors.swapaxes(1, 2)
        return self.kernel.received(self.state, start, stop, padded, self.workspace)
