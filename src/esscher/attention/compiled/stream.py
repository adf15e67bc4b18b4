"""The stream by the compiled kernel: float32 on a processor it was compiled for."""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor

from esscher.attention._blocks import PANEL, BlockPlan, Step
from esscher.attention._head import PassOptions, ReadyHead
from esscher.attention._stream import Stream
from esscher.attention.compiled.kernel import FLOATS, KEYS, Pass

#: Bytes of working sums, so that they stay in a core's second-level cache.
PART = 192 * 1024
#: Weights of one call, about a quarter of a second: a signal waits for it.
CALL = 100_000_000


def visible_keys(head: ReadyHead, plan: BlockPlan, queries: int) -> Tensor:
    """How many keys each query of a block may attend: those up to its own position.

    There may be more queries than the block has, as padding.
    """
    visible = np.full(queries, len(head.key_positions), dtype=np.int32)
    at = head.query_positions[plan.rows]
    visible[: len(at)] = np.searchsorted(head.key_positions, at, side="right")
    return torch.from_numpy(visible).clone()  # which is aligned as the kernel wants it


class CompiledStream(Stream):
    """Arrays are padded to whole panels of queries; queries that are not there are zero tilts."""

    def __init__(
        self,
        head: ReadyHead,
        plan: BlockPlan,
        options: PassOptions,
        tilts: Tensor,
        *,
        shifted: bool,
    ) -> None:
        assert head.packed is not None
        assert options.kernel is not None
        panels, width, panel = tilts.shape
        super().__init__(head, plan, options, queries=panels * panel, shifted=shifted)
        self.kernel = options.kernel
        self.done = 0
        scales, rows, queries = len(options.relative), len(head.centre), panels * panel
        visible = visible_keys(head, plan, queries) if options.causal else None
        shift = torch.zeros(queries if shifted else 0, **FLOATS)
        relative = torch.tensor(options.relative, **FLOATS)
        scratch = self.working("scratch", 2 * panel * (options.shape.keys + 2 * KEYS))
        fitting = PART // (4 * scales * (rows + 1) * panel)
        group = min(max(fitting, 1) * panel, queries)
        part = self.working("part", scales, rows + 1, group)
        self.shift = shift
        # what the kernel is given addresses of must live as long as this object
        self.kept = (tilts, relative, visible, part, scratch)
        self.state = Pass(
            keys=head.packed.keys.data_ptr(),
            values=head.packed.values.data_ptr(),
            tilts=tilts.data_ptr(),
            relative=relative.data_ptr(),
            visible=None if visible is None else visible.data_ptr(),
            part=part.data_ptr(),
            total=self.total.data_ptr(),
            squares=self.squares.data_ptr() if options.participation else None,
            shift=shift.data_ptr() if shifted else None,
            peak=self.peak.data_ptr() if options.largest else None,
            scratch=scratch.data_ptr(),
            all_keys=len(head.key_positions),
            width=width,
            rows=rows,
            queries=queries,
            scales=scales,
            group=group,
            block=options.shape.keys,
            flush=PANEL,
            headroom=self.limits.headroom,
        )

    def lowered(self) -> Tensor:
        """Minus the shift."""
        queries = self.plan.rows.stop - self.plan.rows.start
        return -self.shift[:queries] if self.shifted else torch.zeros(queries, **FLOATS)

    def weigh(self, step: Step) -> None:
        """Nothing until a size is complete: the kernel cuts the keys into blocks itself."""
        weights = (step.stop - self.done) * self.total.shape[2] * len(self.total)
        if step.sizes or weights >= CALL:
            self.kernel.attend(self.state, self.done, step.stop)
            self.done = step.stop

    def outputs(self, count: int) -> tuple[Tensor, Tensor, bool]:
        """Outputs of the first ``count`` queries, and their sums."""
        scales, rows = self.total.shape[0], self.total.shape[1] - 1
        outputs = self.working("outputs", scales, rows, count, dtype=torch.float64)
        sums = outputs.new_empty(scales, rows)
        least, most = 2.0**self.limits.smallest, 2.0**self.limits.largest
        sound = self.kernel.outputs(self.state, least, most, outputs, sums)
        return outputs, sums, sound
