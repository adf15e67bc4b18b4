"""Received attention: the column sums of the attention matrix.

The weight of a key depends on the sum over all keys, which is known only at the end; so the keys
are streamed past the block of queries a second time, with the sums known. That costs the logits and
the exponentials again, not the product with the values: about 0.6 of a pass, however many sizes ask
for it. Per size and query, one factor takes the weights of one normaliser to another.
"""

from __future__ import annotations

import torch
from torch import Tensor

from esscher.attention._blocks import BlockPlan
from esscher.attention._head import PassOptions, ReadyHead
from esscher.attention._stream import RANGES, Normaliser
from esscher.attention._torch_stream import block_tilts, hidden_keys


def received_by_keys(
    head: ReadyHead,
    plan: BlockPlan,
    options: PassOptions,
    normalisers: dict[int, Normaliser],
) -> Tensor:
    """What one block of queries gives to every key, [scale, received size, key].

    Parameters
    ----------
    head, plan, options
        As in the pass.
    normalisers
        By size, from the pass; sizes without a query of this block are absent.
    """
    scales = len(options.relative)
    given = head.keys.new_zeros(scales, len(options.received), len(head.keys), dtype=torch.float64)
    present = [size for size in options.received if size in normalisers]
    if not present:
        return given
    tilts = block_tilts(head, plan.rows, options)
    limits = RANGES[options.dtype]
    ends = {size: step.stop for step in plan.steps for size in step.sizes}
    widest = max(step.stop - step.start for step in plan.steps)
    buffers = [tilts.new_empty(widest, tilts.shape[1]) for _ in range(min(scales, 2))]
    base: int | None = None
    for step in plan.steps:
        later = [size for size in present if ends[size] >= step.stop]
        if not later:
            break
        if later[0] != base:
            # a shift that these keys were weighed with, or a higher one: no weight overflows, and
            # the factors to larger sizes are at most 1
            base = later[0]
            tilts[-1] = normalisers[base].lowered
            factors = _factors(base, later, normalisers, plan, options)
        logits = buffers[0][: step.stop - step.start]
        torch.mm(head.keys[step.start : step.stop], tilts, out=logits)
        hidden = hidden_keys(head, plan, step) if step.hidden else None
        columns = [options.received.index(size) for size in later]
        for s, relative in enumerate(options.relative):
            weights = logits
            if scales > 1 or relative != 1.0:
                weights = buffers[-1][: len(logits)]
                torch.mul(logits, relative, out=weights)
            if normalisers[base].shifted:  # then no sum is smaller than 1
                weights.clamp_min_(limits.floor)
            weights.exp2_()
            if hidden is not None:
                weights.masked_fill_(hidden, 0.0)
            for column, sums in zip(columns, (weights @ factors[s]).T, strict=True):
                given[s, column, step.start : step.stop] = sums
    return given


def _factors(
    base: int,
    sizes: list[int],
    normalisers: dict[int, Normaliser],
    plan: BlockPlan,
    options: PassOptions,
) -> Tensor:
    """What takes a weight shifted as at ``base`` to an attention weight, [scale, query, size]."""
    relative = normalisers[base].total.new_tensor(options.relative)[:, None]
    lowered = normalisers[base].lowered.to(torch.float64)
    factors = []
    for size in sizes:
        at = normalisers[size]
        factor = torch.exp2(relative * (at.lowered.to(torch.float64) - lowered)) / at.total
        factor[:, plan.counts[size] :] = 0.0
        factors.append(factor)
    return torch.stack(factors, dim=-1).to(options.dtype)
