"""The header of a GGUF file: what it says about the model, and which tensors it holds.

The file may come from anybody, and the readers of gguf and transformers make an object of every
entry of every list before anything can be looked at. Here the header is walked once, from front to
back: numbers and short strings are kept, lists are stepped over. Time and memory are bounded by the
bytes of the file and by the limits below.
"""

from __future__ import annotations

import contextlib
import functools
import math
import mmap
import os
import struct
import threading
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from esscher.core.errors import InputError
from esscher.core.shown import shortened
from esscher.core.untrusted import open_regular
from esscher.engine.models.transformers_library import transformers_module

#: Tensors of a file, and entries of its metadata; large models have a few thousand and a hundred.
TENSORS, ENTRIES = 100_000, 10_000
#: Values in all lists: the largest vocabularies have 1.3 million, with their merges and scores.
LISTED = 2_000_000
#: Bytes of a name, and of a string that is kept; a chat template is longer.
NAME, SHORT = 1024, 4096
#: Dimensions of a tensor.
DIMENSIONS = 4

#: How numbers are stored, by their type in the file: integers, floats and booleans.
_NUMBERS = {
    0: "<B",
    1: "<b",
    2: "<H",
    3: "<h",
    4: "<I",
    5: "<i",
    6: "<f",
    7: "<?",
    10: "<Q",
    11: "<q",
    12: "<d",
}
_STRING, _LIST = 8, 9


@dataclass(frozen=True)
class GgufHeader:
    """The header of a GGUF file.

    Attributes
    ----------
    metadata
        Numbers and short strings by name, such as ``"llama.block_count"``; lists and long strings
        are left out.
    tensors
        Shapes of the tensors by name, in PyTorch's order: rows first.
    """

    metadata: Mapping[str, int | float | bool | str]
    tensors: Mapping[str, tuple[int, ...]]

    @property
    def architecture(self) -> str:
        """Kind of the model, as llama.cpp calls it; empty if the file does not say."""
        name = self.metadata.get("general.architecture", "")
        return name if isinstance(name, str) else ""

    def number(self, name: str) -> int | float | None:
        """An entry that belongs to the architecture, such as ``"block_count"``; None if missing."""
        value = self.metadata.get(f"{self.architecture}.{name}")
        return value if isinstance(value, int | float) else None


def read_gguf_metadata(path: Path) -> GgufHeader:
    """Read the header of a GGUF file.

    Raises
    ------
    InputError
        If it is no GGUF file, or its header promises more than the file can hold.
    """
    with open_regular(path) as file:
        size = os.fstat(file.fileno()).st_size
        if size < 24:
            raise InputError(f"{path} cannot be loaded: it is not a GGUF file, or it is cut off")
        with mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as data:
            try:
                return _read_header(_Cursor(data))
            except InputError as error:
                raise InputError(f"{path} cannot be loaded: {error}") from error


class _Cursor:
    """A place in the file, which never goes behind its end."""

    def __init__(self, data: mmap.mmap) -> None:
        self.data, self.size, self.place = data, len(data), 0

    def skip(self, length: int) -> None:
        self.place += length
        if self.place > self.size:
            raise InputError("its header has no end; it is cut off: download it again")

    def numbers(self, form: str) -> tuple[Any, ...]:
        start = self.place
        self.skip(struct.calcsize(form))
        return struct.unpack_from(form, self.data, start)

    def text(self, length: int) -> str:
        start = self.place
        self.skip(length)
        try:
            return self.data[start : self.place].decode("utf-8")
        except UnicodeDecodeError as error:
            raise InputError("a string is not UTF-8; it is damaged: download it again") from error

    def name(self, known: Mapping[str, object]) -> str:
        """A name that is short, printable and new."""
        (length,) = self.numbers("<Q")
        if length > NAME:
            raise InputError(f"it has a name of {length:,} bytes; at most {NAME:,} are read")
        name = self.text(length)
        if not name.isprintable():
            raise InputError(f"it has the name {shortened(name)}; download it again")
        if name in known:
            raise InputError(f"it has {name} twice; it is damaged: download it again")
        return name


