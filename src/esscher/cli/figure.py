"""``esscher figure``: a picture of a stored run, for a paper or a talk."""

from __future__ import annotations

import re
from pathlib import Path

import click

from esscher.cli.printing import check_figure, plain_console, plain_table, say
from esscher.core.errors import InputError
from esscher.core.untrusted import foreign
from esscher.runs.registry import load
from esscher.show.save import as_points

#: Dots per inch that make sense.
FEWEST, MOST = 30, 2400


@click.command()
@click.argument("run", metavar="RUN", type=click.Path(path_type=Path))
@click.option(
    "--kind", metavar="NAME", help="Name of the figure (default: the main one; --list shows all)."
)
@click.option(
    "-o",
    "--output",
    type=click.Path(path_type=Path),
    help="File to write: .png, .svg or .pdf (default: RUN-NAME.png here).",
)
@click.option(
    "--head", "heads", metavar="LAYER.HEAD", multiple=True, help="A head to draw; may be repeated."
)
@click.option(
    "--width",
    default="double",
    show_default=True,
    help="single (3.4 in) or double (7 in) column of a paper, or inches.",
)
@click.option("--dpi", type=int, default=200, show_default=True, help="Dots per inch of a PNG.")
@click.option("--title/--no-title", default=True, help="Whether a title says what was measured.")
@click.option("--list", "listing", is_flag=True, help="List the figures of this run.")
def figure(
    run: Path,
    kind: str | None,
    output: Path | None,
    heads: tuple[str, ...],
    width: str,
    dpi: int,
    title: bool,
    listing: bool,
) -> None:
    """Draw a figure of a stored run, ready for a paper.

    \b
    Examples:
      esscher figure runs/minilm
      esscher figure runs/minilm --list
      esscher figure runs/minilm --kind curves --head 0.2 --head 4.4 -o curves.pdf
      esscher figure runs/gaussian --kind curve --width single --no-title -o figure-1.svg
    """  # noqa: D301 - click's mark for verbatim lines
    check_figure(output, "-o")
    if not FEWEST <= dpi <= MOST:
        raise InputError(f"--dpi is {dpi}; it must lie between {FEWEST} and {MOST}")
    chosen = [as_head(text) for text in heads] or None
    as_points(width)  # refused before anything is read
    # Imported here: the readers of runs take time that `esscher --help` should not.
    from esscher.runs.report import measured

    with foreign(run):
        found = measured(load(run))
        offered = found.charts()
        if listing:
            table = plain_table(f"Figures of {run} ({found.study.name})")
            table.add_column("--kind", no_wrap=True)
            table.add_column("shows")
            for name, about in offered.items():
                table.add_row(name, about)
            plain_console().print(table)
            return
        chart = found.plot(kind, heads=chosen, title=None if title else "")
        name = next(iter(offered)) if kind is None else kind
        path = Path(f"{run.resolve().stem}-{name}.png") if output is None else output
        chart.save(path, width=width, dpi=dpi)
    say(f"Figure: {path}")


def as_head(text: str) -> tuple[int, int]:
    """Read ``4.11``: layer 4, head 11."""
    found = re.fullmatch(r"\s*(\d{1,6})\.(\d{1,6})\s*", text, re.ASCII)
    if found is None:
        raise InputError(f"--head is {text!r}; write LAYER.HEAD, such as 4.11")
    return int(found[1]), int(found[2])
