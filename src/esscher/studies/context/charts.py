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
    ticks,
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
    import pandas as pd

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
MEASURED = Series("line", ("measured", "extrapolated"))
#: Lines of single heads.
RESTS = Series("line", ("still to come", "extrapolated"))
#: Curves of the head that is picked, by the variable that each shows.
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
    frame, tolerance = TABLES[0].ordered(result), result.setup.settings.tolerance
    curves = _curves(result).melt(
        ["layer", "head", "context"], ["change", "rest"], var_name="curve", value_name="value"
    )
    rows = records(curves.replace({"curve": CURVE}))
    used = frame[frame["length"].notna()].assign(curve=CURVE["length"], value=tolerance)
    called = {"length": "context", "length_low": "low", "length_high": "high"}
    done = records(used.rename(columns=called))
    known = [tolerance, *(row["value"] for row in rows)]
    x = _along([*result.data["context"].values.tolist(), _last(result)])
    y = Axis("value", "relative change", log=True, limits=limits(known, log=True))

    def picked(pick: alt.Parameter) -> list[ChartType]:
        return [
            panel(
                guides([_tolerance(result)], x, y, turned=True),
                lines(rows, x, y, CHANGES, pick=pick),
                points(rows, x, y, CHANGES, pick=pick),
                points(done, x, y, CHANGES, across=True, pick=pick),
                title=picked_title("changes"),
            )
        ]

    return head_explorer(
        frame,
        MAPS,
        picked,
        title=_title(result),
        heads=heads,
        note=f"{_marks(result)}; bar: 95% interval of the tokens used",
        least=WIDE,
    )


def curves(result: Context, heads: Sequence[tuple[int, int]] | None = None) -> ChartType:
    """Draw what is still to come at every length for chosen heads, and where it is tolerable.

    Unless heads are given six, from the one that uses the shortest context to the longest.
    """
    frame = result.table().sort_values("length", kind="stable", na_position="last")
    there = [(int(layer), int(head)) for layer, head in frame[["layer", "head"]].to_numpy()]
    if heads is None:
        at = np.unique(np.linspace(0, len(there) - 1, min(SHOWN, len(there))).astype(int))
        heads = [there[i] for i in at]
    check_heads(heads, there)
    tolerance, changes = result.setup.settings.tolerance, _curves(result)
    rows: list[dict[str, Any]] = []
    done: list[dict[str, Any]] = []
    for layer, head in heads:
        (number,) = records(frame[(frame["layer"] == layer) & (frame["head"] == head)])
        curve = records(changes[(changes["layer"] == layer) & (changes["head"] == head)])
        length, extrapolated = number["length"], number["extrapolated"]
        used = number["note"] if length is None else f"{length:,.0f}"
        name = f"head {layer}.{head}: {used}{' (extrapolated)' if extrapolated else ''}"
        rows += [row | {"head": name, "line": RESTS.names[0]} for row in curve]
        if length is not None:
            done.append({"head": name, "context": length, "rest": tolerance})
        if extrapolated:
            rows += [row | {"head": name, "line": RESTS.names[1]} for row in (curve[-1], done[-1])]
    x = _along([*result.data["context"].values.tolist(), *(row["context"] for row in rows)])
    rests = [tolerance, *(row["rest"] for row in rows)]
    y = Axis("rest", "relative change still to come", log=True, limits=limits(rests, log=True))
    series = Series("head", list(dict.fromkeys(row["head"] for row in rows)))
    chart = panel(
        guides([_tolerance(result)], x, y, turned=True),
        lines(rows, x, y, series, dashes=RESTS),
        points([row for row in rows if row["line"] == RESTS.names[0]], x, y, series),
        ticks(done, x, y, series),
        height=150.0,
    )
    return figure([chart], _title(result), note="upright strokes: tokens that the heads use")


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
        "what is still to come at every length, for single heads (--head)",
        curves,
        heads=True,
        missing=_nothing,
    ),
)


def _curves(result: Context) -> pd.DataFrame:
    """Changes of every head that a logarithmic axis can show; NaN for the others."""
    frame = CURVES.frame(result)
    numbers = frame[["change", "rest"]]
    return frame.assign(**numbers.where(numbers > 0))


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


def _along(values: Sequence[float | None]) -> Axis:
    return Axis("context", "tokens of context L", log=True, limits=limits(values, log=True))


def _tolerance(result: Context) -> dict[str, Any]:
    tolerance = result.setup.settings.tolerance
    return {"at": tolerance, "name": f"tolerance {100 * tolerance:g}%"}


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
