"""``esscher ls``, ``show`` and ``report``: which stored runs there are, and what is in them."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import click

from esscher.cli.printing import (
    check_figure,
    check_output,
    finish,
    print_json,
    say,
)
from esscher.cli.study import print_result
from esscher.core.errors import InputError
from esscher.core.untrusted import foreign
from esscher.runs.folder import Run, is_locked, read_config, run_folders
from esscher.runs.registry import load, study_named
from esscher.runs.report import measured
from esscher.runs.report import report as write_report
from esscher.runs.result import RESULTS, read_result
from esscher.show.tables import PlainConsole, PlainTable


@click.command(name="ls")
@click.argument("folder", metavar="DIR", type=click.Path(path_type=Path), default=Path())
@click.option("--json", "as_json", is_flag=True, help="Print JSON instead of tables.")
def list_runs(folder: Path, as_json: bool) -> None:
    """List the runs in a directory and below it.

    \b
    Example:
      esscher ls runs
    """  # noqa: D301 - click's mark for verbatim lines
    if not folder.is_dir():
        raise InputError(f"{folder} is not a directory")
    rows = [_row(path, folder) for path in run_folders(folder)]
    if as_json:
        print_json({"runs": rows})
        return
    if not rows:
        say(f"There are no runs in {folder}.")
        say("Next: esscher probe demo:minilm --out RUN")
        return
    table = PlainTable(f"Runs in {folder}", least=("of", "measured"))
    for name in ("run", "kind", "of", "measured", "state"):
        # names may be long and fold, numbers must not
        table.add_column(name, no_wrap=name not in ("run", "of"))
    for row in rows:
        done = "" if row["done"] is None else f"{row['done']} {row['unit']}"
        table.add_row(*(row[key] or "" for key in ("run", "kind", "subject")), done, row["state"])
    PlainConsole().print(table)
    say("Next: esscher show RUN")


@click.command()
@click.argument("run", metavar="RUN", type=click.Path(path_type=Path))
@click.option(
    "--figure", metavar="NAME", help="Draw this figure instead; main is the first of them."
)
@click.option(
    "-o",
    "--output",
    type=click.Path(path_type=Path),
    help="File of the figure: .png, .svg or .pdf (default: RUN-NAME.png here).",
)
@click.option("--json", "as_json", is_flag=True, help="Print JSON instead of tables.")
def show(run: Path, figure: str | None, output: Path | None, as_json: bool) -> None:
    """Print the result of a stored run, or draw a figure of it.

    A run that is not complete is shown as far as it is measured.

    \b
    Examples:
      esscher show runs/gaussian
      esscher show runs/minilm --figure layers -o layers.pdf
    """  # noqa: D301 - click's mark for verbatim lines
    if output is not None and figure is None:
        raise InputError(f"-o {output} is the file of a figure; name it with --figure, or main")
    check_figure(output, "-o")
    with foreign(run):
        result = load(run)
        if figure is not None:
            chosen = next(iter(measured(result).charts())) if figure == "main" else figure
            chart = measured(result).plot(chosen)
            path = Path(f"{run.resolve().stem}-{chosen}.png") if output is None else output
            chart.save(path)
            say(f"Figure: {path}")
            return
        next_step = result.study.next_step
        if not result.complete:
            next_step = "run the same command again; it measures the rest"
        finish(result.to_dict, lambda: print_result(result), as_json, None, next_step=next_step)


def _row(path: Path, below: Path) -> dict[str, Any]:
    """A row of ``esscher ls``; stored results may be of fewer cells, or of another request."""
    name = str(path.relative_to(below))
    try:
        config = read_config(path)
        study = study_named(config.kind)
        cells = set(Run(path, config, study.cell).names())
        complete = False
        if (path / RESULTS).exists():
            attributes = read_result(path / RESULTS, study).attrs
            complete = (
                bool(attributes["complete"])
                and cells.issuperset(json.loads(attributes["cells"]))
                and config.request.items() <= json.loads(attributes["configuration"]).items()
            )
    except InputError:
        blank = dict.fromkeys(("kind", "subject", "done", "unit"))
        return {"run": name, **blank, "state": "damaged"}
    state = "running" if is_locked(path) else "complete" if complete else "stopped"
    done = len(cells - study.auxiliary)
    return {
        "run": name,
        "kind": config.kind,
        "subject": config.subject,
        "done": done,
        "unit": study.unit,
        "state": state,
    }


@click.command()
@click.argument("runs", metavar="RUN...", nargs=-1, required=True, type=click.Path(path_type=Path))
@click.option(
    "-o",
    "--output",
    type=click.Path(path_type=Path),
    help="File to write (default: report.html in the first run's directory).",
)
def report(runs: tuple[Path, ...], output: Path | None) -> None:
    """Write an HTML report about stored runs.

    RUN is the directory of a run of any kind, complete or not, a plan's file, or a directory that
    holds runs; runs without measurements are left out. Several runs follow each other. The
    report is one file, which opens from disk and needs no network.

    \b
    Examples:
      esscher report runs/minilm -o report.html
      esscher report runs/minilm-docs runs/minilm-code -o both.html
      esscher report reproduced/gaussian-quick -o gaussian.html
    """  # noqa: D301 - click's mark for verbatim lines
    check_output(output, "-o")
    path = write_report(list(runs), output, say=lambda text: say(text, err=True))
    say(f"Report: {path}")
    say("Open it in a browser; it needs no network.")
