"""``esscher report``: stored runs as one page to look at."""

from __future__ import annotations

from pathlib import Path

import click

from esscher.cli.options import check_output
from esscher.cli.printing import say


@click.command()
@click.argument("runs", metavar="RUN...", nargs=-1, required=True, type=click.Path(path_type=Path))
@click.option(
    "-o",
    "--output",
    type=click.Path(path_type=Path),
    help="File to write (default: report.html in the first run's directory).",
)
@click.option("--force", is_flag=True, help="Overwrite a file that is not a report.")
def report(runs: tuple[Path, ...], output: Path | None, force: bool) -> None:
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
    # Imported here: the readers of runs take seconds that `esscher --help` should not.
    from esscher.runs import report as reports

    path = reports.report(list(runs), output, force=force, say=lambda text: say(text, err=True))
    say(f"Report: {path}")
    say("Open it in a browser; it needs no network.")
