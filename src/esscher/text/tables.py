"""Columns of text in .jsonl and .parquet files, row by row."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from esscher.errors import InputError
from esscher.text.files import UNPACK, decoded, file_chunks, suffix_of

#: Endings of files that are tables.
TABLE_SUFFIXES = (".jsonl", ".ndjson", ".json", ".parquet")
#: Longest line of a .jsonl file, in characters; a longer one would not fit into memory for long.
LONGEST_LINE = 64 * 2**20
#: Rows of a .parquet file read at a time.
ROWS = 64


def choose_column(
    columns: Sequence[str], texts: Sequence[str], asked: str | None, name: str
) -> str:
    """The column to read: the one asked for, or ``text``, or the only one with text.

    Raises
    ------
    InputError
        Listing the columns, when there is no such column or no obvious one.
    """
    listed = ", ".join(columns) or "none"
    if asked is not None:
        if asked not in columns:
            raise InputError(f"{name} has no column {asked!r}; its columns: {listed}")
        if asked not in texts:
            raise InputError(
                f"the column {asked!r} of {name} is not text; columns with text: "
                f"{', '.join(texts) or 'none'}"
            )
        return asked
    if "text" in texts:
        return "text"
    if len(texts) == 1:
        return texts[0]
    raise InputError(f"choose the column of {name} that holds the text; its columns: {listed}")


def table_rows(path: Path, column: str | None) -> Iterator[str]:
    """The texts of a table, one per row; rows without one are left out."""
    if suffix_of(path) == ".parquet":
        if path.suffix.lower() in UNPACK:
            raise InputError(f"{path} is packed; .parquet files pack themselves: unpack it first")
        return _parquet(path, column)
    return _json_lines(path, column)


def _json_lines(path: Path, column: str | None) -> Iterator[str]:
    chosen = None
    for number, line in enumerate(_lines(path), start=1):
        if not line.strip():
            continue
        row = _row(line, number, path)
        if chosen is None:
            texts = [key for key, value in row.items() if isinstance(value, str)]
            chosen = choose_column(list(row), texts, column, str(path))
        if chosen not in row:
            raise InputError(
                f"line {number} of {path} has no {chosen!r}; it has: {', '.join(row) or 'nothing'}"
            )
        value = row[chosen]
        if value is None:
            continue
        if not isinstance(value, str):
            raise InputError(
                f"{chosen!r} in line {number} of {path} is {type(value).__name__}; it must be text"
            )
        yield value


def _row(line: str, number: int, path: Path) -> dict[str, Any]:
    try:
        row = json.loads(line)
    except (json.JSONDecodeError, RecursionError) as error:
        raise InputError(
            f"line {number} of {path} is not JSON: {error}; write one object per line"
        ) from error
    if not isinstance(row, dict):
        raise InputError(
            f"line {number} of {path} is a JSON {type(row).__name__}; write one object per line, "
            'such as {"text": "..."}'
        )
    return row


def _lines(path: Path) -> Iterator[str]:
    parts: list[str] = []
    length = 0
    for chunk in decoded(file_chunks(path), str(path)):
        *complete, last = chunk.split("\n")
        for line in complete:
            yield "".join([*parts, line])
            parts, length = [], 0
        parts.append(last)
        length += len(last)
        if length > LONGEST_LINE:
            raise InputError(
                f"{path} has a line of more than {LONGEST_LINE} characters; write one object per "
                "line"
            )
    yield "".join(parts)


def _parquet(path: Path, column: str | None) -> Iterator[str]:
    import pyarrow
    import pyarrow.parquet

    try:
        with pyarrow.parquet.ParquetFile(path) as file:
            schema = file.schema_arrow
            texts = [
                field.name
                for field in schema
                if pyarrow.types.is_string(field.type) or pyarrow.types.is_large_string(field.type)
            ]
            chosen = choose_column(schema.names, texts, column, str(path))
            for batch in file.iter_batches(batch_size=ROWS, columns=[chosen]):
                for value in batch.column(0).to_pylist():
                    if value is not None:
                        yield value
    except (pyarrow.ArrowException, OSError) as error:
        raise InputError(f"{path} cannot be read: {str(error).splitlines()[0]}") from error
