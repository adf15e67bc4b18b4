"""The kernel: what happens to one block of queries, and by which stream."""

from __future__ import annotations

import math
from collections.abc import Callable
from functools import partial

import torch

from esscher.core.errors import InputError
from esscher.engine.attention.blocks import BlockPlan
from esscher.engine.attention.compiled.stream import CompiledStream
from esscher.engine.attention.head import PassOptions, ReadyHead
from esscher.engine.attention.stream import RANGES, BlockSums, Stream
from esscher.engine.attention.torch_stream import TorchStream, block_tilts

#: Standard deviations of a query's logits that are taken for their range.
SPREAD = 6.5


def block_sums(head: ReadyHead, plan: BlockPlan, options: PassOptions) -> BlockSums:
    """Stream the keys past one block of queries."""
    stream: Callable[..., Stream]
    if options.kernel is None:
        tilts = block_tilts(head, plan.rows, options)
        longest = math.sqrt(float(tilts.square().sum(0).max()))  # vector_norm is 10x slower
        stream = partial(TorchStream, head, plan, options, tilts)
    else:
        packed, longest = options.kernel.pack_queries(
            head.q[plan.rows], options.bits, options.workspace
        )
        stream = partial(CompiledStream, head, plan, options, packed)
    if _stays_within(_plain_range(options), head, plan, options, longest):
        sums = stream(shifted=False).run()
        if sums is not None:
            return sums
    shifted = stream(shifted=True).run()
    assert shifted is not None  # only a stream without a shift gives up
    return shifted


def _plain_range(options: PassOptions) -> float:
    limits = RANGES[options.dtype]
    return limits.plain_squares if options.participation else limits.plain


def _stays_within(
    bits: float, head: ReadyHead, plan: BlockPlan, options: PassOptions, longest: float
) -> bool:
    """Tell if logits stay that small: surely (Cauchy-Schwarz), or judging by the keys' spread."""
    bound = longest * head.longest_key
    if bound <= bits:
        return True
    if not bound < torch.finfo(options.dtype).max / 1e4:
        raise InputError(
            f"logits may be as large as {bound:.3g} powers of two, too large for {options.dtype}; "
            "divide q by a constant or pass dtype=torch.float64"
        )
    tilts = head.q[plan.rows].to(options.dtype) * options.bits
    variance = float(((tilts @ head.key_covariance) * tilts).sum(1).max())
    return SPREAD * math.sqrt(max(variance, 0.0)) <= bits
