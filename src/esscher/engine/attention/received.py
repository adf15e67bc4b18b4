"""Received attention: the column sums of the attention matrix.

The weight of a key depends on the sum over all keys, which is known only at the end; so the keys
are streamed past the block of queries a second time, with the sums known. That costs the logits and
the exponentials again, not the product with the values: about half a pass, however many sizes ask
for it. Per size and query, one factor takes the weights of one normaliser to another.
"""

from __future__ import annotations

from itertools import pairwise

import torch
from torch import Tensor

from esscher.engine.attention.blocks import BlockPlan
from esscher.engine.attention.compiled.received import CompiledReceived
from esscher.engine.attention.head import PassOptions, ReadyHead
from esscher.engine.attention.stream import Normaliser
from esscher.engine.attention.torch_stream import TorchReceived


def received_by_keys(
    head: ReadyHead,
    plan: BlockPlan,
    options: PassOptions,
    normalisers: dict[int, Normaliser],
) -> Tensor:
    """Attention that one block of queries gives to every key, [scale, received size, key].

    Parameters
    ----------
    head, plan, options
        As in the pass.
    normalisers
        By size, from the pass; sizes without a query of this block are absent.
    """
    shape = len(options.relative), len(options.received), len(head.key_positions)
    given = torch.zeros(*shape, dtype=torch.float64, device=head.q.device)
    present = [size for size in options.received if size in normalisers]
    if not present:
        return given
    again: TorchReceived | CompiledReceived
    again = (TorchReceived if options.kernel is None else CompiledReceived)(head, plan, options)
    ends = {size: step.stop for step in plan.steps for size in step.sizes}
    for start, stop in pairwise(sorted({0, *(ends[size] for size in present)})):
        later = [size for size in present if ends[size] >= stop]
        # a shift that these keys were weighed with, or a higher one: no weight overflows, and the
        # factors to larger sizes are at most 1
        base = normalisers[later[0]]
        factors = _factors(base, later, normalisers, plan, options)
        lowered = base.lowered if base.shifted else None
        columns = [options.received.index(size) for size in later]
        given[:, columns, start:stop] = again.give(start, stop, lowered, factors)
    return given


def _factors(
    base: Normaliser,
    sizes: list[int],
    normalisers: dict[int, Normaliser],
    plan: BlockPlan,
    options: PassOptions,
) -> Tensor:
    """Factors that turn weights shifted as at ``base`` into attention, [scale, query, size]."""
    relative = base.total.new_tensor(options.relative)[:, None]
    lowered = base.lowered.to(torch.float64)
    factors = []
    for size in sizes:
        at = normalisers[size]
        factor = torch.exp2(relative * (at.lowered.to(torch.float64) - lowered)) / at.total
        factor[:, plan.counts[size] :] = 0.0
        factors.append(factor)
    return torch.stack(factors, dim=-1).to(options.dtype)
