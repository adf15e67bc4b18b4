"""Texts that go by a name: ``demo:`` for what every Python has, ``hf:`` for datasets of a hub."""

from __future__ import annotations

import importlib
import os
import re
import sysconfig
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from esscher.core.errors import InputError
from esscher.engine.text.tables import choose_column

#: ``hf:NAME[@CONFIG][:SPLIT]``.
NAME = re.compile(
    r"hf:(?P<name>[\w.\-]+(/[\w.\-]+)?)(@(?P<config>[\w.\-]+))?(:(?P<split>[\w.\-]+))?"
)
#: Folders of the standard library that are not program text: tests, installed packages, prose and
#: tables of characters.
LEFT_OUT = frozenset(
    {"test", "tests", "idle_test", "site-packages", "dist-packages", "pydoc_data", "encodings"}
)


def language_reference() -> Iterator[tuple[str, str]]:
    """Python's language reference, topic by topic."""
    try:
        from pydoc_data.topics import topics
    except ImportError as error:
        raise InputError(
            "this Python comes without pydoc_data, so there is no demo:docs; give a text file"
        ) from error
    for name in sorted(topics):
        yield f"demo:docs/{name}", topics[name]


def standard_library() -> Iterator[tuple[str, str]]:
    """The sources of the standard library, in alphabetical order."""
    root = Path(sysconfig.get_path("stdlib"))
    files: list[Path] = []
    for place, folders, names in os.walk(root):
        folders[:] = [name for name in folders if name not in LEFT_OUT]
        here = Path(place).relative_to(root)
        files += [here / name for name in names if name.endswith(".py")]
    if not files:
        raise InputError(
            "this Python comes without the sources of its library, so there is no demo:code; give "
            "a folder with program text"
        )
    for path in sorted(files):
        try:
            text = (root / path).read_text(encoding="utf-8")
        except (OSError, UnicodeDecodeError):  # a few files are there to test other encodings
            continue
        yield f"demo:code/{path.as_posix()}", text


#: The texts by their names.
DEMO_TEXTS: dict[str, Callable[[], Iterator[tuple[str, str]]]] = {
    "demo:docs": language_reference,
    "demo:code": standard_library,
}


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
