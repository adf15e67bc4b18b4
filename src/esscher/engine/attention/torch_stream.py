"""The stream in operations of PyTorch: any device, float32 and float64."""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor

from esscher.engine.attention.arrays import dtype_of
from esscher.engine.attention.blocks import BlockPlan, Head, PassOptions, Step
from esscher.engine.attention.stream import Stream


def block_tilts(head: Head, rows: slice, options: PassOptions) -> Tensor:
    """Tilts of a block in bits, transposed, above a row of zeros that can hold minus the shift."""
    q = head.q[rows]
    kind = dtype_of(q, options.dtype)
    tilts = torch.zeros(q.shape[1] + 1, len(q), dtype=kind, device=q.device)
    torch.mul(q.T.to(torch.promote_types(q.dtype, kind)), options.bits, out=tilts[:-1])
    return tilts


def step_size(relative: tuple[float, ...]) -> float | None:
    """The common difference of equally spaced scales, whose exponentials are running products."""
    if len(relative) < 3:
        return None
    gaps = np.diff(relative)
    return float(gaps[0]) if np.allclose(gaps, gaps[0], rtol=1e-9, atol=0.0) else None


class TorchStream(Stream):
    """Logits, exponentials and sums one after the other, in blocks that stay in a core's cache."""

    def __init__(
        self, head: Head, plan: BlockPlan, options: PassOptions, tilts: Tensor, *, shifted: bool
    ) -> None:
        super().__init__(head, plan, options, queries=tilts.shape[1], shifted=shifted)
        self.tilts = tilts
        self.fresh, self.started = True, False
        self.gap = None if shifted else step_size(options.relative)
        scales, queries = len(options.relative), tilts.shape[1]
        widest = max(step.stop - step.start for step in plan.steps)
        # one buffer for the logits; more only when several scales share them
        self.buffers = [
            self.working(f"buffer {i}", widest, queries)
            for i in range(1 if scales == 1 else 2 if self.gap is None else 3)
        ]
        self.part = self.working("part", scales, len(head.values), queries)

    def outputs(self, count: int) -> tuple[Tensor, Tensor, bool]:
        """Outputs of the first ``count`` queries, and their sums."""
        total, squares = self.total[:, -1, :count], self.squares[:, :count]
        shape = (len(total), self.total.shape[1] - 1, count)
        outputs: Tensor = self.working("outputs", *shape, dtype="float64")
        torch.div(self.total[:, :-1, :count], total[:, None], out=outputs)
        sums = outputs.sum(-1)
        # an overflow anywhere shows here as a number that is not finite
        sound = torch.isfinite(sums.sum() + squares.sum())
        sound &= total.min() > 2.0**self.limits.smallest
        sound &= total.max() < 2.0**self.limits.largest
        return outputs, sums, bool(sound)

    def weigh(self, step: Step) -> None:
        """Logits, then weights scale by scale."""
        logits = self.buffers[0][: step.stop - step.start]
        width = None if self.shifted else -1
        torch.mm(self.head.keys[step.start : step.stop, :width], self.tilts[:width], out=logits)
        if self.shifted:
            self._raise_shift(logits)
        values = self.head.values[:, step.start : step.stop]
        relative = self.options.relative
        weights, growth = logits, logits
        if self.gap is not None:
            weights, growth = (buffer[: len(logits)] for buffer in self.buffers[1:])
            torch.mul(logits, self.gap, out=growth).exp2_()
            torch.mul(logits, relative[0], out=weights).exp2_()
        for s, scale in enumerate(relative):
            if self.gap is None:
                # the largest scale is the last: it may overwrite the logits
                weights = logits
                if s + 1 < len(relative) or scale != 1.0:
                    weights = self.buffers[-1][: len(logits)]
                    torch.mul(logits, scale, out=weights)
                if self.shifted:
                    weights.clamp_min_(self.limits.floor)
                weights.exp2_()
            elif s:
                weights *= growth
            if self.fresh:
                torch.mm(values, weights, out=self.part[s])
            else:
                self.part[s].addmm_(values, weights)
            if self.options.squares:
                self.squares[s] += weights.square_().sum(0)
        self.fresh = step.flush
        if step.flush:
            self.total += self.part[:, : self.total.shape[1]]

    def _raise_shift(self, logits: Tensor) -> None:
        """Keep the logits below the headroom; the first keys set the shift."""
        top = logits.amax(0)
        if not self.started:
            rise = top
            self.started = True
        elif bool((top > self.limits.headroom).any()):
            rise = top.clamp_min(0.0)
        else:
            return
        old = self.tilts[-1].to(torch.float64)
        new = (old - rise.to(torch.float64)).to(self.tilts.dtype)
        rise = old - new.to(torch.float64)  # what the rounded shift really rises by
        self.tilts[-1] = new
        logits -= rise.to(logits.dtype)
        # the first keys may lower the shift below 0, but then there is nothing to rescale yet
        smaller = torch.exp2(-self.relative[:, None] * rise.clamp_min(0.0))
        self.part *= smaller[:, None].to(self.part.dtype)
        self.total *= smaller[:, None]
        self.squares *= smaller.square()

    def received(self) -> Tensor:
        """Attention that all keys receive, [key]."""
        count = self.plan.counts[-1]
        factors = (1.0 / self.total[0, -1, :count]).to(self.tilts.dtype)[:, None]
        received: Tensor = factors.new_empty(self.plan.steps[-1].stop, dtype=torch.float64)
        for step in self.plan.steps:
            weights = self.buffers[0][: step.stop - step.start]
            torch.mm(self.head.keys[step.start : step.stop], self.tilts, out=weights)
            if self.shifted:  # then no sum is smaller than 1
                weights.clamp_min_(self.limits.floor)
            received[step.start : step.stop] = (weights.exp2_() @ factors)[:, 0]
        return received
