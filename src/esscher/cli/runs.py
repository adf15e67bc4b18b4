"""``esscher ls`` and ``esscher show``: what stored runs there are, and what is in them."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import click
from rich.console import Console

from esscher.cli.options import plain_table, print_json
from esscher.cli.sweep import print_curve
from esscher.errors import InputError
from esscher.probing.store import is_probe, read_probe
from esscher.sweep.engine import load_curve
from esscher.sweep.folder import CONFIG, PARTS
from esscher.sweep.lock import is_locked
from esscher.sweep.store import Run, read_run


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
    table = plain_table(f"Runs below {folder}")
    for name in ("run", "law or model", "horizon", "sizes", "replicates", "state"):
        table.add_column(name, justify="right" if name == "replicates" else "left", overflow="fold")
    for row in rows:
        table.add_row(*(str(row[k]) for k in ("run", "law")), *_cells(row), str(row["state"]))
    Console().print(table)


@click.command()
@click.argument("run", metavar="RUN", type=click.Path(path_type=Path))
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object.")
def show(run: Path, as_json: bool) -> None:
    """Print the results of a stored run, complete or not.

    \b
    Example:
      esscher show runs/gaussian
    """  # noqa: D301 - click's mark for verbatim lines
    if is_probe(run):
        _show_probe(run, as_json)
        return
    curve = load_curve(run)
    if as_json:
        print_json({"law": curve.configuration["head"]["law"]} | curve.to_dict())
        return
    print_curve(curve)


def _show_probe(run: Path, as_json: bool) -> None:
    # Imported here: a probe's results need what reads models, which takes seconds to import.
    from esscher.cli.probe import print_probe
    from esscher.probing import load_probe

    found = load_probe(run)
    if as_json:
        print_json(found.to_dict())
    else:
        print_probe(found)


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
    if is_probe(path):
        return _probe_row(path, name)
    try:
        run = read_run(path)
        head, scales = run.configuration["head"], run.configuration["scales"]
        sizes, request = run.configuration["sizes"], run.request
        horizons = [head["horizon"] * scale for scale in scales]
        law = head["law"] or head["kind"]
    except (InputError, LookupError, TypeError):
        blank = dict.fromkeys(("law", "horizons", "sizes", "done", "asked", "precision"))
        return {"run": name, "kind": None, **blank, "state": "damaged"}
    done = len(run.part_paths())
    return {
        "run": name,
        "kind": "sweep",
        "law": law,
        "horizons": horizons,
        "sizes": sizes,
        "done": done,
        "asked": request.replicates if request.precision is None else None,
        "precision": request.precision,
        "state": _state(run, done),
    }


def _probe_row(path: Path, name: str) -> dict[str, Any]:
    run = read_probe(path)
    configuration, results = run.configuration, run.read_results() or {}
    state = "running" if is_locked(path) else "complete" if results.get("complete") else "stopped"
    return {
        "run": name,
        "kind": "probe",
        "law": configuration["model"]["name"],
        "horizons": sorted(head["horizon"] for head in results.get("heads", [])),
        "sizes": configuration["sizes"],
        "done": results.get("cells", 0),
        "asked": None,
        "precision": None,
        "state": state,
    }


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
    if row["kind"] == "probe":
        wanted = "cells"
    return _grid(row["horizons"]), _grid(row["sizes"]), f"{row['done']} {wanted}"


def _grid(values: list[float]) -> str:
    """Print a grid the way the command line takes it: first:last:count."""
    if len(values) < 2:
        return "".join(f"{value:.6g}" for value in values)
    return f"{min(values):.6g}:{max(values):.6g}:{len(values)}"
