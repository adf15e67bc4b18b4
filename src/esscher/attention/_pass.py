"""The kernel: what happens to one block of queries, and by which stream."""

from __future__ import annotations

import math

import torch
from torch import Tensor

from esscher.attention._blocks import BlockPlan
from esscher.attention._head import PassOptions, ReadyHead
from esscher.attention._stream import RANGES, BlockSums
from esscher.attention._torch_stream import TorchStream
from esscher.errors import InputError

#: Standard deviations of a query's logits that are taken for their range.
SPREAD = 6.5


def block_sums(head: ReadyHead, plan: BlockPlan, options: PassOptions) -> BlockSums:
    """Stream the keys past one block of queries."""
    tilts = block_tilts(head, plan.rows, options)
    if _stays_within(_plain_range(options), head, tilts):
        sums = TorchStream(head, plan, options, tilts, shifted=False).run()
        if sums is not None:
            return sums
    shifted = TorchStream(head, plan, options, tilts, shifted=True).run()
    assert shifted is not None  # only a stream without a shift gives up
    return shifted


def block_tilts(head: ReadyHead, rows: slice, options: PassOptions) -> Tensor:
    """Tilts of a block in bits, transposed, above a row of zeros that can hold minus the shift."""
    q = head.q[rows]
    tilts = torch.zeros(q.shape[1] + 1, len(q), dtype=options.dtype, device=q.device)
    wide = torch.promote_types(q.dtype, options.dtype)
    torch.mul(q.T.to(wide), options.bits, out=tilts[:-1])
    return tilts


def _plain_range(options: PassOptions) -> float:
    limits = RANGES[options.dtype]
    return limits.plain_squares if options.participation else limits.plain


def _stays_within(bits: float, head: ReadyHead, tilts: Tensor) -> bool:
    """Whether logits are so small, surely (Cauchy-Schwarz) or by the spread of the keys."""
    t = tilts[:-1]
    longest = math.sqrt(float(t.square().sum(0).max()))  # vector_norm along columns is 10x slower
    bound = longest * head.largest_key
    if bound <= bits:
        return True
    if not bound < torch.finfo(tilts.dtype).max / 1e4:
        raise InputError(
            f"logits may be as large as {bound:.3g} powers of two, too large for {tilts.dtype}; "
            "divide q by a constant or pass dtype=torch.float64"
        )
    variance = float(((head.key_covariance @ t) * t).sum(0).max())
    return SPREAD * math.sqrt(max(variance, 0.0)) <= bits
