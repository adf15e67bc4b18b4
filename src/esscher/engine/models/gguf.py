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

import numpy as np

from esscher.core.errors import InputError
from esscher.core.untrusted import open_regular, shortened
from esscher.engine.models.transformers_library import transformers_module

#: Tensors of a file, and entries of its metadata; large models have a few thousand and a hundred.
TENSORS, ENTRIES = 100_000, 10_000
#: Values in all lists: the largest vocabularies have 1.3 million, with their merges and scores.
LISTED = 2_000_000
#: Bytes of a name, and of a string that is kept; a chat template is longer.
NAME, SHORT = 1024, 4096
#: Dimensions of a tensor.
DIMENSIONS = 4

#: Types of values by their number in the file: a name, and how a number is stored.
_NUMBERS = {
    0: ("uint8", "<B"),
    1: ("int8", "<b"),
    2: ("uint16", "<H"),
    3: ("int16", "<h"),
    4: ("uint32", "<I"),
    5: ("int32", "<i"),
    6: ("float32", "<f"),
    7: ("bool", "<?"),
    10: ("uint64", "<Q"),
    11: ("int64", "<q"),
    12: ("float64", "<d"),
}
_STRING, _LIST = 8, 9


@dataclass(frozen=True)
class Skipped:
    """A value that was stepped over: a list, or a long string.

    Attributes
    ----------
    kind
        Type of its values, such as ``"float32"`` or ``"string"``; ``"text"`` for a long string.
    length
        How many there are; bytes of a long string.
    """

    kind: str
    length: int


@dataclass(frozen=True)
class GgufHeader:
    """The header of a GGUF file.

    Attributes
    ----------
    metadata
        Entries by name, such as ``"llama.block_count"``.
    tensors
        Shapes of the tensors by name, in PyTorch's order: rows first.
    """

    metadata: Mapping[str, int | float | bool | str | Skipped]
    tensors: Mapping[str, tuple[int, ...]]

    @property
    def architecture(self) -> str:
        """Kind of the model, as llama.cpp calls it; empty if the file does not say."""
        found = self.metadata.get("general.architecture", "")
        return found if isinstance(found, str) else ""

    def number(self, name: str) -> int | float | None:
        """An entry that belongs to the architecture, such as ``"block_count"``; None if missing."""
        found = self.metadata.get(f"{self.architecture}.{name}")
        return found if isinstance(found, int | float) else None


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
                return _Walk(data).header()
            except InputError as error:
                raise InputError(f"{path} cannot be loaded: {error}") from error


class _Walk:
    """Goes through the header once."""

    def __init__(self, data: mmap.mmap) -> None:
        self._data, self._size, self._place, self._listed = data, len(data), 0, 0

    def header(self) -> GgufHeader:
        magic, version, tensors, entries = self._numbers("<4sIQQ")
        if magic != b"GGUF" or version not in (2, 3):
            raise InputError("it is not a GGUF file of version 2 or 3")
        # an entry takes at least 13 bytes, a tensor's description at least 24
        if tensors > TENSORS or entries > ENTRIES or 24 * tensors + 13 * entries > self._size:
            raise InputError(
                f"its header promises {tensors:,} tensors and {entries:,} entries, which "
                f"{self._size:,} bytes cannot hold; it is damaged: download it again"
            )
        metadata: dict[str, int | float | bool | str | Skipped] = {}
        for _ in range(entries):
            name = self._name(metadata)
            metadata[name] = self._value(name)
        return GgufHeader(metadata, self._tensors(tensors))

    def _tensors(self, count: int) -> dict[str, tuple[int, ...]]:
        found: dict[str, tuple[int, ...]] = {}
        total = 0
        for _ in range(count):
            name = self._name(found)
            (dimensions,) = self._numbers("<I")
            if dimensions > DIMENSIONS:
                raise InputError(
                    f"{name} has {dimensions:,} dimensions; at most {DIMENSIONS} occur"
                )
            shape = self._numbers(f"<{dimensions}Q")
            self._numbers("<IQ")  # how it is packed, and where
            found[name] = tuple(reversed(shape))
            total += math.prod(shape)
        if total > 8 * self._size:  # a number takes more than a bit, however it is packed
            raise InputError(
                f"its tensors have {total:,} numbers, which {self._size:,} bytes cannot hold; it "
                "is damaged: download it again"
            )
        return found

    def _name(self, known: Mapping[str, object]) -> str:
        (length,) = self._numbers("<Q")
        if length > NAME:
            raise InputError(f"it has a name of {length:,} bytes; at most {NAME:,} are read")
        name = self._text(length)
        if not name.isprintable():
            raise InputError(f"it has the name {shortened(name)}; download it again")
        if name in known:
            raise InputError(f"it has {name} twice; it is damaged: download it again")
        return name

    def _value(self, name: str) -> int | float | bool | str | Skipped:
        (kind,) = self._numbers("<I")
        if kind == _STRING:
            (length,) = self._numbers("<Q")
            if length <= SHORT:
                return self._text(length)
            self._skip(length)
            return Skipped("text", length)
        if kind == _LIST:
            return self._list(name)
        value: int | float | bool = self._numbers(self._number_type(kind, name)[1])[0]
        return value

    def _list(self, name: str) -> Skipped:
        kind, length = self._numbers("<IQ")
        self._listed += length
        if self._listed > LISTED:
            raise InputError(
                f"its lists, up to {name}, have {self._listed:,} values; at most {LISTED:,} are "
                "read: no vocabulary is that large"
            )
        if kind == _STRING:
            for _ in range(length):
                self._skip(*self._numbers("<Q"))
            return Skipped("string", length)
        title, form = self._number_type(kind, name)
        self._skip(length * struct.calcsize(form))
        return Skipped(title, length)

    def _number_type(self, kind: int, name: str) -> tuple[str, str]:
        if kind not in _NUMBERS:
            raise InputError(f"{name} is of type {kind}, which is not read; download it again")
        return _NUMBERS[kind]

    def _text(self, length: int) -> str:
        start = self._place
        self._skip(length)
        try:
            return self._data[start : self._place].decode("utf-8")
        except UnicodeDecodeError as error:
            raise InputError("a string is not UTF-8; it is damaged: download it again") from error

    def _numbers(self, form: str) -> tuple[Any, ...]:
        start = self._place
        self._skip(struct.calcsize(form))
        return struct.unpack_from(form, self._data, start)

    def _skip(self, length: int) -> None:
        self._place += length
        if self._place > self._size:
            raise InputError("its header has no end; it is cut off: download it again")


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
    gguf = transformers_module("gguf")
    with _ONE:
        own = {name: getattr(gguf, name) for name in ("GGUFReader", "get_tensor_name_map")}
        gguf.GGUFReader = functools.cache(_faster(gguf.GGUFReader))
        gguf.get_tensor_name_map = functools.cache(gguf.get_tensor_name_map)
        try:
            yield
        finally:
            for name, value in own.items():
                setattr(gguf, name, value)


def _faster(reader: Any) -> Any:
    """A reader of plain arrays: taking a slice of a ``numpy.memmap`` costs several times more."""

    class Reader(reader):  # type: ignore[misc]
        @property
        def data(self) -> Any:
            return self._data

        @data.setter
        def data(self, mapped: Any) -> None:
            self._data = np.asarray(mapped)

    return Reader
