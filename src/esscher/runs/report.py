"""Stored runs, or results, as one HTML file that opens from disk."""

from __future__ import annotations

import json
import os
import shlex
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import Any

from esscher.core.atomic import check_writable, write_output
from esscher.core.errors import InputError
from esscher.core.untrusted import foreign, open_regular
from esscher.runs.folder import CONFIG, read_config, run_folders
from esscher.runs.registry import load
from esscher.runs.result import NotFinished, Result
from esscher.show.content import Page, Part, offered
from esscher.show.render import GENERATOR, render

_NO_RESULTS = "{} has no results yet; run the command that started it again to resume"
_STORED = "The command as it was given."
_PYTHON = "This run was started from Python; its configuration is below."


def page_of(result: Result[Any]) -> Page:
    """Return the page of a result: what its study says about it, and where it comes from."""
    folder, configuration = result.folder, result.setup.configuration()
    stored = folder is not None and (folder / CONFIG).exists()
    config = read_config(folder) if folder is not None and stored else None
    subject, view = result.study.subject(result.setup), result.view
    title = folder.resolve().name if folder is not None and stored else subject
    if hasattr(view, "parts"):
        parts = view.parts(result, title)
    else:
        drawings = [d for d in offered(result.drawings, result) if d.heading]
        parts = [Part(d.heading, d.caption, chart=d.draw(result)) for d in drawings]
        parts += [table.content(result, title) for table in result.views if table.page]

    rows: list[tuple[str, str | None]] = [
        ("started", result.created.replace("T", " ").replace("+00:00", " UTC")),
        ("state", "complete" if result.complete else "not complete"),
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
    rows.append(("versions", ", ".join(f"{k} {v}" for k, v in result.versions.items() if v)))

    command = shlex.join(config.command) if config is not None and config.command else None
    return Page(
        view.TITLE,
        result.subject,
        result.headline,
        parts,
        title=title,
        complete=result.complete,
        provenance=[(name, value) for name, value in rows if value],
        command=command,
        command_note=_PYTHON if command is None else _STORED,
        configuration=json.dumps(configuration, indent=2, ensure_ascii=False),
    )


#: How much of a file is searched for the mark that it is a report.
_HEAD = 4096


def report(
    runs: Any,
    path: str | Path | None = None,
    *,
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
    alone = isinstance(runs, (str, os.PathLike)) or not isinstance(runs, Iterable)
    sources = [runs] if alone else list(runs)
    place = None if path is None else Path(path)
    if place is not None:
        _check_place(place)
    results = read_results(sources, say)
    if place is None:
        first = results[0].folder
        if first is None or not first.exists():
            raise InputError("the first result has no directory; give the path of the report")
        place = first / "report.html"
        _check_place(place)
    folders = [str(result.folder) for result in results if result.folder is not None]
    with foreign(", ".join(folders) or None):
        pages = [page_of(result) for result in results]
        title = pages[0].title if len(results) == 1 else f"{len(results)} runs"
        data = render(pages, f"{title} - Esscher")
    write_output(place, data)
    return place


def read_results(sources: Sequence[Any], say: Callable[[str], None] | None = None) -> list[Any]:
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
    results: list[Any] = []
    for source in sources:
        if isinstance(source, Result):
            results.append(measured(source))
            continue
        if not isinstance(source, (str, os.PathLike)):
            raise InputError(
                f"cannot report on {type(source).__name__}; give the directory of a "
                "run, or what a study such as esscher.probe returned"
            )
        path = Path(source)
        alone = (path / CONFIG).exists() or not path.is_dir()
        places = [path] if alone else sorted(run_folders(path))
        if not places:
            raise InputError(f"{path} is not a run and contains none: it has no {CONFIG}")
        early: list[Path] = []
        before = len(results)
        for place in places:
            try:
                with foreign(place):
                    results.append(measured(load(place)))
            except NotFinished:
                early.append(place)
        if len(results) == before:
            raise NotFinished(_NO_RESULTS.format(early[0]))
        if say is not None:
            for place in early:
                say(f"Left out: {_NO_RESULTS.format(place)}")
    return results


def measured(result: Any) -> Any:
    """Return a result in which there is something; refuse one in which nothing is measured yet."""
    if result.cells and not result.table().empty:
        return result
    raise NotFinished(_NO_RESULTS.format(result.folder or result.study))


def _check_place(path: Path) -> None:
    """Refuse to overwrite what is no report."""
    check_writable(path, str(path))
    if not path.exists():
        return
    try:
        with open_regular(path) as file:
            head = file.read(_HEAD)
    except OSError as error:
        raise InputError(f"cannot read {path}: {error.strerror or error}") from error
    if f'name="generator" content="{GENERATOR}'.encode() not in head:
        raise InputError(
            f"{path} exists and is not an Esscher report; choose another name, or remove it"
        )
