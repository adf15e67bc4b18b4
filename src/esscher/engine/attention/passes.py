"""The kernel: one block of queries, streamed past all keys.

Received attention, the column sums of the attention matrix, takes a second pass. The weight of a
key depends on the sum over all keys, which is known only at the end; so the keys are streamed past
the block again, with the sums known. That costs the logits and the exponentials again, not the
product with the values: about half a pass, however many sizes ask for it. Per size and query, one
factor takes the weights of one normaliser to another.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from functools import partial
from itertools import pairwise

import numpy as np

from esscher.core.errors import InputError
from esscher.engine.attention.arrays import AnyArray, cast, library, numbers, zeros
from esscher.engine.attention.blocks import BlockPlan
from esscher.engine.attention.compiled.stream import CompiledReceived, CompiledStream
from esscher.engine.attention.head import PassOptions, ReadyHead
from esscher.engine.attention.stream import RANGES, BlockSums, Normaliser, Received, Stream

#: Standard deviations of a query's logits that are taken for their range.
SPREAD = 6.5
#: Bits by which a logit must pass the limit before a pass is called in vain: those of rounding.
SURELY = 1.0


def block_sums(head: ReadyHead, plan: BlockPlan, options: PassOptions) -> BlockSums:
    """Stream the keys past one block of queries."""
    stream: Callable[..., Stream]
    if options.kernel is None:
        # Imported here: with the compiled kernel nobody waits for the import of torch.
        from esscher.engine.attention.torch_stream import TorchStream, block_tilts

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
    if not bound < np.finfo(options.dtype).max / 1e4:
        raise InputError(
            f"logits may be as large as {bound:.3g} powers of two, too large for {options.dtype}; "
            "divide q by a constant or pass dtype=torch.float64"
        )
    tilts = cast(head.q[plan.rows], options.dtype) * options.bits
    variance = float(((tilts @ head.key_covariance) * tilts).sum(1).max())
    if SPREAD * math.sqrt(max(variance, 0.0)) > bits:
        return False
    return _own_logit(head, plan, options) <= RANGES[options.dtype].largest + SURELY


def _own_logit(head: ReadyHead, plan: BlockPlan, options: PassOptions) -> float:
    """Largest logit of a query at the key of its own token, of those that are asked.

    A token often has its largest logit there, far beyond the spread of the others. Where this alone
    is more than a sum may be, the pass without a shift would be in vain.
    """
    if options.separate:
        return -math.inf
    at = head.query_positions[plan.rows][: plan.counts[-1]]
    places = np.minimum(np.searchsorted(head.key_positions, at), len(head.key_positions) - 1)
    own = head.key_positions[places] == at
    if not own.any():
        return -math.inf
    rows = plan.rows.start + np.flatnonzero(own)
    q, k = head.q[numbers(head.q, rows, "int64")], head.k[numbers(head.k, places[own], "int64")]
    logits = (cast(q, "float64") * cast(k - head.key_centre, "float64")).sum(1)
    return float(logits.max()) * options.bits


def received_by_keys(
    head: ReadyHead,
    plan: BlockPlan,
    options: PassOptions,
    normalisers: dict[int, Normaliser],
) -> AnyArray:
    """Attention that one block of queries gives to every key, [scale, received size, key].

    Parameters
    ----------
    head, plan, options
        As in the pass.
    normalisers
        By size, from the pass; sizes without a query of this block are absent.
    """
    shape = len(options.relative), len(options.received), len(head.key_positions)
    given = zeros(head.q, *shape, dtype="float64")
    present = [size for size in options.received if size in normalisers]
    if not present:
        return given
    if options.kernel is None:
        from esscher.engine.attention.torch_stream import TorchReceived

        again: Received = TorchReceived(head, plan, options)
    else:
        again = CompiledReceived(head, plan, options)
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
) -> AnyArray:
    """Factors that turn weights shifted as at ``base`` into attention, [scale, query, size]."""
    relative = numbers(base.total, options.relative, "float64")[:, None]
    lowered, of = cast(base.lowered, "float64"), library(base.total)
    factors = []
    for size in sizes:
        at = normalisers[size]
        factor = of.exp2(relative * (cast(at.lowered, "float64") - lowered)) / at.total
        factor[:, plan.counts[size] :] = 0.0
        factors.append(factor)
    return cast(of.stack(factors, -1), options.dtype)
