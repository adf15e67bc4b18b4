"""``write_report``: stored runs as one HTML file that opens from disk."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

from esscher.core.atomic import write_atomically
from esscher.core.errors import InputError
from esscher.core.untrusted import foreign, open_regular
from esscher.show.pages import make_pages
from esscher.show.render import GENERATOR, render
from esscher.show.stored import StoredRun, read_runs

#: How much of a file is searched for the mark that it is a report.
_HEAD = 4096


def write_report(
    runs: Any,
    path: str | Path | None = None,
    *,
    force: bool = False,
    say: Callable[[str], None] | None = None,
) -> Path:
    """Write one self-contained HTML file about stored runs, or about results.

    Parameters
    ----------
    runs
        Directory of a run, a result (a ``Probe``, a ``Sweep``, ...), or a list of them. A
        directory that is no run stands for all runs below it.
    path
        The file; by default ``report.html`` in the directory of the first run.
    force
        Overwrite a file that is no report.
    say
        Told of runs below a directory that are left out, since nothing is measured yet.

    Returns
    -------
    Path
        The file.

    Raises
    ------
    InputError
        If something is no run, is damaged or has no results yet, or if the file cannot be written;
        then nothing is written.
    """
    one = isinstance(runs, (str, os.PathLike)) or not isinstance(runs, Iterable)
    sources = [runs] if one else list(runs)
    place = None if path is None else Path(path)
    if place is not None:
        check_place(place, force)
    found = read_runs(sources, say)
    if place is None:
        first = found[0].folder
        if first is None:
            raise InputError("the first result has no directory; give the path of the report")
        place = first / "report.html"
        check_place(place, force)
    with foreign(_named(found)):
        pages = make_pages(found)
        title = pages[0].title if len(found) == 1 else f"{len(found)} runs"
        data = render(pages, f"{title} - Esscher")
    try:
        place.parent.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise InputError(f"cannot create {place.parent}: {error.strerror or error}") from error
    write_atomically(place, data)
    return place


def _named(runs: list[StoredRun]) -> str | None:
    """Directories of the runs, for a message; None if no run comes from one."""
    return ", ".join(str(run.folder) for run in runs if run.folder is not None) or None


def check_place(path: Path, force: bool) -> None:
    """Refuse to overwrite what is no report."""
    if path.is_dir():
        raise InputError(f"{path} is a directory; give the name of a file, such as report.html")
    if force or not path.exists():
        return
    try:
        with open_regular(path) as file:
            head = file.read(_HEAD)
    except OSError as error:
        raise InputError(f"cannot read {path}: {error.strerror or error}") from error
    if f'name="generator" content="{GENERATOR}'.encode() not in head:
        raise InputError(
            f"{path} is there and is no report of Esscher; choose another name, or overwrite it "
            "with --force (force=True)"
        )
