"""Outputs of attention over nested sets of keys: of all sizes from one pass."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from functools import partial

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from esscher.core.validation import Array
from esscher.engine.attention.arguments import as_inputs, as_options
from esscher.engine.attention.blocks import BlockPlan
from esscher.engine.attention.head import PassOptions, ReadyHead, make_ready
from esscher.engine.attention.passes import block_sums, received_by_keys
from esscher.engine.attention.stream import BlockSums
from esscher.engine.attention.threads import Workers


@dataclass(frozen=True, eq=False)
class NestedOutputs:
    """Attention of the first n queries over the first n keys, for several n.

    Attributes
    ----------
    outputs
        For each size, [head, query, d_v], float32; queries lie one after the other in memory, each
        with all its heads.
    participation
        ``1 / sum_j p_j^2`` of each query at the largest size, [head, query]; None unless asked for.
    received
        Attention that each key receives from all queries at the largest size, [head, key]; None
        unless asked for.
    """

    outputs: tuple[Tensor, ...]
    participation: Array | None
    received: Array | None


def nested_outputs(
    q: Tensor, k: Tensor, v: Tensor, *, sizes: Sequence[int], factor: float, weights: bool = False
) -> NestedOutputs:
    """Softmax attention over the first n tokens, for all n at once.

    Parameters
    ----------
    q, k, v
        [heads, tokens, d]; as many key heads as query heads.
    sizes
        Strictly increasing numbers of tokens n.
    factor
        Of the logits.
    weights
        Whether participation and received attention at the largest size are wanted.
    """
    inputs = as_inputs(
        q, k, v, limit=None, key_mask=None, query_mask=None, scale_count=1, separate=False
    )
    options, _, order = as_options(
        inputs,
        sizes=sizes,
        scales=(1.0,),
        factor=factor,
        separate=False,
        causal=False,
        received_sizes=sizes[-1:] if weights else (),
        weights=("participation",) if weights else (),
        dtype=torch.float32,
        block=None,
    )
    options = replace(options, outputs=True)
    heads, d, last = len(q), v.shape[-1], options.sizes[-1]
    outputs = [torch.empty(n, heads, d, dtype=torch.float32, device=q.device) for n in sizes]
    participation: NDArray[np.float64] = np.empty((heads, last))
    received: NDArray[np.float64] = np.zeros((heads, last))
    with Workers(k) as workers:

        def blocks() -> Iterator[tuple[int, ReadyHead, BlockPlan]]:
            for number, raw in enumerate(inputs.heads(order)):
                head = workers.call(partial(make_ready, options=options), raw)
                for plan in head.plans(options):
                    yield number, head, plan

        work = partial(_work, options=options)
        for number, rows, sums, given in workers.map(work, blocks()):
            for size, found in sums.outputs.items():
                outputs[size][rows.start : rows.start + len(found), number] = found
            if weights and sums.participation is not None and given is not None:
                participation[number, rows] = sums.participation[0, -1].cpu().numpy()
                received[number] += given[0, 0].cpu().numpy()
    return NestedOutputs(
        tuple(found.transpose(0, 1) for found in outputs),
        participation if weights else None,
        received if weights else None,
    )


@torch.inference_mode()
def _work(
    block: tuple[int, ReadyHead, BlockPlan], options: PassOptions
) -> tuple[int, slice, BlockSums, Tensor | None]:
    number, head, plan = block
    sums = block_sums(head, plan, options)
    given = None
    if options.received:
        given = received_by_keys(head, plan, options, sums.normalisers)
    return number, plan.rows, sums, given
