"""Charts of context lengths: the share of heads that are done, every head, and single ones."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
from altair.typing import ChartType

from esscher.core.shown import counted
from esscher.runs.result import Result
from esscher.show.cells import map_height, picked_title
from esscher.show.chart import (
    HEIGHT,
    Axis,
    Series,
    bands,
    figure,
    guides,
    lines,
    panel,
    points,
)
from esscher.show.content import Drawing, check_heads
from esscher.show.explorer import HeadMap
from esscher.show.explorer import explorer as head_explorer
from esscher.show.frames import records
from esscher.show.theme import BLACK, BLUE, SHARES, VERMILION, limits
from esscher.studies.context.study import ContextData, ContextSettings
from esscher.studies.context.view import CURVES, TABLES

if TYPE_CHECKING:
    import altair as alt

Context = Result[ContextSettings]
#: Heads whose curves are drawn unless some are chosen.
SHOWN = 6
#: Points that a panel must have to stand beside another.
WIDE = 170.0
#: Up to which length heads are counted: a decade beyond what was measured says enough.
BEYOND = 10.0
#: Written into the cells of lengths beyond the longest context.
FARTHER = "→"
BAND = "band: shares by the ends of the heads' 95% intervals"
BAR = "bar: 95% interval of the tokens used"
MEASURED = Series("line", ("measured", "extrapolated"))
#: Curves of a head, by the variable that each shows.
CURVE = {
    "change": "output changes when L is doubled",
    "rest": "still to come beyond L",
    "length": "tokens used",
}
CHANGES = Series(
    "curve",
    tuple(CURVE.values()),
    colours=(BLUE, VERMILION, BLACK),
    shapes=("circle", "square", "diamond"),
)
LENGTHS = HeadMap(
    "length",
    "tokens of context used",
    {"log": True, "crossed": "extrapolated", "cross": FARTHER},
)
MAPS = (
    LENGTHS,
    HeadMap("last_change", "last change", {"colours": SHARES}),
    HeadMap("exponent", "exponent of changes", {"colours": SHARES}),
)


def context(result: Context) -> ChartType:
    """Draw the share of heads done at every length, and the length of every head."""
    height = map_height(result.data.sizes["layer"])
    panels = [_saturation(result, max(height, HEIGHT)), LENGTHS.draw(result.table())]
    note = f"{BAND}. {_marks(result)}"
    return figure(panels, _title(result), note=note, least=WIDE, apart=True)


def saturation(result: Context) -> ChartType:
    """Draw the share of heads that are within the tolerance at every length, with its band."""
    return figure([_saturation(result)], _title(result), note=BAND)


def lengths(result: Context) -> ChartType:
    """Draw the context that every head uses."""
    return figure([LENGTHS.draw(result.table())], _title(result), note=_marks(result))


def explorer(result: Context, heads: Sequence[tuple[int, int]] | None = None) -> ChartType:
    """Draw lengths and changes of every head, and the curves of the one that is picked."""
    return head_explorer(
        TABLES[0].ordered(result),
        MAPS,
        lambda pick: [_changes(result, picked_title("changes"), pick=pick)],
        title=_title(result),
        heads=heads,
        note=f"{_marks(result)}; {BAR}",
        least=WIDE,
    )


def curves(result: Context, heads: Sequence[tuple[int, int]] | None = None) -> ChartType:
    """Draw the changes of chosen heads.

    Unless heads are given six, from the one that uses the shortest context to the longest.
    """
    frame = result.table().sort_values("length", kind="stable", na_position="last")
    there = [(int(layer), int(head)) for layer, head in frame[["layer", "head"]].to_numpy()]
    if heads is None:
        at = np.unique(np.linspace(0, len(there) - 1, min(SHOWN, len(there))).astype(int))
        heads = [there[i] for i in at]
    check_heads(heads, there)
    panels = [_changes(result, f"head {head[0]}.{head[1]}", head) for head in heads]
    return figure(panels, _title(result), note=BAR, least=WIDE)


def _nothing(result: Context) -> str | None:
    return None if result.cells else "no passage of the run is complete"


DRAWINGS = (
    Drawing("context", "share of heads done, and lengths by head", context, missing=_nothing),
    Drawing(
        "explorer",
        "lengths and changes of every head, and the curves of one of them (--head)",
        explorer,
        heads=True,
        missing=_nothing,
        heading="Every head",
        caption="Click a cell, or move with the arrow keys, to see the curves of that head. A head "
        "is done once its last change, or all change still to come, is within the tolerance. "
        "Beyond the longest context, changes are extrapolated by a power law, up to what the head "
        "can see.",
    ),
    Drawing(
        "saturation",
        "share of heads done at every length",
        saturation,
        missing=_nothing,
        heading="How many heads are done",
        caption="Share of the heads that are within the tolerance of their final output, by "
        "context; extrapolated right of the dotted line.",
    ),
    Drawing("lengths", "context that every head uses", lengths, missing=_nothing),
    Drawing(
        "curves",
        "changes at every length, and what is still to come, for single heads (--head)",
        curves,
        heads=True,
        missing=_nothing,
    ),
)


def _changes(
    result: Context,
    title: Any,
    head: tuple[int, int] | None = None,
    pick: alt.Parameter | None = None,
) -> ChartType:
    """Changes of a head, what is still to come, and where that is tolerable."""
    tolerance = result.setup.settings.tolerance
    changes = CURVES.frame(result).melt(
        ["layer", "head", "context"], ["change", "rest"], var_name="curve", value_name="value"
    )
    # nothing, and what is not there, have no place on a logarithmic axis
    changes["value"] = changes["value"].where(changes["value"] > 0)
    rows = records(changes.replace({"curve": CURVE}))
    frame = result.table()
    used = frame[frame["length"].notna()].assign(curve=CURVE["length"], value=tolerance)
    called = {"length": "context", "length_low": "low", "length_high": "high"}
    done = records(used.rename(columns=called))
    ends = [*result.data["context"].values.tolist(), _last(result)]
    x = Axis("context", "tokens of context L", log=True, limits=limits(ends, log=True))
    known = [tolerance, *(row["value"] for row in rows)]
    y = Axis("value", "relative change", log=True, limits=limits(known, log=True))
    if head is not None:
        rows, done = ([r for r in part if (r["layer"], r["head"]) == head] for part in (rows, done))
    level = {"at": tolerance, "name": f"tolerance {100 * tolerance:g}%"}
    return panel(
        guides([level], x, y, turned=True),
        lines(rows, x, y, CHANGES, pick=pick),
        points(rows, x, y, CHANGES, pick=pick),
        points(done, x, y, CHANGES, across=True, pick=pick),
        title=title,
    )


def _saturation(result: Context, height: float = HEIGHT) -> ChartType:
    """Share of heads whose length is at most L; the band from the ends of their intervals."""
    settings, last = result.setup.settings, _last(result)
    longest = settings.context
    known = ContextData(result.data).length.transpose("bound", ...).values.reshape(3, -1)
    # an open end comes after all lengths
    lengths, early, late = np.sort(np.where(np.isnan(known), np.inf, known), axis=1)
    ends = np.concatenate([lengths, early, late, result.data["context"].values[:1]])
    first = float(ends.min()) / 1.1
    places = np.unique([first, longest, last, *ends[ends <= last]])
    shares = [
        np.searchsorted(values, places, side="right") / len(values)
        for values in (lengths, late, early)
    ]
    rows: list[dict[str, Any]] = [
        {"context": float(at), "share": float(share), "low": float(low), "high": float(high)}
        for at, share, low, high in zip(places, *shares, strict=True)
    ]
    parts = [row | {"line": "measured"} for row in rows if row["context"] <= longest]
    parts += [row | {"line": "extrapolated"} for row in rows if row["context"] >= longest]
    x = Axis("context", "tokens of context", log=True, limits=(first, last))
    y = Axis("share", "share of heads", limits=(0.0, 1.15))
    blocks = [lines(parts, x, y, dashes=MEASURED, step=True)]
    if settings.passages > 1:  # one passage has no intervals
        blocks.insert(0, bands(rows, x, y, step=True))
    endless = int(np.isinf(lengths).sum())
    if endless:
        name = f"{counted(endless, 'head')} still changing"
        blocks.append(guides([{"at": 1 - endless / len(lengths), "name": name}], x, y))
    return panel(
        *blocks,
        guides([{"at": longest, "name": "longest context"}], x, y, upright=True, turned=True),
        title=f"heads within {100 * settings.tolerance:g}% of the end",
        height=height,
    )


def _last(result: Context) -> float:
    """The longest context that is drawn."""
    longest = result.setup.settings.context
    end = float(ContextData(result.data).length.max().fillna(longest))
    return float(np.clip(end, 1.5 * longest, BEYOND * longest))


def _marks(result: Context) -> str:
    return f"×: still changing at {result.setup.settings.context:,}; {FARTHER}: extrapolated"


def _title(result: Context) -> str:
    setup, settings = result.setup, result.setup.settings
    return (
        f"{setup.model.name} on {setup.text.source}: context used by its heads, "
        f"{counted(settings.passages, 'passage')}, longest context {settings.context:,}"
    )
