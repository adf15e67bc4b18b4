"""The result on a page of a report: how many heads are done, and a table of all heads."""

from __future__ import annotations

import math

import numpy as np

from esscher.core.shown import counted, shown
from esscher.show.content import Card, Column, Summary, Table
from esscher.show.frames import data_of
from esscher.show.tables import PlainConsole, PlainTable
from esscher.studies.context.study import Context, count_done, longest_first


def summary(result: Context, name: str) -> Summary:
    """Say what was measured and what matters of it; ``name`` is that of the run."""
    study = result.study
    subject = (
        f"{study.model_record.name} on {study.text_record.source}, up to {study.context:,} tokens, "
        f"{counted(study.passages, 'passage')}, tolerance {100 * study.tolerance:g}%"
    )
    tables = [_heads(result, name)] if result.heads else []
    cards = _cards(result) if result.heads else []
    return Summary("Context lengths of heads", subject, cards, tables)


def _cards(result: Context) -> list[Card]:
    """Heads that are done, those that gain beyond, those with an open end, the median."""
    frame, longest = result.table(), result.study.context
    length, total = frame["length"].where(~frame["open"], np.inf), len(frame)

    done = count_done(result.heads, longest // 2)

    def used(quantile: float) -> str:
        value = float(length.quantile(quantile, "nearest"))
        return shown(value, "n0") if np.isfinite(value) else f"open at {longest:,}"

    return [
        Card(
            f"{done['done']} of {total}",
            f"heads are done by {longest // 2:,} tokens",
            f"within {100 * result.study.tolerance:g}% of their final output, by their intervals; "
            f"{done['not yet']} are not, {done['undecided']} undecided",
        ),
        Card(
            f"{int(frame['extrapolated'].sum())} of {total}",
            f"heads gain beyond {longest:,} tokens",
            "by extrapolation",
        ),
        Card(
            f"{int(frame['open'].sum())} of {total}",
            f"heads are still changing at {longest:,}",
            "and the changes do not shrink",
        ),
        Card(
            used(0.5),
            "tokens that the median head uses",
            f"10% and 90% of the heads: {used(0.1)} and {used(0.9)}",
        ),
    ]


def _heads(result: Context, name: str) -> Table:
    return Table(
        title="All heads",
        name=f"{name}-heads",
        columns=[
            Column("layer", "layer", "n0"),
            Column("head", "head", "n0"),
            Column(
                "length",
                "tokens used",
                "n0",
                "low",
                "high",
                "open",
                help="context at which what is still to come is within the tolerance",
            ),
            Column(
                "last_change",
                "last change",
                "p1",
                help="relative change of the output at the last doubling",
            ),
            Column("extrapolated", "extrapolated", help="beyond the longest context measured"),
            Column("note", "open end"),
            Column(
                "limit", "at most", "n0", help="the window of the layer, or what the model reads"
            ),
            Column("open", "open", shown=False),
            Column("exponent", "exponent of changes", "d2", help="b of change ~ L^-b"),
        ],
        data=data_of(result.table()),
        caption="Brackets are 95% intervals from resampled passages; one passage has none.",
        sort=("last_change", True),
    )


# The result in a terminal.

#: Heads that the table shows unless all are asked for.
SHOWN = 12


def print_result(result: Context, console: PlainConsole, everything: bool = False) -> None:
    """Print the heads that use most."""
    heads = result.table()
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
            *(
                "open" if math.isnan(row[name]) else f"{row[name]:,.0f}"
                for name in ("length", "low", "high")
            ),
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
