"""Small files that would unpack to gigabytes, in a process that may not take them."""

from __future__ import annotations

import bz2
import gzip
import io
import json
import lzma
import os
import struct
import subprocess
import sys
import time

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from esscher.core.errors import InputError
from esscher.core.untrusted import (
    limits,
    map_array,
    parse_json,
    read_json,
    read_table,
    row_groups,
)
from esscher.core.untrusted.pages import ColumnChunk, RowGroup
from esscher.engine.text import read_text

MIB = 2**20
#: Reads so many characters of each text, and says what its memory grew by.
READ = """
import resource, sys
from esscher.core.errors import InputError
from esscher.engine.text import read_text
import pyarrow.parquet, pyarrow.compute
for name, limit in zip(sys.argv[1::2], sys.argv[2::2]):
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    try:
        found = sum(len(piece.text) for piece in read_text(name, limit_chars=int(limit)))
    except InputError as error:
        found = f"refused {error}"
    print(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before, found)
"""


def read_apart(*words: object) -> list[tuple[int, str]]:
    """What a process of its own says about texts: how many MiB they took, and what came of them."""
    done = subprocess.run(
        [sys.executable, "-c", READ, *map(str, words)],
        capture_output=True, text=True, timeout=120, check=True, env=os.environ,
    )  # fmt: skip
    lines = [line.split(" ", 1) for line in done.stdout.strip().splitlines()]
    return [(int(kilobytes) // 1024, said) for kilobytes, said in lines]


def blanks(pack, size: int) -> bytes:
    """A packed text of blanks; packed in parts, so that the test needs no memory either."""
    return pack(b" " * MIB) * (size // MIB)


@pytest.mark.parametrize(
    ("ending", "pack"), [(".gz", gzip.compress), (".bz2", bz2.compress), (".xz", lzma.compress)]
)
def test_packed_blanks_end(ending, pack, tmp_path):
    """No token ever comes of them; unpacking stops once the ratio is absurd."""
    path = tmp_path / f"bomb.txt{ending}"
    path.write_bytes(blanks(pack, 256 * MIB))
    with pytest.raises(InputError, match="unpacks to more than 250 times its size"):
        for _ in read_text(path):
            pass


@pytest.mark.slow
def test_one_row_or_line_that_fills_the_memory(tmp_path):
    """Half a gigabyte without a line's end, and a million rows of the same megabyte.

    As text they are read as far as asked. A line of a table that has no end is refused.
    """
    data = blanks(lambda part: gzip.compress(part.replace(b" ", b"x")), 512 * MIB)
    line, table, rows = (tmp_path / f"bomb.{end}" for end in ("txt.gz", "jsonl.gz", "parquet"))
    line.write_bytes(data)
    table.write_bytes(gzip.compress(b'{"text": "') + data)
    column = pa.DictionaryArray.from_arrays(np.zeros(1_000_000, np.int32), ["x " * (MIB // 2)])
    pq.write_table(pa.table({"text": column}), rows, compression="zstd", store_schema=False)
    assert rows.stat().st_size < MIB
    grown, said = zip(*read_apart(line, 20_000, rows, 3 * MIB, table, 20_000), strict=True)
    assert said[:2] == ("20000", str(3 * MIB))
    assert "a line of more than" in said[2] or "250 times" in said[2]
    assert grown[0] < 64
    assert grown[1] < 128
    assert grown[2] < 512


def test_a_repeated_string_in_a_part():
    column = pa.DictionaryArray.from_arrays(np.zeros(100_000, np.int32), ["x" * 100_000])
    # pyarrow stores its own types beside the data; without them the column is one of strings
    table = pa.table({"unit": column}).replace_schema_metadata(None)
    buffer = io.BytesIO()
    pq.write_table(table, buffer, compression="zstd", store_schema=False)
    with pytest.raises(InputError, match="unpacks to 10,000,000,000 bytes or more"):
        read_table(buffer.getvalue(), "a part")


def test_many_rows_of_one_number():
    """Runs of the same number are stored as its count."""
    rows = 60_000_000
    buffer = io.BytesIO()
    pq.write_table(pa.table({"error": pa.array(np.zeros(rows, np.int8))}), buffer)
    assert len(buffer.getvalue()) < MIB
    with pytest.raises(InputError, match="60,000,000 rows"):
        read_table(buffer.getvalue(), "a part")


def test_pages_that_are_larger_than_the_table_of_contents_says():
    """Headers of pages are added up: what the table of contents says is not believed."""
    buffer = io.BytesIO()
    values = np.zeros(4_000_000)
    pq.write_table(pa.table({"x": values}), buffer, use_dictionary=False, compression="zstd")
    with pytest.raises(InputError, match="unpacks to"):
        read_table(buffer.getvalue(), "a part", limit=40 * MIB)


def npy(shape: str, payload: bytes = b"\0" * 64) -> bytes:
    header = f"{{'descr': '<f8', 'fortran_order': False, 'shape': {shape}, }}"
    header = header.ljust(117) + "\n"
    return b"\x93NUMPY\x01\x00" + struct.pack("<H", len(header)) + header.encode() + payload


@pytest.mark.parametrize("shape", ["(1000000000000,)", "(2, 10**9)", "(-1,)", "(99999, 99999, 9)"])
def test_headers_of_arrays_that_lie(shape, tmp_path):
    path = tmp_path / "x.npy"
    path.write_bytes(npy(shape))
    with pytest.raises(InputError, match="damaged"):
        map_array(path)


def contents_of(groups: int) -> bytes:
    """A Parquet file with row groups that all have the same pages, 8 bytes long.

    Bytes of Thrift: the column x has 8 bytes from the 4th on, packed and unpacked; a group has one
    row.
    """
    column = b"\x3c" + b"\x39\x18\x01x" + b"\x36\x10" + b"\x16\x10" + b"\x26\x08" + b"\0" + b"\0"
    group = b"\x19\x1c" + column + b"\x26\x02" + b"\0"
    contents = b"\x49" + bytes([groups << 4 | 12]) + group * groups + b"\0"
    return b"PAR1" + bytes(12) + contents + len(contents).to_bytes(4, "little") + b"PAR1"


def test_columns_that_lie_on_top_of_each_other():
    """Pages of no bytes add nothing to the total, and would be gone through for each row group."""
    (one,) = row_groups(contents_of(1))
    assert one == RowGroup(1, (ColumnChunk((b"x",), 4, 12, 8),))
    with pytest.raises(InputError, match="lie on top of each other"):
        row_groups(contents_of(14))


def test_objects_in_arrays_are_refused(tmp_path):
    np.save(tmp_path / "x.npy", np.array([{"a": 1}], dtype=object), allow_pickle=True)
    with pytest.raises(InputError, match="not numbers"):
        map_array(tmp_path / "x.npy")


def test_large_files_are_not_read(tmp_path):
    """A sparse file of a terabyte takes no room on the disk, and must take none in memory."""
    path = tmp_path / "results.json"
    path.touch()
    os.truncate(path, 2**40)
    with pytest.raises(InputError, match="at most 268,435,456 are read"):
        read_json(path, limits.RESULTS)


def test_many_values():
    with pytest.raises(InputError, match="more than 1,000 values"):
        parse_json(json.dumps([[]] * 2000), "a file", values=1000)


def test_a_name_that_occurs_twice_among_many():
    """A second one is found in one pass; each name was once compared with all others."""
    names = ", ".join(f'"{i}": 0' for i in range(300_000))
    started = time.monotonic()
    with pytest.raises(InputError, match="'299999' occurs twice"):
        parse_json(f'{{{names}, "299999": 1}}', "a file")
    assert time.monotonic() - started < 30
