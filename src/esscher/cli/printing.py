"""How commands print what they found: JSON, or tables in the style of all commands."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import click

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
