"""Sizes that a Parquet file states, read before pyarrow unpacks anything.

A file's table of contents may say anything about sizes; memory is taken for what the header in
front of each page says. Both are structs in Thrift's compact protocol: fields, each a byte of type
and number, then its value.

No library was found that gives the same protection. pyarrow 26 shows the sizes of the table of
contents alone: of a file of 13 kB whose table said 1,000 bytes, it took 1,200 MiB for one page,
read row by row (``iter_batches(1)``) with ``pre_buffer=False``, a small ``buffer_size`` and small
``thrift_string_size_limit`` and ``thrift_container_size_limit``, which bound the table only. An
index of pages has packed sizes only and may be left out; no memory pool of pyarrow can be capped
from Python. And on some damaged tables of contents pyarrow ends the process: an exception of its
C++ part, thrown while a column's entry (``metadata.row_group(0).column(0)``) is looked at. On the
same files arro3-io 0.9 panics (it shows no sizes at all), and fastparquet 2026.9 prints to the
terminal and raises a KeyError. thriftpy2 0.7 has no limits: a number of 400,000 bytes takes it 16
seconds, one of a million 99.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from mmap import mmap
from typing import Any

from esscher.core.errors import InputError

#: Types of fields: truth values, a byte, whole numbers, a double, bytes, lists, structs.
_TRUE, _FALSE, _BYTE, _I16, _I32, _I64, _DOUBLE, _BINARY, _LIST, _SET, _MAP, _STRUCT = range(1, 13)
#: Structs and lists inside each other; eight occur.
_DEEPEST = 16
#: Bytes that the header of a page may have, and a table of contents.
LONGEST_HEADER, LONGEST_CONTENTS = 2**20, 2**24
_MAGIC = b"PAR1"

Struct = dict[int, Any]


@dataclass(frozen=True)
class ColumnChunk:
    """The pages of one column in one part of a file.

    Attributes
    ----------
    path
        Name of the column; more than one where columns are nested.
    start, end
        Where its pages are.
    unpacked
        Bytes of the pages when they are unpacked, by the table of contents.
    """

    path: tuple[bytes, ...]
    start: int
    end: int
    unpacked: int


@dataclass(frozen=True)
class RowGroup:
    """One part of a file: some rows of all columns."""

    rows: int
    chunks: tuple[ColumnChunk, ...]


def row_groups(data: bytes | mmap) -> tuple[RowGroup, ...]:
    """Return the parts of a Parquet file, by its table of contents, in linear time.

    Raises
    ------
    InputError
        If the table of contents cannot be read, or is too long.
    """
    end = len(data) - 8
    if end < 4 or data[end + 4 :] != _MAGIC:
        raise InputError("it is not a Parquet file")
    length = int.from_bytes(data[end : end + 4], "little")
    if not 0 < length <= end:
        raise InputError("its table of contents lies outside of the file")
    if length > LONGEST_CONTENTS:
        raise InputError(
            f"its table of contents has {length:,} bytes; at most {LONGEST_CONTENTS:,} are read"
        )
    start = end - length
    contents = _Reader(data, start, end).struct()
    groups = tuple(_row_group(found) for found in _structs(contents, 4))
    # pages that belong to many columns would be gone through again and again
    if sum(max(0, chunk.end - chunk.start) for group in groups for chunk in group.chunks) > start:
        raise InputError("its columns lie on top of each other")
    return groups


def page_sizes(data: bytes | mmap, chunk: ColumnChunk) -> list[int]:
    """Return the bytes of each page of a column chunk when unpacked, by the pages' own headers.

    Raises
    ------
    InputError
        If headers and table of contents do not fit together.
    """
    if not 0 <= chunk.start <= chunk.end <= len(data):
        raise InputError("the pages of a column lie outside of the file")
    place, sizes = chunk.start, []
    while place < chunk.end:
        reader = _Reader(data, place, min(len(data), place + LONGEST_HEADER))
        header = reader.struct()
        unpacked, packed = _whole(header, 2, "page"), _whole(header, 3, "page")
        if unpacked < 0 or packed < 0:
            raise InputError("a page has a negative size")
        sizes.append(unpacked)
        place = reader.place + packed
    return sizes


def _row_group(found: Struct) -> RowGroup:
    chunks = []
    for column in _structs(found, 1):
        about = column.get(3)
        if not isinstance(about, dict):
            raise InputError("a column is not described")
        start = _whole(about, 9, "column")
        dictionary = about.get(11)
        if isinstance(dictionary, int) and dictionary > 0:
            start = min(start, dictionary)
        path = about.get(3)
        if not isinstance(path, list) or not all(isinstance(name, bytes) for name in path):
            raise InputError("a column has no name")
        chunks.append(
            ColumnChunk(
                path=tuple(path),
                start=start,
                end=start + _whole(about, 7, "column"),
                unpacked=_whole(about, 6, "column"),
            )
        )
    return RowGroup(_whole(found, 3, "part"), tuple(chunks))


def _structs(found: Struct, number: int) -> Sequence[Struct]:
    items = found.get(number, [])
    if not isinstance(items, list) or not all(isinstance(item, dict) for item in items):
        raise InputError("its table of contents holds what no table has")
    return items


def _whole(found: Struct, number: int, what: str) -> int:
    value = found.get(number)
    if isinstance(value, bool) or not isinstance(value, int):
        raise InputError(f"a {what} does not say how large it is")
    return value


class _Reader:
    """Reads structs from front to back; every value takes at least a byte of what is left."""

    def __init__(self, data: bytes | mmap, place: int, end: int) -> None:
        self._data, self.place, self._end = data, place, end

    def struct(self, depth: int = 0) -> Struct:
        """The fields of a struct by their numbers; the last one where a number comes twice."""
        found: Struct = {}
        number = 0
        while (head := self._byte()) != 0:
            kind, delta = head & 15, head >> 4
            number = number + delta if delta else self._signed()
            found[number] = kind == _TRUE if kind in (_TRUE, _FALSE) else self._value(kind, depth)
        return found

    def _value(self, kind: int, depth: int) -> Any:
        if depth > _DEEPEST:
            raise InputError("a struct has no end")
        if kind == _BYTE:
            return self._byte()
        if kind in (_I16, _I32, _I64):
            return self._signed()
        if kind == _DOUBLE:
            return self._bytes(8)
        if kind == _BINARY:
            return self._bytes(self._unsigned())
        if kind in (_LIST, _SET):
            return self._list(depth)
        if kind == _STRUCT:
            return self.struct(depth + 1)
        raise InputError("a struct holds what none in a Parquet file has")

    def _list(self, depth: int) -> list[Any]:
        head = self._byte()
        kind, count = head & 15, head >> 4
        if count == 15:
            count = self._unsigned()
        if count > self._end - self.place:
            raise InputError("a list has no end")
        if kind in (_TRUE, _FALSE):  # truth values take a byte in a list
            return [byte == _TRUE for byte in self._bytes(count)]
        return [self._value(kind, depth + 1) for _ in range(count)]

    def _bytes(self, count: int) -> bytes:
        if count > self._end - self.place:
            raise InputError("a struct has no end")
        self.place += count
        return self._data[self.place - count : self.place]

    def _byte(self) -> int:
        if self.place >= self._end:
            raise InputError("a struct has no end")
        self.place += 1
        return self._data[self.place - 1]

    def _unsigned(self) -> int:
        value = 0
        for shift in range(0, 70, 7):
            byte = self._byte()
            value |= (byte & 127) << shift
            if byte < 128:
                return value
        raise InputError("a struct holds a number without end")

    def _signed(self) -> int:
        value = self._unsigned()
        return (value >> 1) ^ -(value & 1)
