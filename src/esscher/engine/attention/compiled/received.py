"""Received attention by the compiled kernel."""

from __future__ import annotations

import torch
from torch import Tensor

from esscher.engine.attention.blocks import BlockPlan
from esscher.engine.attention.compiled.kernel import FLOATS
from esscher.engine.attention.compiled.stream import prepare
from esscher.engine.attention.head import PassOptions, ReadyHead


class CompiledReceived:
    """One block of queries, asked again what it gives to keys."""

    def __init__(self, head: ReadyHead, plan: BlockPlan, options: PassOptions) -> None:
        assert options.kernel is not None
        self.kernel, self.workspace = options.kernel, options.workspace
        tilts, _ = self.kernel.pack_queries(head.q[plan.rows], options.bits, self.workspace)
        self.state, self.kept = prepare(head, plan, options, tilts)

    def give(self, start: int, stop: int, lowered: Tensor | None, factors: Tensor) -> Tensor:
        """Attention that keys ``start`` to ``stop`` receive, [scale, size, key].

        Parameters
        ----------
        start, stop
            Of the keys.
        lowered
            Minus the shift of every query; ``None`` for no shift.
        factors
            [scale, query, size] of a weight that is so shifted.
        """
        shift = None
        if lowered is not None:
            shift = torch.zeros(self.state.queries, **FLOATS)
            shift[: len(lowered)] = -lowered
        self.state.shift = None if shift is None else shift.data_ptr()
        scales, queries, sizes = factors.shape
        padded = torch.zeros(scales, sizes, self.state.queries, **FLOATS)
        padded[:, :, :queries] = factors.mT
        return self.kernel.received(self.state, start, stop, padded, self.workspace)
