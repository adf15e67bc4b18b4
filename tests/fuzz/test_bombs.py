"""Small files that would unpack to gigabytes, in a process that may not take them."""

from __future__ import annotations

import io
import os

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from esscher.core.errors import InputError
from esscher.core.untrusted import (
    LARGE,
    read_json,
    read_table,
)

MIB = 2**20


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


def test_large_files_are_not_read(tmp_path):
    """A sparse file of a terabyte takes no room on the disk, and must take none in memory."""
    path = tmp_path / "results.json"
    path.touch()
    os.truncate(path, 2**40)
    with pytest.raises(InputError, match="at most 268,435,456 are read"):
        read_json(path, LARGE)
