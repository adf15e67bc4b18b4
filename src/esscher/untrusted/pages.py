"""The sizes of the pages of a Parquet file, from the headers that its reader goes by.

A file's table of contents may say anything about sizes; memory is taken for what the header in
front of each page says. Headers are structs in Thrift's compact protocol: fields, each a byte of
type and number, then its value. Of a page's header the second and third field matter, its size
unpacked and packed.
"""

from __future__ import annotations

from mmap import mmap
from typing import Any

from esscher.errors import InputError

#: Types of fields: truth values, a byte, whole numbers, a double, bytes, lists, structs.
_TRUE, _FALSE, _BYTE, _I16, _I32, _I64, _DOUBLE, _BINARY, _LIST, _SET, _MAP, _STRUCT = range(1, 13)
#: Structs inside each other in a header; three occur.
_DEEPEST = 8
#: Bytes that a header may have; statistics make it long.
LONGEST = 2**20


def page_sizes(data: bytes | mmap, chunk: Any) -> list[int]:
    """Bytes of each page of a column chunk when it is unpacked.

    Parameters
    ----------
    data
        The whole file.
    chunk
        The chunk's entry in the table of contents, as pyarrow gives it.

    Raises
    ------
    InputError
        If headers and table of contents do not fit together.
    """
    start = chunk.data_page_offset
    if chunk.has_dictionary_page and chunk.dictionary_page_offset is not None:
        start = (
            min(start, chunk.dictionary_page_offset) if chunk.dictionary_page_offset > 0 else start
        )
    end = start + chunk.total_compressed_size
    if not 0 <= start <= end <= len(data):
        raise InputError("the pages of a column lie outside of the file")
    sizes = []
    while start < end:
        header = _Header(data, start)
        unpacked, packed = header.sizes()
        if unpacked < 0 or packed < 0:
            raise InputError("a page has a negative size")
        sizes.append(unpacked)
        start = header.place + packed
    return sizes


class _Header:
    """Reads a struct from front to back."""

    def __init__(self, data: bytes | mmap, place: int) -> None:
        self._data, self.place, self._end = data, place, min(len(data), place + LONGEST)

    def sizes(self) -> tuple[int, int]:
        """The second and third field."""
        found: dict[int, int] = {}
        number = 0
        while (head := self._byte()) != 0:
            kind, delta = head & 15, head >> 4
            number = number + delta if delta else self._whole()
            if number in (2, 3) and kind == _I32:
                found[number] = self._whole()
            else:
                self._skip(kind, 0)
        if found.keys() < {2, 3}:
            raise InputError("a page does not say how large it is")
        return found[2], found[3]

    def _byte(self) -> int:
        if self.place >= self._end:
            raise InputError("the header of a page has no end")
        self.place += 1
        return self._data[self.place - 1]

    def _unsigned(self) -> int:
        value = 0
        for shift in range(0, 70, 7):
            byte = self._byte()
            value |= (byte & 127) << shift
            if byte < 128:
                return value
        raise InputError("the header of a page holds a number without end")

    def _whole(self) -> int:
        value = self._unsigned()
        return (value >> 1) ^ -(value & 1)

    def _skip(self, kind: int, depth: int) -> None:
        if depth > _DEEPEST:
            raise InputError("the header of a page has no end")
        if kind in (_TRUE, _FALSE):
            return
        if kind == _BYTE:
            self.place += 1
        elif kind in (_I16, _I32, _I64):
            self._unsigned()
        elif kind == _DOUBLE:
            self.place += 8
        elif kind == _BINARY:
            length = self._unsigned()
            self.place += length
        elif kind in (_LIST, _SET):
            head = self._byte()
            count = head >> 4 if head >> 4 < 15 else self._unsigned()
            for _ in range(min(count, LONGEST)):
                self._item(head & 15, depth)
        elif kind == _STRUCT:
            while (head := self._byte()) != 0:
                if not head >> 4:
                    self._whole()
                self._skip(head & 15, depth + 1)
        else:
            raise InputError("the header of a page holds what no page has")

    def _item(self, kind: int, depth: int) -> None:
        """An entry of a list; truth values take a byte there."""
        if kind in (_TRUE, _FALSE):
            self._byte()
        else:
            self._skip(kind, depth + 1)
            if self.place > self._end:
                raise InputError("the header of a page has no end")
