"""Columns of text in tables, row by row, by the library ``datasets``: files, and ``hf:`` names."""

from __future__ import annotations

import glob
import importlib
import re
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from esscher.core.errors import InputError
from esscher.core.untrusted import first_line, open_regular, shortened
from esscher.engine.text.files import suffix_of

#: How to install what reads tables.
INSTALL = 'pip install "esscher[texts]"'
#: Endings of files that are tables, and what ``datasets`` calls their format.
TABLES = {
    ".jsonl": "json",
    ".ndjson": "json",
    ".json": "json",
    ".parquet": "parquet",
    ".csv": "csv",
}
#: ``hf:NAME[@CONFIG][:SPLIT]``.
NAME = re.compile(
    r"hf:(?P<name>[\w.\-]+(/[\w.\-]+)?)(@(?P<config>[\w.\-]+))?(:(?P<split>[\w.\-]+))?"
)
#: Columns that a message names.
NAMED = 30


def table_rows(path: Path, column: str | None) -> Iterator[str]:
    """Yield the texts of a table, one per row; rows without one are left out.

    Raises
    ------
    InputError
        When ``datasets`` is not installed, or the file has no such column or cannot be read.
    """
    datasets = _datasets(str(path))
    open_regular(path).close()
    # a name is taken for a pattern
    place = glob.escape(str(path.resolve()))
    return _texts(
        lambda: datasets.load_dataset(
            TABLES[suffix_of(path)], data_files=place, split="train", streaming=True
        ),
        f"{path} cannot be read",
        str(path),
        column,
    )


def dataset_rows(source: str, column: str | None) -> Iterator[str]:
    """Yield the texts of a dataset on the hub; only what is asked for is downloaded.

    Raises
    ------
    InputError
        When the name cannot be understood, ``datasets`` is not installed, or nothing can be read.
    """
    match = NAME.fullmatch(source)
    if match is None:
        raise InputError(f"{source!r} is not of the form hf:NAME[@CONFIG][:SPLIT]")
    datasets = _datasets(source)
    return _texts(
        lambda: datasets.load_dataset(
            match["name"], match["config"], split=match["split"] or "train", streaming=True
        ),
        f"the dataset {source!r} cannot be read; check its name, configuration and split, and the "
        "network",
        source,
        column,
    )


def _datasets(source: str) -> Any:
    try:
        return importlib.import_module("datasets")
    except ImportError as error:
        raise InputError(
            f"reading {source} needs the package datasets; install it with: {INSTALL}"
        ) from error


def _texts(opened: Any, trouble: str, name: str, column: str | None) -> Iterator[str]:
    """The texts of rows; whatever the library raises is an ``InputError``."""
    chosen = None
    try:
        for row in opened():
            if chosen is None:
                chosen = _choose_column(row, column, name)
            value = row.get(chosen)
            if value is not None and not isinstance(value, str):
                raise InputError(
                    f"{chosen!r} of {name} holds {type(value).__name__}; it must be text"
                )
            if value is not None:
                yield value
    except InputError:
        raise
    except Exception as error:
        raise InputError(f"{trouble} ({type(error).__name__}: {first_line(error)})") from error


def _choose_column(row: Mapping[str, Any], asked: str | None, name: str) -> str:
    """The column to read: the one asked for, or ``text``, or the only one with text.

    Raises
    ------
    InputError
        Listing the columns, when there is no such column or no obvious one.
    """
    texts = [key for key, value in row.items() if isinstance(value, str)]
    if asked is not None:
        if asked not in row:
            raise InputError(f"{name} has no column {asked!r}; its columns: {_listed(list(row))}")
        if row[asked] is not None and asked not in texts:
            raise InputError(
                f"the column {asked!r} of {name} is not text; columns with text: {_listed(texts)}"
            )
        return asked
    if "text" in row:
        return "text"
    if len(texts) == 1:
        return texts[0]
    raise InputError(
        f"choose the column of {name} that holds the text; its columns: {_listed(list(row))}"
    )


def _listed(names: Sequence[str]) -> str:
    """Names of columns for a message, however many and however long."""
    some = ", ".join(shortened(name)[1:-1] for name in names[:NAMED])
    return (some or "none") + (f" and {len(names) - NAMED} more" if len(names) > NAMED else "")