def _read_header(file: _Cursor) -> GgufHeader:
    magic, version, tensor_count, entry_count = file.numbers("<4sIQQ")
    if magic != b"GGUF" or version not in (2, 3):
        raise InputError("it is not a GGUF file of version 2 or 3")
    # an entry takes at least 13 bytes, a tensor's description at least 24
    least = 24 * tensor_count + 13 * entry_count
    if tensor_count > TENSORS or entry_count > ENTRIES or least > file.size:
        raise InputError(
            f"its header promises {tensor_count:,} tensors and {entry_count:,} entries, which "
            f"{file.size:,} bytes cannot hold; it is damaged: download it again"
        )
    entries: dict[str, int | float | bool | str | None] = {}
    listed = 0
    for _ in range(entry_count):
        name = file.name(entries)
        entries[name] = None
        (kind,) = file.numbers("<I")
        length, value_kind = 1, kind
        if kind == _LIST:
            value_kind, length = file.numbers("<IQ")
            listed += length
            if listed > LISTED:
                raise InputError(
                    f"its lists, up to {name}, have {listed:,} values; at most {LISTED:,} are "
                    "read: no vocabulary is that large"
                )
        if value_kind == _STRING:
            for _ in range(length):
                (size,) = file.numbers("<Q")
                if kind == _STRING and size <= SHORT:
                    entries[name] = file.text(size)
                else:
                    file.skip(size)
        elif value_kind not in _NUMBERS:
            raise InputError(
                f"{name} is of type {value_kind}, which is not read; download it again"
            )
        elif kind == _LIST:
            file.skip(length * struct.calcsize(_NUMBERS[value_kind]))
        else:
            (entries[name],) = file.numbers(_NUMBERS[kind])
    tensors: dict[str, tuple[int, ...]] = {}
    for _ in range(tensor_count):
        name = file.name(tensors)
        (dimensions,) = file.numbers("<I")
        if dimensions > DIMENSIONS:
            raise InputError(f"{name} has {dimensions:,} dimensions; at most {DIMENSIONS} occur")
        tensors[name] = file.numbers(f"<{dimensions}Q")[::-1]
        file.numbers("<IQ")  # how it is packed, and where
    total = sum(map(math.prod, tensors.values()))
    if total > 8 * file.size:  # a number takes more than a bit, however it is packed
        raise InputError(
            f"its tensors have {total:,} numbers, which {file.size:,} bytes cannot hold; it is "
            "damaged: download it again"
        )
    metadata = {name: value for name, value in entries.items() if value is not None}
    return GgufHeader(metadata, tensors)


# Read the header of a GGUF file once while transformers loads a model from it.
#
# transformers reads it three times, for configuration, weights and tokenizer; every time an object
# is made of each word of the vocabulary. It also makes the table of all tensor names once for every
# module of the model. On SmolLM2 that was two thirds of the time it took to load.

#: What is replaced belongs to the package: one model at a time.
_ONE = threading.Lock()


@contextlib.contextmanager
def gguf_read_once() -> Iterator[None]:
    """While this is entered, gguf reads a file once, and makes a table of names once."""
    import numpy as np

    gguf = transformers_module("gguf")
    with _ONE:
        reader, name_map = gguf.GGUFReader, gguf.get_tensor_name_map

        class Reader(reader):  # type: ignore[misc, valid-type]
            """Reads plain arrays: a slice of a ``numpy.memmap`` costs several times more."""

            def __setattr__(self, name: str, value: Any) -> None:
                super().__setattr__(name, np.asarray(value) if name == "data" else value)

        gguf.GGUFReader = functools.cache(Reader)
        gguf.get_tensor_name_map = functools.cache(name_map)
        try:
            yield
        finally:
            gguf.GGUFReader, gguf.get_tensor_name_map = reader, name_map
