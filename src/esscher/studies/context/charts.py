"""Charts of context lengths: the share of heads that are done, every head, and single ones."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import altair as alt
import numpy as np
from altair.typing import ChartType

from esscher.core.shown import counted
from esscher.show.cells import heatmap, map_height, picked_title, picking
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
from esscher.show.frames import finite, records
from esscher.show.theme import BLACK, BLUE, SHARES, VERMILION, limits
from esscher.studies.context.study import Context, longest_first

#: Heads whose curves are drawn unless some are chosen.
SHOWN = 6
#: Points that a panel must have to stand beside another.
WIDE = 170.0
#: Up to which length heads are counted: a decade beyond what was measured says enough.
BEYOND = 10.0
#: Written into the cells of lengths beyond the longest context.
FARTHER = "→"
REST = "relative change still to come"
BAND = "band: shares by the ends of the heads' 95% intervals"
MEASURED = Series("line", ("measured", "extrapolated"))
#: Kinds of lines of single heads.
SUM, DOUBLING, EXTRAPOLATED = "still to come", "change at a doubling", "extrapolated"
#: Curves of the head that is picked.
CHANGES = Series(
    "curve",
    ("output changes when L is doubled", "still to come beyond L", "tokens used"),
    colours=(BLUE, VERMILION, BLACK),
    shapes=("circle", "square", "diamond"),
)


def context(result: Context) -> ChartType:
    """Draw the share of heads done at every length, and the length of every head."""
    height = map_height(len({head.layer for head in result.heads}))
    panels = [_saturation(result, max(height, HEIGHT)), _lengths(result)]
    note = f"{BAND}. {_marks(result)}"
    return figure(panels, _title(result), note=note, least=WIDE, apart=True)


def saturation(result: Context) -> ChartType:
    """Draw the share of heads that are within the tolerance at every length, with its band."""
    return figure([_saturation(result)], _title(result), note=BAND)


def lengths(result: Context) -> ChartType:
    """Draw the context that every head uses."""
    return figure([_lengths(result)], _title(result), note=_marks(result))


def explorer(result: Context, heads: Sequence[tuple[int, int]] | None = None) -> ChartType:
    """Draw lengths and changes of every head, and the curves of the one that is picked."""
    first = longest_first(result.table()).iloc[0]
    chosen = int(first["layer"]), int(first["head"])
    if heads is not None:
        check_heads(heads, [(head.layer, head.head) for head in result.heads])
        chosen = heads[0]
    pick = picking(*chosen)
    rows = records(result.table())
    panels = [
        _lengths(result, pick),
        heatmap(rows, "last_change", "last change", colours=SHARES, pick=pick),
        heatmap(rows, "exponent", "exponent of changes", colours=SHARES, pick=pick),
        _picked(result, pick),
    ]
    note = f"{_marks(result)}; bar: 95% interval of the tokens used"
    return figure(panels, _title(result), note=note, least=WIDE, apart=True, pick=pick)


def curves(result: Context, heads: Sequence[tuple[int, int]] | None = None) -> ChartType:
    """Draw what is still to come at every length for chosen heads, and where it is tolerable.

    Unless heads are given six, from the one that uses the shortest context to the longest.
    """
    if heads is None:
        order = sorted(
            result.heads, key=lambda head: math.inf if head.length is None else head.length
        )
        at = np.unique(np.linspace(0, len(order) - 1, min(SHOWN, len(order))).astype(int))
        heads = [(order[i].layer, order[i].head) for i in at]
    check_heads(heads, [(head.layer, head.head) for head in result.heads])
    tolerance, longest = result.study.tolerance, result.lengths[-1]
    rows: list[dict[str, Any]] = []
    done: list[dict[str, Any]] = []
    for pair in heads:
        head = result.head(*pair)
        used = head.note if head.length is None else f"{head.length:,.0f}"
        mark = " (extrapolated)" if head.extrapolated else ""
        name = f"head {pair[0]}.{pair[1]}: {used}{mark}"
        curve = {"head": name, "line": SUM}
        summed = any(finite(rest, log=True) for rest in head.rest)
        if summed:
            values: Sequence[Any] = head.rest
        else:  # the changes do not fall, and have no sum; they are known
            curve["line"], values = DOUBLING, head.change
        rows += [
            curve | {"context": at, "rest": finite(value, log=True)}
            for at, value in zip(result.lengths, values, strict=False)
        ]
        if head.length is not None:
            end = {"head": name, "context": head.length, "rest": tolerance}
            done.append(end)
            if head.length > longest and summed:
                start = {"head": name, "context": longest, "rest": finite(head.rest[-1], log=True)}
                rows += [one | {"line": EXTRAPOLATED} for one in (start, end)]
    names = list(dict.fromkeys(row["head"] for row in rows))
    kinds = [kind for kind in (SUM, EXTRAPOLATED, DOUBLING) if kind in {r["line"] for r in rows}]
    x = _along([*result.lengths, *(row["context"] for row in rows)])
    y = Axis(
        "rest", REST, log=True, limits=limits([tolerance, *(r["rest"] for r in rows)], log=True)
    )
    series = Series("head", names)
    drawn = panel(
        guides([_tolerance(result)], x, y, turned=True),
        lines(rows, x, y, series, dashes=Series("line", kinds)),
        points([row for row in rows if row["line"] != EXTRAPOLATED], x, y, series),
        ticks(done, x, y, series),
        height=150.0,
    )
    return figure([drawn], _title(result), note="upright strokes: tokens that the heads use")


def _nothing(result: Context) -> str | None:
    return None if result.heads else "no passage of the run is complete"


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


def _saturation(result: Context, height: float = HEIGHT) -> ChartType:
    """Share of heads whose length is at most L; the band from the ends of their intervals."""
    longest, last = result.lengths[-1], _last(result)
    lengths, early, late = (
        np.sort([math.inf if value is None else value for value in values])
        for values in (
            [head.length for head in result.heads],
            [head.interval[0] for head in result.heads],
            [head.interval[1] for head in result.heads],
        )
    )
    ends = np.concatenate([lengths, early, late, [result.lengths[0]]])
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
    if len(result.study.cells()) > 1:  # one passage has no intervals
        blocks.insert(0, bands(rows, x, y, step=True))
    endless = int(np.isinf(lengths).sum())
    if endless:
        name = f"{counted(endless, 'head')} still changing"
        blocks.append(guides([{"at": 1 - endless / len(lengths), "name": name}], x, y))
    return panel(
        *blocks,
        guides([{"at": longest, "name": "longest context"}], x, y, upright=True, turned=True),
        title=f"heads within {100 * result.study.tolerance:g}% of the end",
        height=height,
    )


def _lengths(result: Context, pick: alt.Parameter | None = None) -> ChartType:
    rows = records(result.table())
    return heatmap(
        rows,
        "length",
        "tokens of context used",
        log=True,
        crossed="extrapolated",
        cross=FARTHER,
        pick=pick,
    )


def _picked(result: Context, pick: alt.Parameter) -> ChartType:
    """Changes of the head that is picked, what is still to come, and where that is tolerable."""
    change, rest, used = CHANGES.names
    rows, done = [], []
    for head in result.heads:
        place = {"layer": head.layer, "head": head.head}
        for curve, values in ((change, head.change), (rest, head.rest)):
            rows += [
                place | {"curve": curve, "context": at, "change": finite(value, log=True)}
                for at, value in zip(result.lengths, values, strict=False)
            ]
        if head.length is not None:
            done.append(
                place
                | {
                    "curve": used,
                    "context": head.length,
                    "change": result.study.tolerance,
                    "low": head.interval[0],
                    "high": head.interval[1],
                }
            )
    x = _along([*result.lengths, _last(result)])
    known = [result.study.tolerance, *(row["change"] for row in rows)]
    y = Axis("change", "relative change", log=True, limits=limits(known, log=True))
    return panel(
        guides([_tolerance(result)], x, y, turned=True),
        lines(rows, x, y, CHANGES, pick=pick),
        points(rows, x, y, CHANGES, pick=pick),
        points(done, x, y, CHANGES, across=True, pick=pick),
        title=picked_title("changes"),
    )


def _along(values: Sequence[float | None]) -> Axis:
    return Axis("context", "tokens of context L", log=True, limits=limits(values, log=True))


def _tolerance(result: Context) -> dict[str, Any]:
    tolerance = result.study.tolerance
    return {"at": tolerance, "name": f"tolerance {100 * tolerance:g}%"}


def _last(result: Context) -> float:
    """The longest context that is drawn."""
    longest = result.lengths[-1]
    ends = [value for head in result.heads for value in (head.length, *head.interval)]
    known = [value for value in ends if value is not None]
    return float(np.clip(max(known, default=longest), 1.5 * longest, BEYOND * longest))


def _marks(result: Context) -> str:
    return f"×: still changing at {result.lengths[-1]:,}; {FARTHER}: extrapolated"


def _title(result: Context) -> str:
    study = result.study
    return (
        f"{study.model_record.name} on {study.text_record.source}: context used by its heads, "
        f"{counted(study.passages, 'passage')}, longest context {study.context:,}"
    )
