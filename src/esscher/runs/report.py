"""Stored runs, or results, as one HTML file that opens from disk."""

from __future__ import annotations

import json
import os
import shlex
from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any

from esscher.core.atomic import check_writable, write_output
from esscher.core.errors import InputError
from esscher.core.untrusted import foreign, open_regular
from esscher.runs.folder import CONFIG, PARTS, About, read_about
from esscher.runs.registry import load, part_of
from esscher.runs.result import NotFinished, Result
from esscher.show.content import Drawn, Page, Summary, offered
from esscher.show.render import GENERATOR, render

_STORED = "The command as it was given."
_PYTHON = "This run was started from Python; its configuration is below."


def name_of(found: Result[Any]) -> str:
    """Return the name of a result's directory; of what was measured, if there is none."""
    folder = found.folder
    if folder is not None and (folder / CONFIG).exists():
        return folder.resolve().name
    return str(found.study.subject)


def page_of(found: Result[Any]) -> Page:
    """Return the page of a result."""
    name, about = name_of(found), _about(found)
    summary: Summary = part_of(found.study.name, "page").summary(found, name)
    command, note = _command(about)
    return Page(
        title=name,
        kind=summary.name,
        subject=summary.subject,
        answer=summary.answer or found.headline,
        complete=found.complete,
        cards=summary.cards,
        parts=summary.parts or [*_charts(found), *summary.tables],
        provenance=_provenance(found, about),
        command=command,
        command_note=note,
        configuration=json.dumps(found.study.configuration(), indent=2, ensure_ascii=False),
    )


def _charts(found: Result[Any]) -> list[Drawn]:
    """The charts of a report, in the order in which the study offers them."""
    drawings = offered(part_of(found.study.name, "charts").DRAWINGS, found)
    return [Drawn(d.heading, d.draw(found), d.caption) for d in drawings if d.heading]


def _about(found: Result[Any]) -> About | None:
    """What the run's directory says about itself, if there is one."""
    folder = found.folder
    return read_about(folder) if folder is not None and (folder / CONFIG).exists() else None


def _provenance(found: Result[Any], about: About | None) -> list[tuple[str, str]]:
    """Names and values: time, model, text, seed, versions, hashes."""
    configuration = found.study.configuration()
    rows: list[tuple[str, str | None]] = [
        ("started", found.created.replace("T", " ").replace("+00:00", " UTC")),
        ("state", "complete" if found.complete else "not complete"),
        ("seed", str(configuration.get("seed", ""))),
    ]
    model = configuration.get("model")
    if isinstance(model, dict):
        shape = f"{model['layers']} layers × {model['heads']} heads, d = {model['head_dim']}"
        rows += [
            ("model", f"{model['name']} ({model['family']}, {model['dtype']})"),
            ("shape", shape),
            ("weights, SHA-256", model["weight_hash"]),
        ]
    for name in ("text", "check"):
        if isinstance(text := configuration.get(name), dict):
            rows += [(name, text["source"]), (f"{name}, SHA-256", text["hash"])]
    for corpus in configuration.get("texts", []):
        rows.append((f"corpus {corpus['name']}", f"{corpus['source']}, {corpus['text_hash']}"))
    rows.append(("versions", ", ".join(f"{k} {v}" for k, v in found.versions.items() if v)))
    rows.append(("revision of the source", about.git_revision if about else None))
    return [(name, value) for name, value in rows if value]


def _command(about: About | None) -> tuple[str | None, str]:
    """The command that gives the run again, and what is to be known about it."""
    if about is not None and about.command:
        return shlex.join(about.command), _STORED
    return None, _PYTHON


#: Runs that one report takes.
MOST = 40
#: How much of a file is searched for the mark that it is a report.
_HEAD = 4096


def report(
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
        _check_place(place, force)
    found = read_results(sources, say)
    if place is None:
        first = found[0].folder
        if first is None or not first.exists():
            raise InputError("the first result has no directory; give the path of the report")
        place = first / "report.html"
        _check_place(place, force)
    folders = [str(one.folder) for one in found if one.folder is not None]
    with foreign(", ".join(folders) or None):
        pages = [page_of(one) for one in found]
        title = pages[0].title if len(found) == 1 else f"{len(found)} runs"
        data = render(pages, f"{title} - Esscher")
    write_output(place, data)
    return place


def read_results(
    sources: Sequence[Any], say: Callable[[str], None] | None = None
) -> list[Result[Any]]:
    """Load directories (or take results), in their order; a directory of runs stands for all.

    Parameters
    ----------
    sources
        Directories, files of results, and results.
    say
        Told of runs below a directory that are left out, since nothing is measured yet.

    Raises
    ------
    InputError
        If one is no run or is damaged, or if a run has no results yet that was named itself, or is
        all there is below a directory.
    """
    if not sources:
        raise InputError("there is no run to report on; give the directory of at least one")
    found: list[Result[Any]] = []
    for source in sources:
        if isinstance(source, (str, os.PathLike)):
            found.extend(_below(Path(source), say))
        elif isinstance(source, Result):
            found.append(measured(source))
        else:
            raise InputError(
                f"cannot report on {type(source).__name__}; give the directory of a "
                "run, or what a study such as esscher.probe returned"
            )
    if len(found) > MOST:
        raise InputError(f"there are {len(found)} runs; one report takes at most {MOST}")
    return found


def measured(found: Result[Any]) -> Result[Any]:
    """Return a result in which there is something; refuse one in which nothing is measured yet."""
    if found.cells and not found.table().empty:
        return found
    raise _nothing_yet(str(found.folder or name_of(found)))


def _nothing_yet(place: str) -> NotFinished:
    return NotFinished(
        f"{place} has no results yet; run the command that started it again to resume"
    )


def _below(path: Path, say: Callable[[str], None] | None) -> list[Result[Any]]:
    """The run at a path, or all runs below it that have results."""
    found: list[Result[Any]] = []
    early: list[NotFinished] = []
    for place in _places(path):
        try:
            with foreign(place):
                found.append(measured(load(place)))
        except NotFinished:
            error = _nothing_yet(str(place))
            if place == path:
                raise error from None
            early.append(error)
    if not found:
        raise early[0]
    if say is not None:
        for left_out in early:
            say(f"Left out: {left_out}")
    return found


def _places(path: Path) -> Iterator[Path]:
    """The directory of a run itself, the file of a result, or all runs below a directory."""
    if (path / CONFIG).exists() or not path.is_dir():
        yield path
        return
    below = [
        Path(place)
        for place, folders, files in os.walk(path)
        if CONFIG in files and PARTS in folders
    ]
    if not below:
        raise InputError(f"{path} is not a run and contains none: it has no {CONFIG}")
    yield from sorted(below)


def _check_place(path: Path, force: bool) -> None:
    """Refuse to overwrite what is no report."""
    check_writable(path, str(path))
    if force or not path.exists():
        return
    try:
        with open_regular(path) as file:
            head = file.read(_HEAD)
    except OSError as error:
        raise InputError(f"cannot read {path}: {error.strerror or error}") from error
    if f'name="generator" content="{GENERATOR}'.encode() not in head:
        raise InputError(
            f"{path} exists and is not an Esscher report; choose another name, or overwrite it "
            "in Python with force=True"
        )
