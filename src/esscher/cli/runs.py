"""``esscher ls`` and ``esscher show``: what stored runs there are, and what is in them."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from importlib import import_module
from pathlib import Path
from typing import Any

import click

from esscher.cli.endings import finish
from esscher.cli.options import plain_console, plain_table, print_json
from esscher.cli.study import print_result
from esscher.cli.sweep import print_curve
from esscher.core.errors import InputError
from esscher.core.untrusted import foreign, shortened
from esscher.runs import RunResult, run_kind
from esscher.runs import read_run as read_cells
from esscher.runs.folder import CONFIG, PARTS
from esscher.runs.lock import is_locked
from esscher.runs.registry import STUDIES, load
from esscher.show.stored import READERS
from esscher.studies.sweep.engine import load_curve
from esscher.studies.sweep.store import Run, read_run

#: What prints a kind of run; sweeps are shown here.
SHOWN_BY = {
    "probe": ("esscher.cli.probe", "print_probe"),
    "deep": ("esscher.cli.deep", "print_depth"),
    "sparse": ("esscher.cli.sparse", "print_sparsity"),
}


@click.command(name="ls")
@click.argument("folder", metavar="DIR", type=click.Path(path_type=Path), default=Path())
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object.")
def list_runs(folder: Path, as_json: bool) -> None:
    """List the runs below a directory.

    \b
    Example:
      esscher ls runs
    """  # noqa: D301 - click's mark for verbatim lines
    if not folder.is_dir():
        raise InputError(f"{folder} is not a directory")
    rows = [_row(path, folder) for path in _run_folders(folder)]
    if as_json:
        print_json({"runs": rows})
        return
    if not rows:
        click.echo(f"There are no runs below {folder}.")
        return
    table = plain_table(f"Runs below {folder}", least=("horizon", "sizes", "of", "replicates"))
    for name in ("run", "kind", "of", "horizon", "sizes", "replicates", "state"):
        # names may be long and fold, numbers must not
        table.add_column(name, no_wrap=name not in ("run", "of"))
    for row in rows:
        table.add_row(
            *(str(row[k] or "") for k in ("run", "kind", "law")), *_cells(row), str(row["state"])
        )
    plain_console().print(table)


@click.command()
@click.argument("run", metavar="RUN", type=click.Path(path_type=Path))
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object.")
def show(run: Path, as_json: bool) -> None:
    """Print the results of a stored run, complete or not.

    \b
    Example:
      esscher show runs/gaussian
    """  # noqa: D301 - click's mark for verbatim lines
    kind = run_kind(run)
    if kind in STUDIES:
        with foreign(run):
            result = load(run)
            finish(result.to_dict, lambda: print_result(result), as_json, None)
        return
    if kind is not None:
        read, show_found = _ways(run, kind)
        with foreign(run):
            found = read(run)
            finish(found.to_dict, lambda: show_found(found), as_json, None)
        return
    with foreign(run):
        curve = load_curve(run)
        if as_json:
            print_json({"law": curve.configuration["head"]["law"]} | curve.to_dict())
            return
        print_curve(curve)


def _ways(run: Path, kind: str) -> tuple[Callable[[Path], RunResult], Callable[[Any], None]]:
    """What reads and what prints a run of this kind, imported when needed: torch takes seconds."""
    if kind not in SHOWN_BY:
        raise InputError(
            f"{run} holds a run of kind {shortened(kind)}; this version of Esscher shows "
            f"{', '.join(['sweep', *SHOWN_BY])}"
        )
    return _named(*READERS[kind]), _named(*SHOWN_BY[kind])


def _named(module: str, name: str) -> Any:
    return getattr(import_module(module), name)


def _run_folders(folder: Path) -> Iterator[Path]:
    """Directories that hold a run, in the order of their names; nothing inside a run is searched.

    ``config.json`` is a common name: a directory without ``parts`` is something else.
    """
    for place, folders, files in os.walk(folder):
        if CONFIG in files and PARTS in folders:
            folders.clear()
            yield Path(place)
        folders.sort()


def _row(path: Path, below: Path) -> dict[str, Any]:
    name = str(path.relative_to(below))
    kind = run_kind(path)
    if kind is not None:
        return _cell_row(path, name)
    try:
        run = read_run(path)
        head, scales = run.configuration["head"], run.configuration["scales"]
        sizes, request = run.configuration["sizes"], run.request
        horizons = [head["horizon"] * scale for scale in scales]
        law = head["law"] or head["kind"]
        done = len(run.part_paths())
        state = _state(run, done)
    except (InputError, LookupError, TypeError, ValueError):
        return _damaged(name)
    return {
        "run": name,
        "kind": "sweep",
        "law": law,
        "horizons": horizons,
        "sizes": sizes,
        "done": done,
        "asked": request.replicates if request.precision is None else None,
        "precision": request.precision,
        "state": state,
    }


def _cell_row(path: Path, name: str) -> dict[str, Any]:
    """A run made of cells; how many there are is said by its kind."""
    try:
        run = read_cells(path)
        results = run.read_results() or {}
        subject, done = str(run.about["subject"]), len(run.names())
        sizes = list(run.configuration.get("sizes", run.configuration.get("budgets", [])))
        _grid(sizes)
        horizons = sorted(h["horizon"] for h in results.get("heads") or [] if "horizon" in h)
        _grid(horizons)
    except (InputError, LookupError, TypeError, ValueError):
        return _damaged(name)
    state = "running" if is_locked(path) else "complete" if results.get("complete") else "stopped"
    return {
        "run": name,
        "kind": run.kind,
        "law": subject,
        "horizons": horizons,
        "sizes": sizes,
        "done": done,
        "asked": None,
        "precision": None,
        "state": state,
    }


def _damaged(name: str) -> dict[str, Any]:
    blank = dict.fromkeys(("law", "horizons", "sizes", "done", "asked", "precision"))
    return {"run": name, "kind": None, **blank, "state": "damaged"}


def _state(run: Run, done: int) -> str:
    if is_locked(run.folder):
        return "running"
    results = run.read_results() or {}
    if results.get("complete") and results.get("replicates") == done:
        enough = run.request.precision is not None or done >= run.request.replicates
        return "complete" if enough else "stopped"
    return "stopped"


def _cells(row: dict[str, Any]) -> tuple[str, str, str]:
    if row["sizes"] is None:
        return "", "", ""
    precise = row["precision"] is not None
    wanted = f"for +-{row['precision']:g}" if precise else f"of {row['asked']}"
    if row["kind"] != "sweep":
        wanted = "cell" if row["done"] == 1 else "cells"
    return _grid(row["horizons"]), _grid(row["sizes"]), f"{row['done']} {wanted}"


def _grid(values: list[float]) -> str:
    """Print a grid the way the command line takes it: first:last:count."""
    if len(values) < 2:
        return "".join(f"{value:.6g}" for value in values)
    return f"{min(values):.6g}:{max(values):.6g}:{len(values)}"
