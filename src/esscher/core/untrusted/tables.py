"""Parquet of the parts of a run: kinds of columns and sizes are checked before they are made."""

from __future__ import annotations

import io
from typing import TYPE_CHECKING, Any

from esscher.core.errors import InputError
from esscher.core.untrusted import limits

if TYPE_CHECKING:
    import pyarrow as pa

#: Bytes of a number at most, or of a reference to a string, in memory.
_WIDTH = 8


def read_table(data: bytes, place: str, limit: int = limits.TABLE) -> pa.Table:
    """The table of a part of a run: columns of numbers, truth values and strings.

    It may take ``limit`` bytes when it is unpacked.

    Raises
    ------
    InputError
        If it is no such table, or is beyond the limits on rows, columns and bytes.
    """
    import pyarrow as pa
    import pyarrow.parquet as pq

    try:
        with pq.ParquetFile(io.BytesIO(data)) as file:
            _check_parquet(file, place, limit)
            strings = [field.name for field in file.schema_arrow if _is_text(field.type)]
        # strings stay references into a dictionary until their length is known
        with pq.ParquetFile(io.BytesIO(data), read_dictionary=strings) as file:
            return _decoded(file.read(use_threads=False), place, limit)
    except InputError:
        raise
    except (
        pa.ArrowException,
        OSError,
        ValueError,
        LookupError,
        TypeError,
        RecursionError,
    ) as error:
        raise InputError(f"{place} is damaged: {first_line(error)}") from error


def _check_parquet(file: Any, place: str, limit: int) -> None:
    """Refuse a table that would take too much memory, or that holds other than plain values.

    Raises
    ------
    InputError
        With the number and the limit.
    """
    import pyarrow as pa

    about = file.metadata
    rows, columns = about.num_rows, about.num_columns
    if not 0 <= rows <= limits.ROWS or columns > limits.COLUMNS:
        raise InputError(
            f"{place} is a table of {rows:,} rows and {columns:,} columns; at most {limits.ROWS:,} "
            f"and {limits.COLUMNS} are read"
        )
    for field in file.schema_arrow:
        if not any(
            known(field.type)
            for known in (
                pa.types.is_integer, pa.types.is_floating, pa.types.is_boolean, _is_text,
            )
        ):  # fmt: skip
            raise InputError(f"{place} is damaged: a column holds {str(field.type)[:80]}")
    _check_total(rows * columns * _WIDTH, place, limit)


def _is_text(kind: Any) -> bool:
    import pyarrow as pa

    return pa.types.is_string(kind) or pa.types.is_large_string(kind)


def first_line(error: BaseException) -> str:
    """Return the first line of an error's message, cut to 200 characters."""
    lines = str(error).splitlines()
    return lines[0][:200] if lines else type(error).__name__


def _decoded(table: pa.Table, place: str, limit: int) -> pa.Table:
    """The table with strings in place of references, if that is not too long."""
    import pyarrow as pa
    import pyarrow.compute as pc

    total = 0
    for i, field in enumerate(table.schema):
        if not pa.types.is_dictionary(field.type):
            continue
        chunks: Any = table.column(i).chunks
        for chunk in chunks:
            lengths: Any = pc.binary_length(chunk.dictionary)
            total += pc.sum(lengths.take(chunk.indices)).as_py() or 0
        _check_total(total, place, limit)
        table = table.set_column(i, field.name, table.column(i).cast(pa.large_string()))
    return table


def _check_total(total: int, place: str, limit: int) -> None:
    if total > limit:
        raise InputError(f"{place} unpacks to {total:,} bytes or more; at most {limit:,} are read")
