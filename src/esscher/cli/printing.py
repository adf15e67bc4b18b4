"""How commands print results, and how they read names of texts and files."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from esscher.core.atomic import check_writable
from esscher.core.errors import InputError
from esscher.core.shown import printable

if TYPE_CHECKING:
    from esscher.show.tables import PlainConsole, PlainTable


def print_json(value: dict[str, Any]) -> None:
    """Print one JSON object; a number that JSON cannot hold is an error here, not in the reader."""
    click.echo(json.dumps(value, indent=2, allow_nan=False))


def say(text: str, err: bool = False) -> None:
    """Print a line; names of files and folders may hold anything, also escapes for a terminal."""
    click.echo(printable(text), err=err)


def plain_console() -> PlainConsole:
    """Where commands print: names and notes of stored runs may hold anything."""
    from esscher.show.tables import PlainConsole  # with rich, for which --help does not wait

    return PlainConsole()


def plain_table(title: str, least: Sequence[str] = ()) -> PlainTable:
    """Return an empty table in the style of all commands; ``least`` are the columns to go first."""
    from esscher.show.tables import PlainTable

    return PlainTable(title, least)


#: Endings of figures.
FORMATS = (".png", ".svg", ".pdf")


def named_sources(texts: Sequence[str], option: str) -> dict[str, str]:
    """Read ``NAME=SOURCE`` options; a name is given once."""
    named: dict[str, str] = {}
    for text in texts:
        name, mark, source = text.partition("=")
        name = name.strip()
        if not mark or not name or not source:
            raise InputError(
                f"{option} {text!r} has no {'source' if mark and name else 'name'}; write "
                "NAME=SOURCE, such as wiki=articles.txt"
            )
        if name in named:
            raise InputError(
                f"{option} {text!r}: the name {name!r} is taken by {named[name]!r}; give every "
                "one its own name"
            )
        named[name] = source
    return named


def check_figure(path: Path | None, option: str = "--figure") -> None:
    """Refuse a figure of an unknown format or at a bad place before anything is computed."""
    if path is not None and path.suffix.lower() not in FORMATS:
        raise InputError(f"{option} {path}: the name must end in {', '.join(FORMATS)}")
    check_output(path, option)


def check_output(path: Path | None, option: str) -> None:
    """Refuse a file that could not be written, before anything is computed."""
    if path is not None:
        check_writable(path, f"{option} {path}")
