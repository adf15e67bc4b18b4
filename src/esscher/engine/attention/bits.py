"""In how many bits tokens of a cache are kept, and the bytes that takes; see ``coded.py``."""

from __future__ import annotations

from typing import Any, TypeAlias

#: Tokens of a block, as in block.h.
BLOCK = 32
#: Bits of the entries of keys and values: both are 16 for tokens in the type of the model.
Bits: TypeAlias = tuple[int, int]
#: Bits of tokens that are not coded, and all that tokens can have, as far as that is of use: keys
#: take more harm than values.
EXACT: Bits = (16, 16)
ALL_BITS: tuple[Bits, ...] = (EXACT, (8, 8), (8, 4), (4, 4))
#: Bytes of an entry in full precision, by the type of a model.
ENTRY_BYTES = {"float64": 8, "float32": 4, "bfloat16": 2, "float16": 2}


def row_bytes(width: int, bits: int) -> int:
    """Bytes of the codes of a key or value."""
    return width if bits == 8 else -(-width // 2)


def coded_bytes(tokens: Any, d_k: int, d_v: int, bits: Bits) -> Any:
    """Bytes of a list of coded tokens, or of several such lists."""
    each = 6 + row_bytes(d_k, bits[0]) + row_bytes(d_v, bits[1])
    return -(-tokens // BLOCK) * 4 * d_k + tokens * each


def list_bytes(
    tokens: Any, exact: int, of: int, width: int, entry: int, bits: Bits, weighted: bool = True
) -> Any:
    """Bytes of a list that keeps so many of ``of`` tokens, or of several such lists.

    Parameters
    ----------
    tokens
        A number of tokens, or an array of them.
    exact
        Tokens in full precision, however few bits the others have.
    of
        Tokens that there are: all of them in full precision need no weights.
    width, entry
        Entries of a key, and of a value, and the bytes of one in full precision.
    weighted
        Whether tokens have weights.
    """
    import numpy as np

    tokens = np.maximum(tokens, exact)
    coded = tokens - exact if bits != EXACT else 0
    size = (tokens - coded) * (2 * width * entry + 4 * weighted)
    size = size + coded_bytes(coded, width, width, bits) - 2 * coded * (not weighted)
    return np.minimum(size, of * 2 * width * entry)
