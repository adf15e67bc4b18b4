"""Runs as reports see them: read from a directory, or taken from a result."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from esscher.core.codec import as_tree
from esscher.core.errors import InputError
from esscher.core.untrusted import foreign, shortened
from esscher.runs import run_kind
from esscher.runs.folder import CONFIG, PARTS, read_about
from esscher.runs.registry import STUDIES, load
from esscher.runs.result import NotFinished, Result

#: Runs that one report takes.
MOST = 40


@dataclass(frozen=True, eq=False)
class StoredRun:
    """A run with its results.

    Attributes
    ----------
    name
        Name of its directory, or of what was measured.
    kind
        ``"sweep"``, ``"probe"``, ...
    found
        The result object: a ``Probe``, a ``Sweep``, ...
    results
        Its results as plain numbers, lists and strings.
    about
        Contents of ``config.json``; empty if there is no directory.
    folder
        Its directory, if there is one.
    """

    name: str
    kind: str
    found: Any
    results: dict[str, Any]
    about: dict[str, Any]
    folder: Path | None

    @property
    def configuration(self) -> dict[str, Any]:
        """All that the results are a function of."""
        return dict(self.results["configuration"])

    @property
    def complete(self) -> bool:
        """Whether everything was measured."""
        return bool(self.results.get("complete", True))


class NoResultsYet(InputError):
    """A run in which nothing is measured yet."""


def read_runs(sources: list[Any], say: Callable[[str], None] | None = None) -> list[StoredRun]:
    """Read directories (or take results), in their order; a directory of runs stands for all.

    Parameters
    ----------
    sources
        Directories and results.
    say
        Told of runs below a directory that are left out, since nothing is measured yet.

    Raises
    ------
    InputError
        If one is no run or is damaged, or if a run has no results yet that was named itself, or is
        all there is below a directory.
    """
    if not sources:
        raise InputError("there is no run to report; give the directory of at least one")
    runs: list[StoredRun] = []
    for source in sources:
        if isinstance(source, (str, os.PathLike)):
            runs.extend(_read_below(Path(source), say))
        else:
            runs.append(_taken(source))
    if len(runs) > MOST:
        raise InputError(f"there are {len(runs)} runs; one report takes at most {MOST}")
    return runs


def _read_below(path: Path, say: Callable[[str], None] | None) -> list[StoredRun]:
    """The run at a path, or all runs below it that have results."""
    runs: list[StoredRun] = []
    early: list[NoResultsYet] = []
    for place in _places(path):
        try:
            runs.append(_read(place))
        except NoResultsYet as error:
            if place == path:
                raise
            early.append(error)
    if not runs:
        raise early[0]
    if say is not None:
        for left_out in early:
            say(f"Left out: {left_out}")
    return runs


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
        raise InputError(f"{path} is not a run, and there is none below it: it has no {CONFIG}")
    yield from sorted(below)


def _read(path: Path) -> StoredRun:
    if path.is_file():
        return _read_file(path)
    if not path.exists():
        raise InputError(f"{path} is not there; give the directory of a run")
    kind = run_kind(path)
    if kind is None:
        read_about(path)  # says what is wrong with it
        raise InputError(f"{path} is not a run")
    if kind not in STUDIES:
        raise InputError(
            f"{path} holds a run of kind {shortened(kind)}; this version of Esscher reports "
            f"{', '.join(STUDIES)}"
        )
    try:
        with foreign(path):
            found = load(path)
    except NotFinished as error:
        raise _unfinished(path) from error
    return _checked(StoredRun(_name(path), kind, found, found.to_dict(), _about(path), path))


def _read_file(path: Path) -> StoredRun:
    with foreign(path):
        found = load(path)
    return StoredRun(path.stem, found.study.name, found, found.to_dict(), {}, None)


def _taken(found: Any) -> StoredRun:
    """A result that is there already."""
    if not isinstance(found, Result):
        raise InputError(
            f"{type(found).__name__} is nothing that can be reported; give the directory of a run, "
            "or what a study such as esscher.probe returned"
        )
    results, folder = found.to_dict(), found.folder
    there = folder if folder is not None and (folder / CONFIG).exists() else None
    name = _subject(results) if there is None else _name(there)
    about = {} if there is None else _about(there)
    return _checked(StoredRun(name, found.study.name, found, results, about, there))


def _checked(run: StoredRun) -> StoredRun:
    """Refuse a run in which nothing is measured yet."""
    measured = {
        "sparse": "patterns", "sparse-law": "patterns", "deep": "layers",
        "deep-stack": "layers", "plan": "budgets",
        "domains": "corpora", "sweep": "replicates",
    }.get(run.kind, "heads")  # fmt: skip
    if not run.results.get(measured):
        raise _unfinished(run.folder or Path(run.name))
    return run


def _unfinished(path: Path) -> NoResultsYet:
    return NoResultsYet(
        f"{path} has no results yet; run the command that began it again, it resumes"
    )


def _subject(results: dict[str, Any]) -> str:
    model = results["configuration"].get("model")
    return str(model["name"]) if model else str(results.get("law") or results["kind"])


def _name(path: Path) -> str:
    return path.resolve().name


def _about(path: Path) -> dict[str, Any]:
    return dict(as_tree(read_about(path)))
