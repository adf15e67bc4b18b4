"""Outputs of attention over all keys: of keys in memory, of nested sets, and of keys in chunks.

For chunks the softmax is kept running: a shift per query, and under it the sums of weights, of
weighted values and of squared weights. The shift need not be the largest logit so far, only near
enough that no weight overflows; so it is taken from the first keys, and a block that overflows is
done again with a higher one. Received attention needs the final sums, hence a second pass over the
chunks.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence
from functools import partial

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional

from esscher.core.validation import Array
from esscher.engine.attention.arrays import AnyArray, Workers
from esscher.engine.attention.blocks import BlockPlan, Head
from esscher.engine.attention.statistics import over_blocks, pass_options, stream_block

#: Queries and keys whose weights are held at a time, by each thread: two megabytes.
QUERIES, KEYS = 512, 1024
#: Dense weights of models with a softcap are formed for at most this many queries at a time.
QUERY_BLOCK = 1024
_LOG2_E = math.log2(math.e)


def attend(q: Tensor, k: Tensor, v: Tensor, scaling: float, softcap: float | None = None) -> Tensor:
    """Softmax attention of [heads, m, d] queries over [key heads, n, d] keys.

    The logits are ``cap(scaling * <q, k>)`` with ``cap(x) = softcap * tanh(x / softcap)``.
    """
    group = len(q) // len(k)
    if group > 1:
        k, v = k.repeat_interleave(group, 0), v.repeat_interleave(group, 0)
    if softcap is None:
        return functional.scaled_dot_product_attention(q[None], k[None], v[None], scale=scaling)[0]
    outputs = torch.empty(*q.shape[:2], v.shape[-1], dtype=q.dtype)
    for head in range(len(q)):
        for start in range(0, q.shape[1], QUERY_BLOCK):
            logits = q[head, start : start + QUERY_BLOCK] @ k[head].T * scaling
            weights = torch.softmax(torch.tanh(logits / softcap) * softcap, dim=-1)
            outputs[head, start : start + QUERY_BLOCK] = weights @ v[head]
    return outputs


def attention_outputs(
    tilts: Array,
    keys: Array,
    values: Array,
    *,
    scales: Sequence[float] = (1.0,),
    dtype: str = "float32",
    device: str = "cpu",
) -> Array:
    """Softmax attention of every tilt over all keys, axes [scale, query, d_v].

    Memory is that of the result: PyTorch's fused kernel never forms the logits of all pairs. It
    wants queries, keys and values of one width, so the narrower ones get columns of zeros.
    """
    kind = torch.float32 if dtype == "float32" else torch.float64
    width = max(keys.shape[1], values.shape[1])
    # centred, which changes nothing (weights sum to 1) and costs the fewest digits
    key_centre, value_centre = keys.mean(axis=0), values.mean(axis=0)
    q, k, v = (
        torch.from_numpy(np.pad(rows, ((0, 0), (0, width - rows.shape[1])))).to(device, kind)[None]
        for rows in (tilts, keys - key_centre, values - value_centre)
    )
    outputs = np.empty((len(scales), len(tilts), values.shape[1]), dtype=np.dtype(dtype))
    with torch.inference_mode():
        for s, alpha in enumerate(scales):
            rows = attend(q, k, v, float(alpha))[0, :, : values.shape[1]]
            outputs[s] = rows.cpu().numpy() + value_centre
    return outputs


def nested_outputs(
    q: Tensor, k: Tensor, v: Tensor, *, sizes: Sequence[int], factor: float, weights: bool = False
) -> tuple[list[Tensor], Array, Array]:
    """Softmax attention of the first n queries over the first n keys, for all n at once.

    Parameters
    ----------
    q, k, v
        [heads, tokens, d]; as many key heads as query heads.
    sizes
        Strictly increasing numbers of tokens n.
    factor
        Of the logits.
    weights
        Whether participation and received attention are wanted.

    Returns
    -------
    outputs
        For each size, [head, query, d_v], float32; queries lie one after the other in memory, each
        with all its heads.
    participation
        ``1 / sum_j p_j^2`` of each query at the largest size, [head, query]; NaN if not wanted.
    received
        Attention that each key receives from all queries at the largest size, [head, key].
    """
    options = pass_options(q, k, v, sizes=sizes, factor=factor, squares=weights)
    heads, last = len(q), options.sizes[-1]
    outputs = [
        torch.empty(n, heads, v.shape[-1], dtype=torch.float32, device=q.device) for n in sizes
    ]
    participation = np.full((heads, last), np.nan)
    received = np.zeros((heads, last))

    def work(i: int, head: Head, plan: BlockPlan) -> tuple[Tensor, Tensor] | None:
        def fold(size: int, rows: AnyArray, sums: AnyArray) -> None:
            whole = rows[0].T + head.centre
            outputs[size][plan.rows.start : plan.rows.start + len(whole), i] = whole

        stream = stream_block(head, plan, options, fold)
        return (stream.participation()[0].cpu(), stream.received().cpu()) if weights else None

    for i, _, plan, of_block in over_blocks(q, k, v, options, work):
        if of_block is not None:
            participation[i, plan.rows] = of_block[0].numpy()
            received[i] += of_block[1].numpy()
    return [rows.transpose(0, 1) for rows in outputs], participation, received


# Attention over keys that come in chunks.

#: (keys, values) of neighbouring tokens, [n, d] each.
Chunk = tuple[Tensor, Tensor]


def streamed_attention(
    q: Tensor,
    chunks: Callable[[], Iterable[Chunk]],
    *,
    scaling: float,
    softcap: float | None = None,
) -> tuple[Tensor, Array, Array]:
    """Softmax attention of queries over keys that come in chunks.

    Memory is that of the queries, of one chunk, and of a block per thread. The result does not
    depend on the number of threads, nor (beyond rounding) on the chunks.

    Parameters
    ----------
    q
        Queries [m, d].
    chunks
        Starts a pass over all keys and values; called twice, and must give the same each time.
    scaling
        Factor of the logits.
    softcap
        Bound of the logits, ``cap * tanh(logit / cap)``, or None.

    Returns
    -------
    outputs
        Attention over all keys, [queries, d_v], float32.
    participation
        ``1 / sum_j p_j^2`` of each query.
    received
        Attention that each key receives from all queries together.
    """

    def logits(keys: Tensor, tilts: Tensor, shift: Tensor | None) -> Tensor:
        """Logits minus shift, in powers of 2, [keys, queries]."""
        if softcap is None:
            return keys @ tilts if shift is None else torch.addmm(-shift[None], keys, tilts)
        capped = (keys @ tilts).mul_(scaling / softcap).tanh_().mul_(softcap * _LOG2_E)
        return capped if shift is None else capped.sub_(shift)

    def received(block: tuple[Tensor, Tensor], keys: Tensor) -> Tensor:
        tilts, shift = block
        parts = [
            logits(keys[start : start + KEYS], tilts, shift).exp2_().sum(1)
            for start in range(0, len(keys), KEYS)
        ]
        return torch.cat(parts).to(torch.float64)

    states = [
        _RunningSoftmax(rows.T.contiguous() * (1.0 if softcap else scaling * _LOG2_E), logits)
        for rows in torch.split(q.to(torch.float32), QUERIES)
    ]
    with Workers(q) as workers, torch.inference_mode():
        for keys, values in chunks():
            rows = values.to(torch.float32)
            rows = torch.cat([rows, rows.new_ones(len(rows), 1)], dim=1)
            add = partial(_RunningSoftmax.add, keys=keys.to(torch.float32), values=rows)
            for _ in workers.map(add, states):
                pass
        outputs = [(state.sums[:-1] / state.sums[-1]).T.to(torch.float32) for state in states]
        participation = [state.sums[-1] ** 2 / state.squares for state in states]
        # under these shifts weights are attention
        blocks = [
            (x.tilts, (x.shift.to(torch.float64) + torch.log2(x.sums[-1])).to(torch.float32))
            for x in states
        ]
        columns = []
        for keys, _ in chunks():
            total = torch.zeros(len(keys), dtype=torch.float64)
            for part in workers.map(partial(received, keys=keys.to(torch.float32)), blocks):
                total += part
            columns.append(total.numpy())
    return torch.cat(outputs), torch.cat(participation).numpy(), np.concatenate(columns)


class _RunningSoftmax:
    """The running softmax of one block of queries, whose ``tilts`` are [d, queries].

    ``shift`` is in powers of 2, ``sums`` are of weighted values and, last, of weights, [d_v + 1,
    queries], ``squares`` are of squared weights.
    """

    def __init__(self, tilts: Tensor, logits: Callable[..., Tensor]) -> None:
        self.tilts, self.logits = tilts, logits
        self.shift = torch.empty(0)
        self.sums = torch.zeros(1, dtype=torch.float64)
        self.squares = torch.zeros((), dtype=torch.float64)

    def add(self, keys: Tensor, values: Tensor) -> None:
        """Take in a chunk, a block of keys at a time."""
        for start in range(0, len(keys), KEYS):
            k, v = keys[start : start + KEYS], values[start : start + KEYS]
            if not len(self.shift):
                self.shift = self.logits(k, self.tilts, None).amax(0)
            sums, squares = self._weigh(k, v)
            if not (torch.isfinite(squares).all() and torch.isfinite(sums).all()):
                higher = torch.maximum(self.shift, self.logits(k, self.tilts, None).amax(0))
                factor = torch.exp2(self.shift.to(torch.float64) - higher.to(torch.float64))
                self.sums, self.squares = self.sums * factor, self.squares * factor**2
                self.shift = higher
                sums, squares = self._weigh(k, v)
            self.sums = self.sums + sums.to(torch.float64)
            self.squares = self.squares + squares.to(torch.float64)

    def _weigh(self, keys: Tensor, values: Tensor) -> tuple[Tensor, Tensor]:
        """Sums of weighted values and of squared weights, under the present shift."""
        weights = self.logits(keys, self.tilts, self.shift).exp2_()
        sums = values.T @ weights
        return sums, weights.square_().sum(0)
