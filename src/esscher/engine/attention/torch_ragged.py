"""Attention over lists of different lengths in operations of PyTorch: any device and type.

Few queries want no Python loop over heads: lists are cut into pieces of equal length, all pieces go
through one batched product, and those of a list are put together by their log-sum-exp. Many queries
want large products: a loop over lists costs nothing beside them.
"""

from __future__ import annotations

import torch
from torch import Tensor

from esscher.engine.attention.segments import Segments

#: Keys of a piece: a list is padded by half of them on average.
PIECE = 64
#: Logits of a block of queries, in bytes.
LOGITS = 32 * 2**20

#: Largest logit, sum of weights relative to it, and weighted sum of values, of [list, query].
Part = tuple[Tensor, Tensor, Tensor]


def few_queries(
    q: Tensor,
    segments: Segments,
    tail_keys: Tensor,
    tail_values: Tensor,
    scaling: float,
    softcap: float | None,
    visible: Tensor | None,
) -> Tensor:
    """Attention of all lists at once; [batch, n_q, heads, d_v]."""
    batch, heads, n_q, d_k = q.shape
    key_heads, tail, d_v = tail_values.shape[1:]
    group = heads // key_heads
    tilts = _wide(q).reshape(batch * key_heads, group * n_q, d_k) * scaling
    parts = [_pieces(tilts, segments, softcap)]
    if tail:
        keys = _wide(tail_keys).reshape(batch * key_heads, tail, d_k)
        logits = _capped(tilts @ keys.mT, softcap).view(batch, key_heads, group, n_q, tail)
        hidden = ~(_causal(0, n_q, n_q, tail, q.device)[None] if visible is None else visible)
        logits = logits.masked_fill_(hidden[:, None, None], -torch.inf).flatten(2, 3).flatten(0, 1)
        parts.append(_part(logits, _wide(tail_values).reshape(batch * key_heads, tail, d_v)))
    _, total, sums = _merged(parts)
    outputs = sums / total.where(total > 0, 1.0)[..., None]
    return outputs.view(batch, heads, n_q, d_v).transpose(1, 2).to(q.dtype).contiguous()


def many_queries(
    q: Tensor,
    segments: Segments,
    tail_keys: Tensor,
    tail_values: Tensor,
    scaling: float,
    softcap: float | None,
    visible: Tensor | None,
    room: int = LOGITS,
) -> Tensor:
    """Attention of one list after the other; [batch, n_q, heads, d_v]."""
    batch, heads, n_q, _ = q.shape
    key_heads, tail, d_v = tail_values.shape[1:]
    group = heads // key_heads
    outputs = q.new_empty(batch, n_q, heads, d_v)
    for number, (start, stop) in enumerate(
        zip(segments.start.tolist(), segments.stop.tolist(), strict=True)
    ):
        b, g = divmod(number, key_heads)
        of = slice(g * group, (g + 1) * group)
        kept = stop - start
        keys = torch.cat([_wide(segments.keys[start:stop]), _wide(tail_keys[b, g])])
        values = torch.cat([_wide(segments.values[start:stop]), _wide(tail_values[b, g])])
        log_weight = segments.log_weight[start:stop]
        mask = None if visible is None else visible[b % len(visible)]
        step = max(room // (4 * group * max(kept + tail, 1)), 1)
        for low in range(0, n_q, step):
            high = min(low + step, n_q)
            # later keys than the last of these queries sees by causality are left out
            last = max(tail - n_q + high, 0) if mask is None else tail
            tilts = (_wide(q[b, of, low:high]) * scaling).flatten(0, 1)
            logits = _capped(tilts @ keys[: kept + last].T, softcap)
            logits[:, :kept] += log_weight
            seen = _causal(low, high, n_q, tail, q.device) if mask is None else mask[low:high]
            per_query = logits.view(group, high - low, kept + last)
            per_query[..., kept:].masked_fill_(~seen[:, :last], -torch.inf)
            weights = torch.softmax(per_query, -1)
            if not kept:  # softmax over nothing is not a number
                weights.masked_fill_(~seen[:, :last].any(-1)[:, None], 0.0)
            found = weights.flatten(0, 1) @ values[: kept + last]
            outputs[b, low:high, of] = found.view(group, high - low, d_v).transpose(0, 1)
    return outputs


def _wide(x: Tensor) -> Tensor:
    """At least float32."""
    return x.to(torch.promote_types(x.dtype, torch.float32))


def _capped(logits: Tensor, softcap: float | None) -> Tensor:
    return logits if softcap is None else logits.div_(softcap).tanh_().mul_(softcap)


def _causal(low: int, high: int, n_q: int, tail: int, device: torch.device) -> Tensor:
    """Which tail keys the queries from ``low`` to ``high`` see: the last query sees them all."""
    last = torch.arange(low, high, device=device) + (tail - n_q)
    return torch.arange(tail, device=device) <= last[:, None]


def _pieces(tilts: Tensor, segments: Segments, softcap: float | None) -> Part:
    """Every query over its list."""
    lists, rows, _ = tilts.shape
    counts = (segments.stop - segments.start + PIECE - 1) // PIECE
    number = torch.repeat_interleave(counts)  # the list of each piece
    within = torch.arange(len(number), device=tilts.device) - (counts.cumsum(0) - counts)[number]
    stop = segments.stop[number, None]
    place = (segments.start[number] + PIECE * within)[:, None]
    place = place + torch.arange(PIECE, device=tilts.device)
    hidden, place = place >= stop, torch.minimum(place, stop - 1)
    logits = _capped(tilts[number] @ _wide(segments.keys[place]).mT, softcap)
    logits += segments.log_weight[place][:, None]
    logits.masked_fill_(hidden[:, None], -torch.inf)
    peak, total, sums = _part(logits, _wide(segments.values[place]))
    top = peak.new_full((lists, rows), -torch.inf)
    top.scatter_reduce_(0, number[:, None].expand_as(peak), peak, "amax")
    factor = torch.exp(peak - top[number])
    return (
        top,
        torch.zeros_like(top).index_add_(0, number, factor * total),
        sums.new_zeros(lists, rows, sums.shape[-1]).index_add_(0, number, factor[..., None] * sums),
    )


def _part(logits: Tensor, values: Tensor) -> Part:
    """Of logits [list, query, key], some of which may be minus infinity."""
    peak = logits.amax(-1)
    weights = logits.sub_(peak.where(peak.isfinite(), 0.0)[..., None]).exp_()
    return peak, weights.sum(-1), weights @ values


def _merged(parts: list[Part]) -> Part:
    """The parts together: each is brought to the largest logit of all."""
    peaks = torch.stack([peak for peak, _, _ in parts])
    top = peaks.amax(0)
    factors = torch.exp(peaks - top.where(top.isfinite(), 0.0))
    total = sum(f * part[1] for f, part in zip(factors, parts, strict=True))
    sums = sum(f[..., None] * part[2] for f, part in zip(factors, parts, strict=True))
    return top, torch.as_tensor(total), torch.as_tensor(sums)
