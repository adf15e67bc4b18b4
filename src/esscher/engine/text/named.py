"""Texts that every Python has, by name: ``demo:docs`` and ``demo:code``."""

from __future__ import annotations

import os
import sysconfig
from collections.abc import Callable, Iterator
from pathlib import Path

from esscher.core.errors import InputError

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
