"""Context lengths as people see them: the table, the cards and the sentences."""

from __future__ import annotations

import numpy as np
import xarray as xr

from esscher.core.shown import counted, shown, two_digits
from esscher.core.variables import by_row, var
from esscher.runs.result import Result
from esscher.show.content import Card
from esscher.show.table_view import TableView
from esscher.studies.context.study import ContextData, ContextSettings

TITLE = "Context lengths of heads"
#: Variables that only tables show.
LAST_CHANGE = var(
    "",
    "last change",
    "p1",
    name="last_change",
    terminal="change",
    help="relative change of the output when the context last doubled",
)
EXTRAPOLATED = var("", name="extrapolated", kind="b", page=False)
NOTE = var("", "note", name="note", kind="U", terminal="note")


def heads(result: Result[ContextSettings]) -> xr.Dataset:
    """Return the numbers of every head, and in a word whether its length was measured."""
    data, longest = ContextData(result.data), result.setup.settings.context
    length = data.length.sel(bound="value", drop=True)
    beyond = length > longest
    changing = by_row(
        lambda change: f"still changing by {change[-2]:.0%} at {longest:,}", "context", data.change
    )
    note = changing.where(length.isnull(), "").where(~beyond, "extrapolated")
    return result.data.assign(
        last_change=data.change.isel(context=-2, drop=True),
        extrapolated=beyond,
        note=note.astype(np.str_),
    )


TABLES = (
    TableView(
        "heads",
        "All heads",
        ("layer", "head"),
        (
            ContextData.length,
            LAST_CHANGE,
            NOTE,
            ContextData.limit,
            EXTRAPOLATED,
            ContextData.exponent,
        ),
        heads,
        sort="length",
        then="last_change",
        caption="Brackets are 95% intervals from resampled passages; one passage has none.",
        most=12,
    ),
)
CURVES = TableView(
    "curves",
    "Changes of every head",
    ("layer", "head", "context"),
    (ContextData.change, ContextData.rest),
    lambda result: result.data,
)


def count_done(result: Result[ContextSettings], tokens: int) -> tuple[int, int, int]:
    """Count the heads that need no more than so many tokens, that need more, and undecided ones.

    By the interval of the length, never by the length alone: without an interval (one passage) all
    heads are undecided.
    """
    low, high = (ContextData(result.data).length.sel(bound=end) for end in ("low", "high"))
    done = high <= tokens
    not_yet = high.notnull() & ~done & ~(low <= tokens)  # the low end may be open, or beyond
    counts = int(done.sum()), int(not_yet.sum())
    return *counts, low.size - sum(counts)


def subject(result: Result[ContextSettings]) -> str:
    """Return what was measured, in a line."""
    setup, settings = result.setup, result.setup.settings
    return (
        f"{setup.model.name} on {setup.text.source}, up to {settings.context:,} tokens, "
        f"{counted(settings.passages, 'passage')}, tolerance {100 * settings.tolerance:g}%"
    )


def headline(result: Result[ContextSettings]) -> str:
    """Return the answer in a few sentences."""
    settings, frame = result.setup.settings, result.table()
    longest, half = settings.context, settings.context // 2
    done, not_yet, undecided = count_done(result, half)
    sentence = (
        f"{done} of {len(frame)} heads have seen enough after {half:,} tokens of context (more "
        f"would change their output by less than {100 * settings.tolerance:g}%), {not_yet} have "
        f"not, {undecided} undecided (95% intervals over {counted(settings.passages, 'passage')})"
    )
    beyond = frame["length"][frame["extrapolated"]]
    if len(beyond):
        sentence += (
            f"; {len(beyond)} need more than {longest:,}, up to ~{two_digits(beyond.max())} "
            "(extrapolated)"
        )
    changes = frame["last_change"][frame["length"].isna()]
    if len(changes):
        still = "is still changing, by" if len(changes) == 1 else "are still changing, by up to"
        sentence += f"; {len(changes)} {still} {changes.max():.0%} at {longest:,}"
    middle = float(frame["length"].fillna(np.inf).median())
    uses = f"still changes at {longest:,}"
    if np.isfinite(middle):
        mark = "~" if middle > longest else ""
        uses = f"uses {mark}{two_digits(middle)} tokens"
    return f"{sentence}. The median head {uses}."


def cards(result: Result[ContextSettings]) -> list[Card]:
    """Return the numbers that matter."""
    frame, longest = result.table(), result.setup.settings.context
    total, done, not_yet, undecided = len(frame), *count_done(result, longest // 2)
    lengths = frame["length"].fillna(np.inf).quantile([0.1, 0.5, 0.9], "nearest")
    low, middle, high = (
        shown(x, "n0") if np.isfinite(x) else f"open at {longest:,}" for x in lengths
    )
    return [
        Card(
            f"{done} of {total}",
            f"heads are done by {longest // 2:,} tokens",
            f"within {100 * result.setup.settings.tolerance:g}% of their final output, by their "
            f"intervals; {not_yet} are not, {undecided} undecided",
        ),
        Card(
            f"{int(frame['extrapolated'].sum())} of {total}",
            f"heads gain beyond {longest:,} tokens",
            "by extrapolation",
        ),
        Card(
            f"{int(frame['length'].isna().sum())} of {total}",
            f"heads are still changing at {longest:,}",
            "and the changes do not shrink",
        ),
        Card(
            middle,
            "tokens that the median head uses",
            f"10% and 90% of the heads: {low} and {high}",
        ),
    ]
