"""How commands print results, and how they read names of texts and files."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import click

from esscher.core.atomic import check_writable
from esscher.core.errors import InputError
from esscher.core.shown import printable
from esscher.show.save import check_ending


def print_json(value: dict[str, Any]) -> None:
    """Print one JSON object; a number that JSON cannot hold is an error here, not in the reader."""
    click.echo(json.dumps(value, indent=2, allow_nan=False))


def say(text: str, err: bool = False) -> None:
    """Print a line; names of files and folders may hold anything, also escapes for a terminal."""
    click.echo(printable(text), err=err)


#: Options by the block of ``--help`` that has them; all others come first, as far as ten.
BLOCKS = {
    "Model and text": ("column", "layers", "heads", "device", "dtype", "revision"),
    "Run": ("seed", "workers", "scheduler"),
    "Output": ("out", "figure", "save", "save_cache", "as_json", "everything"),
}
#: Most options in the first block.
FIRST = 10


class BlockCommand(click.Command):
    """A command whose ``--help`` has its options in blocks."""

    def format_options(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """Write the options: at most ten basic ones, then the rest in groups."""
        block_of = {name: block for block, names in BLOCKS.items() for name in names}
        blocks: dict[str, list[tuple[str, str]]] = {"Options": [], "More options": []}
        blocks |= {block: [] for block in BLOCKS}
        for parameter in self.get_params(ctx):
            record = parameter.get_help_record(ctx)
            if record is None or isinstance(parameter, click.Argument):
                continue
            last = "--help" in parameter.opts
            block = "Output" if last else block_of.get(parameter.name or "", "Options")
            if block == "Options" and len(blocks[block]) == FIRST:
                block = "More options"
            blocks[block].append(record)
        for block, records in blocks.items():
            if records:
                with formatter.section(block):
                    formatter.write_dl(records)


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
    if path is not None:
        check_ending(path, option)
    check_output(path, option)


def check_output(path: Path | None, option: str) -> None:
    """Refuse a file that could not be written, before anything is computed."""
    if path is not None:
        check_writable(path, f"{option} {path}")
