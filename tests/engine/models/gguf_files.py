"""GGUF files written byte by byte, so that their headers can say anything."""

from __future__ import annotations

import struct

import numpy as np

UINT32, INT32, FLOAT32, BOOL, STRING, LIST, UINT64 = 4, 5, 6, 7, 8, 9, 10
_FORMS = {UINT32: "<I", INT32: "<i", FLOAT32: "<f", BOOL: "<?", UINT64: "<Q"}


def string(text: str) -> bytes:
    """A string: its length, and its bytes."""
    data = text.encode()
    return struct.pack("<Q", len(data)) + data


def entry(name: str, kind: int, value: object) -> bytes:
    """An entry of the metadata; the value of a list is its type, its length and its bytes."""
    if kind == STRING:
        payload = string(value)
    elif kind == LIST:
        inner, length, data = value
        payload = struct.pack("<IQ", inner, length) + data
    else:
        payload = struct.pack(_FORMS[kind], value)
    return string(name) + struct.pack("<I", kind) + payload


def strings(words: list[str]) -> tuple[int, int, bytes]:
    """The value of a list of strings."""
    return STRING, len(words), b"".join(map(string, words))


def numbers(values: object, kind: int = FLOAT32) -> tuple[int, int, bytes]:
    """The value of a list of numbers."""
    dtype = {FLOAT32: "<f4", INT32: "<i4", UINT32: "<u4"}[kind]
    array = np.asarray(values, dtype)
    return kind, array.size, array.tobytes()


def gguf_bytes(entries: list[bytes], tensors: dict[str, np.ndarray] | None = None) -> bytes:
    """A file of version 3 with these entries and tensors of 32-bit floats."""
    table, data = b"", b""
    for name, array in (tensors or {}).items():
        shape = array.shape[::-1]
        table += string(name) + struct.pack(f"<I{len(shape)}Q", len(shape), *shape)
        table += struct.pack("<IQ", 0, len(data))
        data += array.astype("<f4").tobytes()
        data += bytes(-len(data) % 32)
    head = b"GGUF" + struct.pack("<IQQ", 3, len(tensors or {}), len(entries))
    head += b"".join(entries) + table
    return head + bytes(-len(head) % 32) + data
