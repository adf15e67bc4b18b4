"""The ledger in a terminal."""

from __future__ import annotations

from esscher.show.tables import PlainConsole, PlainTable
from esscher.studies.paper.result import Paper


def print_result(found: Paper, console: PlainConsole) -> None:
    """Print a line per claim, and what would decide those that are undecided."""
    if not found.entries:
        return
    table = PlainTable(f"Token Sample Complexity of Attention, {found.study.subject}")
    table.add_column("claim", no_wrap=True)
    table.add_column("verdict", no_wrap=True)
    table.add_column("measured")
    for entry in found.entries:
        decide = f" To decide: {entry.decide}" if entry.decide else ""
        table.add_row(entry.claim, entry.verdict, entry.found + decide)
    console.print(table)
    console.explain(
        "Each verdict comes from a stated rule: the report has the rules, the figures, the weakest "
        "point of every claim, and the command that redoes it alone."
    )
