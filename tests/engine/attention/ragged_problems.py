"""Attention over lists of different lengths: problems, and the answer by definition in float64."""

from __future__ import annotations

from dataclasses import dataclass

import pytest
import torch
from torch import Tensor

from esscher.engine.attention.coded import Codes, encode
from esscher.engine.attention.compiled import build
from esscher.engine.attention.ragged import Segments, ragged_attention

#: Rounding of one operation in float32, relative.
UNIT = 2.0**-24
CAPABLE = torch.backends.cpu.get_cpu_capability() in build.TARGETS
needs_kernel = pytest.mark.skipif(
    not (CAPABLE and build.library("AVX2").is_file()), reason="the kernel is not compiled"
)


@dataclass(frozen=True)
class Problem:
    """Arguments of ``ragged_attention``."""

    q: Tensor
    segments: Segments
    tail_keys: Tensor
    tail_values: Tensor
    scaling: float
    softcap: float | None = None
    visible: Tensor | None = None

    def arguments(self) -> tuple[object, ...]:
        return (self.q, self.segments, self.tail_keys, self.tail_values)

    def options(self) -> dict[str, object]:
        return {"scaling": self.scaling, "softcap": self.softcap, "visible": self.visible}

    def solved(self) -> Tensor:
        return ragged_attention(*self.arguments(), **self.options())


def problem(
    *,
    lengths=((5, 0, 130), (64, 65, 1)),
    group=2,
    n_q=1,
    tail=7,
    d_k=16,
    d_v=16,
    strength=1.0,
    dtype=torch.float32,
    seed=0,
    coded=(),
    **options,
) -> Problem:
    """Lists of given lengths per text and key head, out of order, with strangers between.

    Besides, as many coded tokens as said with bits: ``(tokens, bits)`` for every list.
    """
    g = torch.Generator().manual_seed(seed)
    batch, key_heads = len(lengths), len(lengths[0])
    flat = [length for text in lengths for length in text]
    start, at = torch.zeros(len(flat), dtype=torch.int64), 3
    for i in torch.randperm(len(flat), generator=g).tolist():
        start[i] = at
        at += flat[i] + i % 3
    segments = Segments(
        torch.randn(at, d_k, generator=g).to(dtype),
        torch.randn(at, d_v, generator=g).to(dtype),
        3 * torch.rand(at, generator=g),
        start,
        start + torch.tensor(flat),
        codes_of(coded, d_k, d_v, g) if coded else None,
    )
    # as a model makes them: heads side by side, and the filled part of a larger array
    q = torch.randn(batch, n_q, key_heads * group, d_k, generator=g).transpose(1, 2)
    larger = torch.randn(2, batch, key_heads, tail + 9, max(d_k, d_v), generator=g).to(dtype)
    return Problem(
        (strength * q).to(dtype),
        segments,
        larger[0, ..., :tail, :d_k],
        larger[1, ..., :tail, :d_v],
        scaling=d_k**-0.5,
        **options,
    )


def codes_of(lists, d_k, d_v, g) -> Codes:
    parts, table, at = [], torch.zeros(len(lists), 5, dtype=torch.int64), 0
    for row, (tokens, bits) in zip(table, lists, strict=True):
        keys, values = (torch.randn(tokens, d, generator=g) for d in (d_k, d_v))
        parts.append(encode(3 + keys, values, 3 * torch.rand(tokens, generator=g), bits))
        row[:4] = torch.tensor([at, tokens, *bits])
        at += len(parts[-1])
    return Codes(torch.cat(parts), table)


def seen_by(p: Problem) -> Tensor:
    batch, _, n_q, _ = p.q.shape
    tail = p.tail_keys.shape[2]
    if p.visible is not None:
        return p.visible.expand(batch, n_q, tail)
    return torch.ones(n_q, tail, dtype=torch.bool).tril(tail - n_q).expand(batch, n_q, tail)


def check(p: Problem, result: Tensor) -> None:
    """Compare with the definition in float64, up to the rounding of float32.

    A logit's sum of d products and its few other operations err by (d + 8) units of their absolute
    sum, and by 8 units of the logit where it is shifted, capped and turned into powers of two.
    Logits off by e change a weighted mean of values by 2 e times the largest. The weights (3 units
    each) and sums of n terms err by n + 8 units at worst, twice: above and below the line.
    """
    batch, heads, n_q, d_k = p.q.shape
    key_heads = p.tail_keys.shape[1]
    group = heads // key_heads
    seen = seen_by(p)
    assert result.shape == (batch, heads, n_q, p.tail_values.shape[-1])
    assert result.dtype == p.q.dtype
    assert result.transpose(1, 2).is_contiguous()
    for b in range(batch):
        for h in range(heads):
            number = b * key_heads + h // group
            listed_keys, listed_values, log_weight = p.segments.one(number)
            listed = len(log_weight)
            keys = torch.cat([listed_keys, p.tail_keys[b, h // group]]).double()
            values = torch.cat([listed_values, p.tail_values[b, h // group]]).double()
            weight = torch.zeros(len(keys), dtype=torch.float64)
            weight[:listed] = log_weight.double()
            query = p.q[b, h].double() * p.scaling
            keep = torch.cat([torch.ones(n_q, listed).bool(), seen[b]], 1)
            some = keep.any(1)
            assert (result[b, h, ~some] == 0).all()
            if not some.any():
                continue
            query, keep = query[some], keep[some]
            logits = query @ keys.T
            sizes = query.abs() @ keys.abs().T
            if p.softcap is not None:
                logits = p.softcap * torch.tanh(logits / p.softcap)
            logits = logits + weight
            expected = torch.softmax(logits.where(keep, -torch.inf), 1) @ values
            # per query, over the keys that it sees
            size = logits.abs().where(keep, 0)
            off = (d_k + 8) * sizes.where(keep, 0) + 8 * (size + size.amax(1, keepdim=True))
            largest = values.abs().amax(1).where(keep, 0).amax(1)
            error = 2 * UNIT * (off.amax(1) + keep.sum(1) + 8) * largest
            error = error[:, None] + expected.abs() * torch.finfo(p.q.dtype).eps
            assert ((result[b, h, some].double() - expected).abs() <= error).all()
