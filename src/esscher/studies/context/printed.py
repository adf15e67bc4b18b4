"""The result in a terminal."""

from __future__ import annotations

import math

from esscher.show.tables import PlainConsole, PlainTable
from esscher.studies.context.result import Context, longest_first

#: Heads that the table shows unless all are asked for.
SHOWN = 12


def print_result(found: Context, console: PlainConsole, everything: bool = False) -> None:
    """Print the heads that use most."""
    heads = found.table()
    if heads.empty:
        return
    heads = longest_first(heads)
    shown = heads if everything else heads.head(SHOWN)
    table = PlainTable(
        "All heads" if everything else f"The {len(shown)} heads that use the longest context"
    )
    for name in ("head", "context", "between", "and", "change", "note"):
        words = name == "note"
        table.add_column(name, justify="left" if words else "right", no_wrap=not words)
    for row in shown.to_dict("records"):
        table.add_row(
            f"{row['layer']}.{row['head']}",
            *(_length(row[name]) for name in ("length", "low", "high")),
            f"{row['last_change']:.1%}",
            "extrapolated" if row["extrapolated"] else row["note"],
        )
    console.print(table)
    console.explain(
        "context: tokens after which a head's output changes by less than the tolerance, with 95% "
        "interval over passages; open: it changes by more, and no less than before. Nothing is "
        "longer than the window of the layer or what the model reads. change: relative, when the "
        "context last doubled."
    )


def _length(value: float) -> str:
    return "open" if math.isnan(value) else f"{value:,.0f}"
