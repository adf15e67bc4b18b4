"""Outputs of attention over all keys: of keys in memory, and of more that come in chunks.

For chunks the softmax is kept running: a shift per query, and under it the sums of weights, of
weighted values and of squared weights. The shift need not be the largest logit so far, only near
enough that no weight overflows; so it is taken from the first keys, and a block that overflows is
done again with a higher one. Received attention needs the final sums, hence a second pass over the
chunks.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import partial

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from torch.nn import functional

from esscher.core.validation import Array
from esscher.engine.attention.arguments import as_inputs, as_options
from esscher.engine.attention.arrays import Workers
from esscher.engine.attention.blocks import BlockPlan, PassOptions, ReadyHead, make_ready
from esscher.engine.attention.statistics import block_sums, received_by_keys
from esscher.engine.attention.stream import BlockSums

#: (keys, values) of neighbouring tokens, [n, d] each.
Chunk = tuple[Tensor, Tensor]

#: Queries and keys whose weights are held at a time, by each thread: two megabytes.
QUERIES, KEYS = 512, 1024
_LOG2_E = math.log2(math.e)


@dataclass(frozen=True, eq=False)
class StreamedAttention:
    """Attention over keys that came in chunks.

    Attributes
    ----------
    outputs
        Attention over all keys, [queries, d_v], float32.
    participation
        ``1 / sum_j p_j^2`` of each query.
    received
        Attention that each key receives from all queries together; None unless asked for.
    """

    outputs: Tensor
    participation: Array
    received: Array | None


def streamed_attention(
    q: Tensor,
    chunks: Callable[[], Iterable[Chunk]],
    *,
    scaling: float,
    softcap: float | None = None,
    received: bool = False,
) -> StreamedAttention:
    """Softmax attention of queries over keys that come in chunks.

    Memory is that of the queries, of one chunk, and of a block per thread. The result does not
    depend on the number of threads, nor (beyond rounding) on the chunks.

    Parameters
    ----------
    q
        Queries [m, d].
    chunks
        Starts a pass over all keys and values; called once, or twice for received attention, and
        must give the same each time.
    scaling
        Factor of the logits.
    softcap
        Bound of the logits, ``cap * tanh(logit / cap)``, or None.
    received
        Whether received attention is wanted.
    """
    q = q.to(torch.float32)
    score = partial(_scores, scaling=scaling, softcap=softcap)
    states = [
        _Running(rows.T.contiguous() * (1.0 if softcap else scaling * _LOG2_E))
        for rows in torch.split(q, QUERIES)
    ]
    with Workers(q) as workers, torch.inference_mode():
        for keys, values in chunks():
            fed = values.to(torch.float32)
            fed = torch.cat([fed, fed.new_ones(len(fed), 1)], dim=1)
            feed = partial(_feed, keys=keys.to(torch.float32), values=fed, score=score)
            for _ in workers.map(feed, states):
                pass
        outputs = torch.cat([state.outputs() for state in states])
        participation = torch.cat([state.participation() for state in states])
        given = None
        if received:
            given = np.concatenate(list(_received(states, chunks(), score, workers)))
    return StreamedAttention(outputs, participation.numpy(), given)


class _Running:
    """The running softmax of one block of queries."""

    def __init__(self, tilts: Tensor) -> None:
        self.tilts = tilts  # [d, queries]
        self.shift: Tensor | None = None  # [queries], in powers of 2
        self.sums = torch.zeros(())  # weighted values and, last, weights: [d_v + 1, queries]
        self.squares = torch.zeros(())  # [queries]

    def raise_shift(self, top: Tensor) -> None:
        """Raise the shift to the largest logit, and rescale the sums."""
        if self.shift is None:
            self.shift = top
            return
        higher = torch.maximum(self.shift, top)
        factor = torch.exp2(self.shift.to(torch.float64) - higher.to(torch.float64))
        self.sums, self.squares = self.sums * factor, self.squares * factor**2
        self.shift = higher

    def add(self, sums: Tensor, squares: Tensor) -> None:
        """Take in sums under the present shift."""
        self.sums = self.sums + sums.to(torch.float64)
        self.squares = self.squares + squares.to(torch.float64)

    def outputs(self) -> Tensor:
        """Attention over all keys, [queries, d_v]."""
        return (self.sums[:-1] / self.sums[-1]).T.to(torch.float32)

    def participation(self) -> Tensor:
        """Effective number of keys of each query."""
        return self.sums[-1] ** 2 / self.squares

    def final_shift(self) -> Tensor:
        """The shift under which weights are attention."""
        assert self.shift is not None
        return (self.shift.to(torch.float64) + torch.log2(self.sums[-1])).to(torch.float32)


def _scores(
    keys: Tensor, tilts: Tensor, shift: Tensor | None, *, scaling: float, softcap: float | None
) -> Tensor:
    """Logits minus shift, in powers of 2, [keys, queries]."""
    if softcap is None:
        return keys @ tilts if shift is None else torch.addmm(-shift[None], keys, tilts)
    logits = (keys @ tilts).mul_(scaling / softcap).tanh_().mul_(softcap * _LOG2_E)
    return logits if shift is None else logits.sub_(shift)


def _feed(state: _Running, keys: Tensor, values: Tensor, score: Callable[..., Tensor]) -> None:
    """Take in a chunk, a block of keys at a time."""
    for start in range(0, len(keys), KEYS):
        k, v = keys[start : start + KEYS], values[start : start + KEYS]
        if state.shift is None:
            state.raise_shift(score(k, state.tilts, None).amax(0))
        sums, squares = _weigh(score(k, state.tilts, state.shift), v)
        if not (torch.isfinite(squares).all() and torch.isfinite(sums).all()):
            state.raise_shift(score(k, state.tilts, None).amax(0))
            sums, squares = _weigh(score(k, state.tilts, state.shift), v)
        state.add(sums, squares)


def _weigh(logits: Tensor, values: Tensor) -> tuple[Tensor, Tensor]:
    weights = logits.exp2_()
    sums = values.T @ weights
    return sums, weights.square_().sum(0)


def _received(
    states: list[_Running], chunks: Iterable[Chunk], score: Callable[..., Tensor], workers: Workers
) -> Iterator[Array]:
    """Attention that the keys of each chunk receive from all queries."""
    shifts = [state.final_shift() for state in states]

    def give(block: tuple[_Running, Tensor], keys: Tensor) -> Tensor:
        state, shift = block
        parts = [
            score(keys[start : start + KEYS], state.tilts, shift).exp2_().sum(1)
            for start in range(0, len(keys), KEYS)
        ]
        return torch.cat(parts).to(torch.float64)

    for keys, _ in chunks:
        total = torch.zeros(len(keys), dtype=torch.float64)
        blocks = list(zip(states, shifts, strict=True))
        for part in workers.map(partial(give, keys=keys.to(torch.float32)), blocks):
            total += part
        yield total.numpy()


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
        torch.from_numpy(np.pad(rows, ((0, 0), (0, width - rows.shape[1])))).to(device, kind)
        for rows in (tilts, keys - key_centre, values - value_centre)
    )
    outputs = np.empty((len(scales), len(tilts), values.shape[1]), dtype=np.dtype(dtype))
    with torch.inference_mode():
        for s, alpha in enumerate(scales):
            found = functional.scaled_dot_product_attention(
                q[None, None], k[None, None], v[None, None], scale=float(alpha)
            )
            outputs[s] = found[0, 0, :, : values.shape[1]].cpu().numpy() + value_centre
    return outputs


# Outputs of attention over nested sets of keys: of all sizes from one pass.


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
