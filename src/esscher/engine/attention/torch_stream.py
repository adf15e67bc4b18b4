"""The stream in operations of PyTorch: any device, float32 and float64."""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor

from esscher.engine.attention.blocks import BlockPlan, PassOptions, ReadyHead, Step
from esscher.engine.attention.stream import RANGES, Stream

#: Types of the arithmetic.
_TYPES = {"float32": torch.float32, "float64": torch.float64}


def block_tilts(head: ReadyHead, rows: slice, options: PassOptions) -> Tensor:
    """Tilts of a block in bits, transposed, above a row of zeros that can hold minus the shift."""
    q = head.q[rows]
    kind = _TYPES[options.dtype]
    tilts = torch.zeros(q.shape[1] + 1, len(q), dtype=kind, device=q.device)
    wide = torch.promote_types(q.dtype, kind)
    torch.mul(q.T.to(wide), options.bits, out=tilts[:-1])
    return tilts


def hidden_keys(head: ReadyHead, plan: BlockPlan, step: Step) -> Tensor:
    """Which keys come after which queries, (keys, queries)."""
    device = head.keys.device
    keys = torch.from_numpy(head.key_positions[step.start : step.stop]).to(device)
    queries = torch.from_numpy(head.query_positions[plan.rows]).to(device)
    return keys[:, None] > queries[None, :]


def step_size(relative: tuple[float, ...]) -> float | None:
    """The common difference of equally spaced scales, whose exponentials are running products."""
    if len(relative) < 3:
        return None
    gaps = np.diff(relative)
    return float(gaps[0]) if np.allclose(gaps, gaps[0], rtol=1e-9, atol=0.0) else None


class TorchStream(Stream):
    """Logits, exponentials and sums one after the other, in blocks that stay in a core's cache."""

    def __init__(
        self,
        head: ReadyHead,
        plan: BlockPlan,
        options: PassOptions,
        tilts: Tensor,
        *,
        shifted: bool,
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

    def lowered(self) -> Tensor:
        """Minus the shift, which is the last row of the tilts."""
        return self.tilts[-1].clone()

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
        hidden = hidden_keys(self.head, self.plan, step) if step.hidden else None
        if self.shifted or self.options.largest:
            seen = logits if hidden is None else logits.masked_fill(hidden, -torch.inf)
            top = seen.amax(0)
            if self.shifted:
                top = self._raise_shift(logits, top)
            torch.maximum(self.peak, top, out=self.peak)
        values = self.head.values[:, step.start : step.stop]
        if self.gap is None:
            self._weigh_each(logits, values, hidden)
        else:
            self._weigh_by_products(logits, values, hidden)
        self.fresh = step.flush
        if step.flush:
            self.total += self.part[:, : self.total.shape[1]]

    def _raise_shift(self, logits: Tensor, top: Tensor) -> Tensor:
        """Keep the logits below the headroom; the first keys set the shift."""
        if not self.started:
            rise = top  # every query may attend the first of these keys
            self.started = True
        elif bool((top > self.limits.headroom).any()):
            rise = top.clamp_min(0.0)
        else:
            return top
        old = self.tilts[-1].to(torch.float64)
        new = (old - rise.to(torch.float64)).to(self.tilts.dtype)
        rise = old - new.to(torch.float64)  # what the rounded shift really rises by
        self.tilts[-1] = new
        logits -= rise.to(logits.dtype)
        self.peak -= rise.to(logits.dtype)
        # the first keys may lower the shift below 0, but then there is nothing to rescale yet
        smaller = torch.exp2(-self.relative[:, None] * rise.clamp_min(0.0))
        self.part *= smaller[:, None].to(self.part.dtype)
        self.total *= smaller[:, None]
        self.squares *= smaller.square()
        return top - rise.to(top.dtype)

    def _weigh_each(self, logits: Tensor, values: Tensor, hidden: Tensor | None) -> None:
        for s, relative in enumerate(self.options.relative):
            # the largest scale is the last: it may overwrite the logits
            weights = logits
            if s + 1 < len(self.options.relative) or relative != 1.0:
                weights = self.buffers[-1][: len(logits)]
                torch.mul(logits, relative, out=weights)
            if self.shifted:
                weights.clamp_min_(self.limits.floor)
            weights.exp2_()
            if hidden is not None:
                weights.masked_fill_(hidden, 0.0)
            self._accumulate(s, weights, values)
            if self.options.participation:
                self.squares[s] += weights.square_().sum(0)

    def _weigh_by_products(self, logits: Tensor, values: Tensor, hidden: Tensor | None) -> None:
        weights, growth = (buffer[: len(logits)] for buffer in self.buffers[1:])
        torch.mul(logits, self.gap or 0.0, out=growth).exp2_()
        torch.mul(logits, self.options.relative[0], out=weights).exp2_()
        if hidden is not None:
            weights.masked_fill_(hidden, 0.0)
            growth.masked_fill_(hidden, 0.0)
        for s in range(len(self.options.relative)):
            if s:
                weights *= growth
            self._accumulate(s, weights, values)
            if self.options.participation:
                self.squares[s] += torch.mul(weights, weights, out=logits).sum(0)

    def _accumulate(self, s: int, weights: Tensor, values: Tensor) -> None:
        if self.fresh:
            torch.mm(values, weights, out=self.part[s])
        else:
            self.part[s].addmm_(values, weights)


class TorchReceived:
    """One block of queries, streamed again for the attention that it gives to keys."""

    def __init__(self, head: ReadyHead, plan: BlockPlan, options: PassOptions) -> None:
        self.head, self.plan, self.options = head, plan, options
        self.tilts = block_tilts(head, plan.rows, options)
        widest = max(step.stop - step.start for step in plan.steps)
        self.buffers = [
            self.tilts.new_empty(widest, self.tilts.shape[1])
            for _ in range(min(len(options.relative), 2))
        ]

    def give(self, start: int, stop: int, lowered: Tensor | None, factors: Tensor) -> Tensor:
        """Attention that keys receive: see :class:`~esscher.engine.attention.stream.Received`."""
        self.tilts[-1] = 0.0 if lowered is None else lowered
        relative = self.options.relative
        given = factors.new_empty(len(factors), factors.shape[2], stop - start, dtype=torch.float64)
        for step in self.plan.steps:
            if step.start < start or step.stop > stop:
                continue
            logits = self.buffers[0][: step.stop - step.start]
            torch.mm(self.head.keys[step.start : step.stop], self.tilts, out=logits)
            hidden = hidden_keys(self.head, self.plan, step) if step.hidden else None
            for s, scale in enumerate(relative):
                weights = logits
                if len(relative) > 1 or scale != 1.0:
                    weights = self.buffers[-1][: len(logits)]
                    torch.mul(logits, scale, out=weights)
                if lowered is not None:  # then no sum is smaller than 1
                    weights.clamp_min_(RANGES[self.options.dtype].floor)
                weights.exp2_()
                if hidden is not None:
                    weights.masked_fill_(hidden, 0.0)
                given[s, :, step.start - start : step.stop - start] = (weights @ factors[s]).T
        return given
