"""Keys and values in 8 or 4 bits per entry, a different number of them in every list.

Tokens of a list come in blocks of 32. In a block every channel of the keys has a least entry and a
scale, and so has every token's value; an entry is ``least + scale * code``. Layout of a block of m
tokens, in bytes one after the other:

    scales and least entries of the keys' channels     2 d_k float16
    scales and least entries of the tokens' values      2 m   float16
    log-weights of the tokens                             m   float16
    codes of the keys, then of the values               rows of 8- or 4-bit codes

A byte of 4-bit codes has the code of an entry of the first half, and above it that of the same
entry of the second half of its row. Only the last block of a list has less than 32 tokens.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from esscher.engine.attention.bits import BLOCK, Bits, coded_bytes, row_bytes


@dataclass(frozen=True, eq=False)
class Codes:
    """Coded tokens of lists.

    Attributes
    ----------
    data
        [bytes] in uint8: blocks of all lists.
    table
        [lists, 5] in int64, on the same device: first byte, tokens, bits of keys and of values, and
        the number of the first token, if those of all lists are numbered.
    """

    data: Tensor
    table: Tensor

    def decoded(self, number: int, d_k: int, d_v: int) -> tuple[Tensor, Tensor, Tensor]:
        """Keys, values and log-weights of a list in float32."""
        start, tokens, key_bits, value_bits, _ = self.table[number].tolist()
        bits = key_bits, value_bits
        stop = start + coded_bytes(tokens, d_k, d_v, bits)
        return decode(self.data[start:stop], tokens, d_k, d_v, bits)

    def copied(self, d_k: int, d_v: int) -> Codes:
        """The same lists one after the other, each with memory of its own."""
        table, parts, byte, first = self.table.clone(), [], 0, 0
        for row, (start, tokens, *bits, _) in zip(table, self.table.tolist(), strict=True):
            size = coded_bytes(tokens, d_k, d_v, (bits[0], bits[1]))
            parts.append(self.data[start : start + size])
            row[0], row[4] = byte, first
            byte, first = byte + size, first + tokens
        return Codes(torch.cat(parts), table)


def encode(keys: Tensor, values: Tensor, log_weight: Tensor, bits: Bits) -> Tensor:
    """Bytes of a list of tokens: keys [n, d_k], values [n, d_v], log-weights [n]."""
    parts = []
    for k, v, w in _in_blocks(keys, values, log_weight[:, None]):
        key_codes, *of_keys = _rounded(k, bits[0], 1)
        value_codes, *of_values = _rounded(v, bits[1], 2)
        numbers = [x.flatten(1).to(torch.float16) for x in (*of_keys, *of_values, w)]
        packed = [_packed(key_codes, bits[0]), _packed(value_codes, bits[1])]
        parts.append(torch.cat([*(x.view(torch.uint8) for x in numbers), *packed], 1).flatten())
    return torch.cat(parts) if parts else keys.new_empty(0, dtype=torch.uint8)


def decode(
    data: Tensor, tokens: int, d_k: int, d_v: int, bits: Bits
) -> tuple[Tensor, Tensor, Tensor]:
    """Keys, values and log-weights in float32 of a list of so many tokens."""
    keys, values = (torch.empty(tokens, d, device=data.device) for d in (d_k, d_v))
    log_weight = torch.empty(tokens, 1, device=data.device)
    at = 0
    for k, v, w in _in_blocks(keys, values, log_weight):
        blocks, m = k.shape[:2]
        codes = [m * row_bytes(d, b) for d, b in zip((d_k, d_v), bits, strict=True)]
        sizes = [2 * d_k, 2 * d_k, 2 * m, 2 * m, 2 * m, *codes]
        stop = at + blocks * sum(sizes)
        *numbers, key_codes, value_codes = torch.split(data[at:stop].view(blocks, -1), sizes, 1)
        key_scale, key_least, scale, least, weight = (
            x.flatten().clone().view(torch.float16).view(blocks, -1).to(torch.float32)
            for x in numbers
        )
        k[:] = key_least[:, None] + key_scale[:, None] * _unpacked(key_codes, m, d_k, bits[0])
        v[:] = least[..., None] + scale[..., None] * _unpacked(value_codes, m, d_v, bits[1])
        w[:] = weight[..., None]
        at = stop
    return keys, values, log_weight[:, 0]


def rounded_keys(keys: Tensor, bits: int) -> Tensor:
    """Keys [n, d_k] as they are once they have been coded, in float32."""
    out = torch.empty_like(keys, dtype=torch.float32)
    for (rounded,), (k,) in zip(_in_blocks(out), _in_blocks(keys), strict=True):
        codes, scale, least = _rounded(k, bits, 1)
        rounded[:] = least + scale * codes
    return out


def _in_blocks(*arrays: Tensor) -> list[list[Tensor]]:
    """Whole blocks as [blocks, tokens, d], and the last one if it is smaller: views."""
    whole = len(arrays[0]) // BLOCK * BLOCK
    parts = [[x[:whole].view(-1, BLOCK, x.shape[1]) for x in arrays]] if whole else []
    if whole < len(arrays[0]):
        parts.append([x[None, whole:] for x in arrays])
    return parts


def _rounded(x: Tensor, bits: int, dim: int) -> tuple[Tensor, Tensor, Tensor]:
    """Codes, scales and least entries along a dimension, the latter as float16 has them."""
    x, largest = x.to(torch.float32), torch.finfo(torch.float16).max
    low, high = x.aminmax(dim=dim, keepdim=True)
    least = low.clamp(-largest, largest).to(torch.float16).to(torch.float32)
    scale = ((high - least) / (2**bits - 1)).clamp(0.0, largest).to(torch.float16).to(torch.float32)
    codes = ((x - least) / scale.where(scale > 0, 1.0)).round_().clamp_(0, 2**bits - 1)
    return codes, scale, least


def _packed(codes: Tensor, bits: int) -> Tensor:
    """Bytes [blocks, bytes] of codes [blocks, tokens, d]."""
    codes = codes.to(torch.uint8)
    if bits == 4:
        half = -(-codes.shape[2] // 2)
        first, second = codes[..., :half].clone(), codes[..., half:]
        first[..., : second.shape[2]] |= second << 4
        codes = first
    return codes.flatten(1)


def _unpacked(data: Tensor, tokens: int, width: int, bits: int) -> Tensor:
    """Codes [blocks, tokens, d] of bytes [blocks, bytes]."""
    rows = data.reshape(len(data), tokens, -1)
    if bits == 4:
        rows = torch.cat([rows & 15, rows >> 4], 2)[..., :width]
    return rows
