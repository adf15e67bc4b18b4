"""Attention weights of many queries, summed by key a block at a time."""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

from esscher.engine.attention.compiled.kernel import kernel_for
from esscher.engine.attention.compiled.weighing import weigh_compiled

#: Weights held at a time: a megabyte, which the cache of a core holds.
BLOCK = 2**18


class Weighed(NamedTuple):
    """Sums over queries of their squared weights and of their weights, and the largest, [n]."""

    square: Tensor
    received: Tensor
    largest: Tensor


@torch.no_grad()
def weighed(
    query: Tensor,
    keys: Tensor,
    *,
    softcap: float | None = None,
    bias: Tensor | None = None,
    ends: Tensor | None = None,
    columns: int | None = None,
    block: int = BLOCK,
) -> Weighed:
    """Sum the attention weights of the queries of one head.

    Parameters
    ----------
    query
        [w, d_k] in float32, scaled.
    keys
        [n, d_k] in float32.
    softcap
        Bound of the logits, if there is one.
    bias
        Added to all logits of a key, [n]: a log-weight, or ``-inf`` for a key that nobody sees.
    ends
        How many of the keys each query sees, [w], not decreasing; all by default.
    columns
        Sums are for the first keys only; for all by default.
    block
        Weights held at a time where PyTorch does the work; the compiled kernel has its own.
    """
    count, there = len(query), len(keys)
    columns = there if columns is None else columns
    kernel = kernel_for(keys.device, keys.dtype)
    if kernel is not None and count:
        return Weighed(*weigh_compiled(kernel, query, keys, softcap, bias, ends, columns))
    square, received, largest = keys.new_zeros(3, columns)
    # every weight is touched a few times: those of a block stay in the core's cache meanwhile
    rows = max(1, min(count, block // max(1, there)))
    room, ones, across = keys.new_empty(rows, there), keys.new_ones(rows), keys.T
    for start in range(0, count, rows):
        own = query[start : start + rows]
        weights, one = room[: len(own)], ones[: len(own)]
        torch.mm(own, across, out=weights)
        if softcap is not None:
            weights.div_(softcap).tanh_().mul_(softcap)
        if bias is not None:
            weights += bias
        if ends is not None:
            _hide(weights, ends[start : start + rows])
        torch.softmax(weights, dim=-1, out=weights)
        part = weights[:, :columns]
        received.addmv_(part.T, one)
        torch.maximum(largest, part.amax(0), out=largest)
        square.addmv_(part.square_().T, one)
    return Weighed(square, received, largest)


def _hide(logits: Tensor, ends: Tensor) -> None:
    """Hide the keys from the end of each query on."""
    first = int(ends[0])
    places = torch.arange(first, logits.shape[1], device=logits.device)
    logits[:, first:].masked_fill_(places >= ends[:, None], -torch.inf)
