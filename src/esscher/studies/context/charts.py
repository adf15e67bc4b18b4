"""Charts of context lengths: every head with the curves of one, and the share that is done."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
from altair.typing import ChartType

from esscher.runs.result import Result
from esscher.show.cells import picked_title
from esscher.show.chart import Axis, Series, bands, figure, guides, lines, panel, points
from esscher.show.content import Drawing
from esscher.show.explorer import explorer, head_map
from esscher.show.frames import records
from esscher.show.theme import BLACK, BLUE, SHARES, VERMILION, limits
from esscher.studies.context.study import ContextData, ContextSettings
from esscher.studies.context.view import CURVES, LAST_CHANGE, TABLES

if TYPE_CHECKING:
    import altair as alt

Context = Result[ContextSettings]
#: Points that a panel must have to stand beside another.
WIDE = 170.0
#: Up to which length heads are counted: a decade beyond what was measured says enough.
FARTHEST = 10.0
MEASURED = Series("line", ("measured", "extrapolated"))
#: What is drawn of a head, in the order of the legend.
CURVE = (ContextData.change, ContextData.rest, ContextData.length)
CHANGES = Series(
    "curve",
    [variable.heading for variable in CURVE],
    colours=(BLUE, VERMILION, BLACK),
    shapes=("circle", "square", "diamond"),
)
MAPS = (
    head_map(ContextData.length, log=True),
    head_map(LAST_CHANGE, colours=SHARES),
    head_map(ContextData.exponent, colours=SHARES),
)


def heads(result: Context, heads: Sequence[tuple[int, int]] | None = None) -> ChartType:
    """Draw lengths and changes of every head, and the curves of the one that is picked."""
    settings = result.setup.settings
    tolerance, longest = settings.tolerance, settings.context
    frame, rows = CURVES.frame(result), []
    for variable in CURVE[:2]:
        # nothing, and what is not there, have no place on a logarithmic axis
        part = frame[frame[variable.name] > 0].assign(curve=variable.heading)
        rows += records(part.rename(columns={variable.name: "value"}))
    used = result.table().dropna(subset="length").assign(value=tolerance)
    used = used.rename(columns={"length": "context", "length_low": "low", "length_high": "high"})
    done = records(used.assign(curve=ContextData.length.heading))
    ends = [*result.data["context"].values.tolist(), _last(result)]
    x = Axis("context", "tokens of context L", log=True, limits=limits(ends, log=True))
    known = [tolerance, *(row["value"] for row in rows)]
    y = Axis("value", "relative change", log=True, limits=limits(known, log=True))

    def curves(pick: alt.Parameter) -> list[ChartType]:
        marks = (
            guides([{"at": tolerance, "name": f"tolerance {100 * tolerance:g}%"}], x, y),
            lines(rows, x, y, CHANGES, pick=pick),
            points(rows, x, y, CHANGES, pick=pick),
            points(done, x, y, CHANGES, across=True, pick=pick),
        )
        return [panel(*marks, title=picked_title("changes"))]

    note = f"×: still changing at {longest:,}; bar: 95% interval of the tokens used"
    return explorer(result, TABLES[0], MAPS, curves, heads=heads, note=note, least=WIDE)


def saturation(result: Context) -> ChartType:
    """Draw the share of heads whose length is at most L; the band by the ends of intervals."""
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
    y = Axis("share", "share of heads", limits=(0.0, 1.0))
    drawn = panel(
        *([bands(rows, x, y, step=True)] if settings.passages > 1 else []),
        lines(parts, x, y, dashes=MEASURED, step=True),
        guides([{"at": longest, "name": "longest context"}], x, y, upright=True),
        title=f"heads within {100 * settings.tolerance:g}% of the end",
    )
    note = "band: shares by the ends of the heads' 95% intervals"
    return figure([drawn], result.subject, note=note)


def _last(result: Context) -> float:
    """The longest context that is drawn."""
    longest = result.setup.settings.context
    end = float(ContextData(result.data).length.max().fillna(longest))
    return float(np.clip(end, 1.5 * longest, FARTHEST * longest))


DRAWINGS = (
    Drawing(
        "explorer",
        "lengths and changes of every head, and the curves of one of them (--head)",
        heads,
        heads=True,
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
        heading="How many heads are done",
        caption="Share of the heads that are within the tolerance of their final output, by "
        "context; extrapolated right of the dotted line.",
    ),
)
