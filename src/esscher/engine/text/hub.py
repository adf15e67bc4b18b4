"""Texts of Hugging Face datasets, read row by row."""

from __future__ import annotations

import importlib
import re
from collections.abc import Iterator
from typing import Any

from esscher.core.errors import InputError
from esscher.engine.text.tables import choose_column

#: ``hf:NAME[@CONFIG][:SPLIT]``.
NAME = re.compile(
    r"hf:(?P<name>[\w.\-]+(/[\w.\-]+)?)(@(?P<config>[\w.\-]+))?(:(?P<split>[\w.\-]+))?"
)


def dataset_rows(source: str, column: str | None) -> Iterator[str]:
    """The texts of a dataset; only what is asked for is downloaded.

    Raises
    ------
    InputError
        When the name cannot be understood, ``datasets`` is not installed, or nothing can be read.
    """
    match = NAME.fullmatch(source)
    if match is None:
        raise InputError(f"{source!r} is not of the form hf:NAME[@CONFIG][:SPLIT]")
    try:
        datasets: Any = importlib.import_module("datasets")
    except ImportError as error:
        raise InputError(
            f"reading {source!r} needs the package datasets; install it with: pip install datasets"
        ) from error
    return _rows(datasets, source, match, column)


def _rows(datasets: Any, source: str, match: re.Match[str], column: str | None) -> Iterator[str]:
    split = match["split"] or "train"
    chosen = None
    try:
        rows = datasets.load_dataset(match["name"], match["config"], split=split, streaming=True)
        for row in rows:
            if chosen is None:
                texts = [key for key, value in row.items() if isinstance(value, str)]
                chosen = choose_column(list(row), texts, column, source)
            if row.get(chosen) is not None:
                yield str(row[chosen])
    except InputError:
        raise
    except Exception as error:
        lines = str(error).splitlines() or [type(error).__name__]
        raise InputError(
            f"the dataset {source!r} cannot be read: {lines[0]}; check its name, configuration and "
            "split, and the network"
        ) from error
