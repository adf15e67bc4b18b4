"""Context lengths as people see them: the table and the sentences."""

from __future__ import annotations

import numpy as np
import xarray as xr

from esscher.core.shown import counted, two_digits
from esscher.core.variables import var
from esscher.runs.result import Result
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
EXTRAPOLATED = var("", name="extrapolated", kind="b")
NOTE = var("", "note", name="note", kind="U", terminal="note")


def heads(result: Result[ContextSettings]) -> xr.Dataset:
    """Return the numbers of every head, and in a word whether its length was measured."""
    data = ContextData(result.data)
    length = data.length.sel(bound="value", drop=True)
    beyond = length > result.setup.settings.context
    note = np.where(length.isnull(), "still changing", np.where(beyond, "extrapolated", ""))
    last = data.change.isel(context=-2, drop=True)
    return result.data.assign(last_change=last, extrapolated=beyond, note=(length.dims, note))


TABLES = (
    TableView(
        "heads",
        "All heads",
        ("layer", "head"),
        (
            *(ContextData.length, LAST_CHANGE, NOTE, ContextData.limit),
            *(EXTRAPOLATED, ContextData.exponent),
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
    length = frame["length"]
    middle = float(length.fillna(np.inf).median())
    uses = f"still changes at {longest:,}"
    if np.isfinite(middle):
        uses = f"uses {'~' if middle > longest else ''}{two_digits(middle)} tokens"
    beyond, open_ends = int((length > longest).sum()), int(length.isna().sum())
    return (
        f"{done} of {len(frame)} heads have seen enough after {half:,} tokens of context (more "
        f"would change their output by less than {100 * settings.tolerance:g}%), {not_yet} have "
        f"not, {undecided} undecided (95% intervals over {counted(settings.passages, 'passage')}). "
        f"The median head {uses}. Extrapolated beyond {longest:,}: {beyond}; still changing "
        f"there: {open_ends}."
    )
