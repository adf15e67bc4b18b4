"""How commands end: a figure, JSON, or what was found and where it is; or nobody reads on."""

from __future__ import annotations

import os
import shlex
import sys
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import click

from esscher.cli.options import print_json

#: Exit code of a command whose reader has gone, as of one that SIGPIPE ends: 128 + 13.
UNREAD = 141


@contextmanager
def quiet_if_unread() -> Iterator[None]:
    """End a command without a word when what it prints into has been closed, as by ``head``."""
    try:
        yield
        sys.stdout.flush()
    except BrokenPipeError:
        # What is left in the buffers must go somewhere when Python ends.
        with suppress(OSError, ValueError):
            nowhere = os.open(os.devnull, os.O_WRONLY)
            os.dup2(nowhere, sys.stdout.fileno())
            os.close(nowhere)
        raise click.exceptions.Exit(UNREAD) from None


def finish(
    results: Callable[[], dict[str, Any]],
    show: Callable[[], None],
    as_json: bool,
    out: Path | None,
    files: Mapping[str, Path | None] | None = None,
) -> None:
    """Print the results, then the places of what was written.

    Parameters
    ----------
    results
        Everything, for ``--json``: then nothing else is printed.
    show
        Prints it for people.
    as_json
        Whether to print JSON.
    out
        Directory of the run, if it was stored.
    files
        Other files that were written, by what they are.
    """
    if as_json:
        print_json(results())
        return
    show()
    for name, place in {**(files or {}), "Run": out}.items():
        if place is not None:
            click.echo(f"{name}: {place}")
    if out is not None:
        click.echo(report_line(out))


def report_line(run: Path) -> str:
    """How to get the report of a run, or of the runs below a directory."""
    page = shlex.quote(str(run / "report.html"))
    return f"Report: esscher report {shlex.quote(str(run))} -o {page}"
