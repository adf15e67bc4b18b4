"""Columns of text in .jsonl and .parquet files, row by row."""

from __future__ import annotations

import mmap
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from esscher.core.errors import InputError
from esscher.core.untrusted import (
    first_line,
    limits,
    open_regular,
    page_sizes,
    parse_row,
    row_groups,
    shortened,
)
from esscher.engine.text.files import UNPACK, decoded, file_chunks, suffix_of

#: Endings of files that are tables.
TABLE_SUFFIXES = (".jsonl", ".ndjson", ".json", ".parquet")
#: Longest line of a .jsonl file, in characters; a longer one would not fit into memory for long.
LONGEST_LINE = limits.TEXT_ROW
#: Columns that a message names.
NAMED = 30
#: Rows of a .parquet file read at a time, and bytes of a page from which they come one by one.
ROWS, LARGE_PAGE = 64, 8 * 2**20


def choose_column(
    columns: Sequence[str], texts: Sequence[str], asked: str | None, name: str
) -> str:
    """The column to read: the one asked for, or ``text``, or the only one with text.

    Raises
    ------
    InputError
        Listing the columns, when there is no such column or no obvious one.
    """
    listed = _listed(columns)
    if asked is not None:
        if asked not in columns:
            raise InputError(f"{name} has no column {asked!r}; its columns: {listed}")
        if asked not in texts:
            raise InputError(
                f"the column {asked!r} of {name} is not text; columns with text: {_listed(texts)}"
            )
        return asked
    if "text" in texts:
        return "text"
    if len(texts) == 1:
        return texts[0]
    raise InputError(f"choose the column of {name} that holds the text; its columns: {listed}")


def _listed(names: Sequence[str]) -> str:
    """Names of columns for a message, however many and however long."""
    some = ", ".join(shortened(name)[1:-1] for name in names[:NAMED])
    return (some or "none") + (f" and {len(names) - NAMED} more" if len(names) > NAMED else "")


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
                f"line {number} of {path} has no {chosen!r}; it has: {_listed(list(row))}"
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
        row = parse_row(line, f"line {number} of {path}")
    except InputError as error:
        raise InputError(f"{error}; write one object per line") from error
    if not isinstance(row, dict):
        raise InputError(
            f"line {number} of {path} is a JSON {type(row).__name__}; write one object per line, "
            'such as {"text": "..."}'
        )
    return row


def _lines(path: Path, longest: int = LONGEST_LINE) -> Iterator[str]:
    parts: list[str] = []
    length = 0
    for chunk in decoded(file_chunks(path), str(path)):
        *complete, last = chunk.split("\n")
        for line in complete:
            yield "".join([*parts, line])
            parts, length = [], 0
        parts.append(last)
        length += len(last)
        if length > longest:
            raise InputError(
                f"{path} has a line of more than {longest} characters; write one object per line"
            )
    yield "".join(parts)


def _parquet(path: Path, column: str | None) -> Iterator[str]:
    import pyarrow
    import pyarrow.parquet

    try:
        with open_regular(path) as raw, pyarrow.parquet.ParquetFile(raw) as file:
            schema = file.schema_arrow
            texts = [
                field.name
                for field in schema
                if pyarrow.types.is_string(field.type) or pyarrow.types.is_large_string(field.type)
            ]
            chosen = choose_column(schema.names, texts, column, str(path))
        with (
            open_regular(path) as raw,
            mmap.mmap(raw.fileno(), 0, access=mmap.ACCESS_READ) as data,
            pyarrow.parquet.ParquetFile(raw, read_dictionary=[chosen], pre_buffer=False) as file,
        ):
            for number, pages in enumerate(_pages(path, data, chosen)):
                yield from _row_group(path, chosen, file, number, pages)
    except InputError:
        raise
    except (pyarrow.ArrowException, OSError, ValueError, RecursionError) as error:
        raise InputError(f"{path} cannot be read: {first_line(error)}") from error


def _row_group(
    path: Path, column: str, file: Any, number: int, pages: Sequence[int]
) -> Iterator[str]:
    """Texts of a part of a .parquet file.

    They stay references into a dictionary until they are handed out, one by one: a column that
    repeats one long text a million times is small in the file.
    """
    import pyarrow.compute

    largest = max(pages, default=0)
    if largest > limits.PAGE:
        raise InputError(
            f"{path} has a page that unpacks to {largest:,} bytes; at most {limits.PAGE:,} are "
            "read at a time: write it again with smaller pages"
        )
    rows = 1 if largest > LARGE_PAGE else ROWS
    for batch in file.iter_batches(rows, row_groups=[number], columns=[column]):
        values: Any = batch.column(0)
        longest = pyarrow.compute.max(pyarrow.compute.binary_length(values.dictionary)).as_py()
        if (longest or 0) > 4 * limits.TEXT_ROW:
            raise InputError(
                f"{path} has a text of {longest:,} bytes in one row; at most "
                f"{4 * limits.TEXT_ROW:,} are read: split it into rows"
            )
        for value in values:
            if value.is_valid:
                yield value.as_py()


def _pages(path: Path, data: mmap.mmap, column: str) -> Iterator[list[int]]:
    """Sizes of the pages of a column in each part of a file, from their own headers."""
    name = (column.encode(),)
    try:
        for group in row_groups(data):
            chunks = (chunk for chunk in group.chunks if chunk.path == name)
            yield [size for chunk in chunks for size in page_sizes(data, chunk)]
    except InputError as error:
        raise InputError(f"{path} cannot be read: {error}") from error
