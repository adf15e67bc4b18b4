"""Received attention by the compiled kernel."""

from __future__ import annotations

import torch
from torch import Tensor

from esscher.attention._blocks import BlockPlan
from esscher.attention._head import PassOptions, ReadyHead
from esscher.attention.compiled.kernel import FLOATS, KEYS, Pass
from esscher.attention.compiled.stream import visible_keys


class CompiledReceived:
    """One block of queries, asked again what it gives to keys."""

    def __init__(self, head: ReadyHead, plan: BlockPlan, options: PassOptions) -> None:
        assert head.packed is not None
        assert options.kernel is not None
        self.kernel, self.workspace = options.kernel, options.workspace
        tilts, _ = self.kernel.pack_queries(head.q[plan.rows], options.bits, self.workspace)
        panels, width, panel = tilts.shape
        self.queries = panels * panel
        visible = visible_keys(head, plan, self.queries) if options.causal else None
        relative = torch.tensor(options.relative, **FLOATS)
        room = 2 * panel * (options.shape.keys + 2 * KEYS)
        scratch = self.workspace.empty("scratch", room, **FLOATS)
        # what the kernel is given addresses of must live as long as this object
        self.kept = (tilts, visible, relative, scratch)
        self.state = Pass(
            keys=head.packed.keys.data_ptr(),
            tilts=tilts.data_ptr(),
            relative=relative.data_ptr(),
            visible=None if visible is None else visible.data_ptr(),
            scratch=scratch.data_ptr(),
            all_keys=len(head.key_positions),
            width=width,
            queries=self.queries,
            scales=len(relative),
            block=options.shape.keys,
        )

    def give(self, start: int, stop: int, lowered: Tensor | None, factors: Tensor) -> Tensor:
        """What keys ``start`` to ``stop`` receive, [scale, size, key].

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
            shift = torch.zeros(self.queries, **FLOATS)
            shift[: len(lowered)] = -lowered
        self.state.shift = None if shift is None else shift.data_ptr()
        scales, queries, sizes = factors.shape
        padded = torch.zeros(scales, sizes, self.queries, **FLOATS)
        padded[:, :, :queries] = factors.mT
        return self.kernel.received(self.state, start, stop, padded, self.workspace)
