"""``esscher reproduce``: the published synthetic study, one experiment or all of them."""

from __future__ import annotations

import time
from pathlib import Path

import click
from rich.markdown import Markdown

from esscher.cli.cluster import chosen_cluster, executor_options
from esscher.cli.endings import report_line, resumable
from esscher.cli.printing import plain_console, plain_table, print_json, say
from esscher.core.errors import InputError
from esscher.runs.folder import CONFIG
from esscher.show.tables import PlainTable

SCALES = ("quick", "standard", "paper")
#: Columns of the tables that are left out first where there is no room.
LEAST = ("median width (smallest to largest)", "alpha_squared", "tilt", "standard deviations",
         "sd of a pass", "bound", "reference", "band from", "to", "conjectured", "always 1/2",
         "trusted", "predicted")  # fmt: skip
EXPERIMENTS = ("gaussian", "ablation", "sphere", "ball", "hardmax", "universality", "onepass")


@click.command()
@click.argument("name", metavar="NAME")
@click.option(
    "--scale",
    type=click.Choice(SCALES),
    default="quick",
    show_default=True,
    help="quick: under a minute each; standard: minutes; paper: the sizes of the paper.",
)
@click.option(
    "--out",
    type=click.Path(path_type=Path),
    default=Path("reproduced"),
    show_default=True,
    help="Directory for runs, tables, figures and findings.",
)
@click.option("--seed", type=int, default=0, show_default=True, help="Seed of all random numbers.")
@executor_options
@click.option("--json", "as_json", is_flag=True, help="Print JSON instead of tables.")
def reproduce(
    name: str,
    scale: str,
    out: Path,
    seed: int,
    workers: int,
    scheduler: str | None,
    as_json: bool,
) -> None:
    """Repeat an experiment of the published synthetic study.

    NAME is all, or one of these:

    \b
    gaussian      exponents against the horizon
    ablation      the tilt matrix scaled by alpha
    sphere        tokens on a sphere
    ball          the supremum over a ball, and its bound
    hardmax       infinite tilt, up to 10^12 tokens
    universality  the same spectrum under other token laws
    onepass       the exponent from one pass, against the measured one

    If interrupted, run the same command again to resume.

    \b
    Examples:
      esscher reproduce gaussian
      esscher reproduce all --scale standard --workers 2
    """  # noqa: D301 - click's mark for verbatim lines
    # Imported here: figures and torch take seconds that `esscher --help` should not.
    from esscher.studies.reproduce import reproduce as run

    if name != "all" and name not in EXPERIMENTS:
        raise InputError(f"there is no experiment {name!r}; choose from {', '.join(EXPERIMENTS)}")
    done = []
    with resumable(out), chosen_cluster(scheduler, workers) as executor:
        for chosen in EXPERIMENTS if name == "all" else (name,):
            start = time.monotonic()
            finding = run(chosen, scale, out, seed=seed, executor=executor)
            folder = out / f"{chosen}-{scale}"
            done.append(
                {
                    "name": chosen,
                    "title": finding.title,
                    "text": finding.text,
                    "seconds": round(time.monotonic() - start, 1),
                    "finding": str(folder / f"{chosen}.md"),
                    "tables": [str(folder / f"{table}.csv") for table in finding.tables],
                    "figures": [str(folder / f"{figure}.png") for figure in finding.figures],
                }
            )
            if not as_json:
                print_finding(finding.title, finding.text, folder, chosen)
    if as_json:
        print_json({"scale": scale, "seed": seed, "experiments": done})


def _table(block: str) -> PlainTable:
    """A Markdown table as a table of the terminal."""
    head, _, *rows = ([cell.strip() for cell in line[1:-1].split("|")]
                      for line in block.strip().splitlines())  # fmt: skip
    table = plain_table("", LEAST)
    for name, *cells in zip(head, *rows, strict=True):
        has_numbers = any(character.isdigit() for cell in cells for character in cell)
        table.add_column(name, justify="right" if has_numbers else "left")
    for row in rows:
        table.add_row(*row)
    return table


def print_finding(title: str, text: str, folder: Path, name: str) -> None:
    """Print what was found, and where it is."""
    console = plain_console()
    for block in (f"# {title}", *text.split("\n\n")):
        console.print(_table(block) if block.startswith("|") else Markdown(block))
        console.print()
    console.print(f"Finding, table and figures: {folder / name}.md", soft_wrap=True)
    if any(folder.rglob(CONFIG)):
        say(report_line(folder))
