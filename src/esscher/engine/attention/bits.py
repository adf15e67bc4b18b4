"""In how many bits tokens of a cache are kept, and the bytes that takes; see ``coded.py``."""

from __future__ import annotations

from typing import TypeAlias

#: Tokens of a block, as in block.h.
BLOCK = 32
#: Bits of the entries of keys and values: both are 16 for tokens in the type of the model.
Bits: TypeAlias = tuple[int, int]
#: Bits of tokens that are not coded, and all that tokens can have, as far as that is of use: keys
#: take more harm than values.
EXACT: Bits = (16, 16)
ALL_BITS: tuple[Bits, ...] = (EXACT, (8, 8), (8, 4), (4, 4))


def row_bytes(width: int, bits: int) -> int:
    """Bytes of the codes of a key or value."""
    return width if bits == 8 else -(-width // 2)


def coded_bytes(tokens: int, d_k: int, d_v: int, bits: Bits) -> int:
    """Bytes of a list of coded tokens."""
    each = 6 + row_bytes(d_k, bits[0]) + row_bytes(d_v, bits[1])
    return -(-tokens // BLOCK) * 4 * d_k + tokens * each
