"""Blocks that all charts are made of: points with intervals, lines, bands, bars, guides, heatmaps.

A block takes tidy rows and returns an Altair chart; ``panel`` lays blocks over each other, and
``figure`` puts panels side by side. No block knows how wide the figure will be: ``layout`` says so,
for a file or for a page. Sizes are points; colours and type are those of ``theme``.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, cast

import altair as alt
import numpy as np
from altair.typing import ChartType

from esscher.show.layout import columns
from esscher.show.theme import (
    BLUE,
    DASHES,
    DOUBLE,
    GROUND,
    PALETTE,
    SHADES,
    SHAPES,
    TICK,
    config,
    log_ticks,
)

Row = Mapping[str, Any]
#: Size of a panel until it is laid out, and the width that it needs to stand beside another.
WIDTH, HEIGHT, NARROW = 124.0, 118.0, 120.0
#: Channels that tell series apart.
LOOKS = ("fill", "stroke", "shape", "strokeDash")
#: Size of a line in a legend: the square of its length.
LONG = 400.0
#: Name of the selection of a cell, and of views in which it is clicked; Altair numbers the latter.
PICK, CLICKED = "pick", "cells"
#: Numbers when one points at a mark.
NUMBER = ".4~g"


@dataclass(frozen=True)
class Axis:
    """An axis, and the field that is drawn along it.

    Attributes
    ----------
    field, title
        Name of the field in the rows, and of the quantity (with its unit) beside the axis.
    log
        Whether it is logarithmic; then it needs limits.
    limits
        Its ends; None: those of the data.
    names
        For a field of words: the words in order.
    whole
        Whether ticks stand at whole numbers only.
    """

    field: str
    title: str = ""
    log: bool = False
    limits: tuple[float, float] | None = None
    names: Sequence[str] | None = None
    whole: bool = False

    def options(self) -> dict[str, Any]:
        """Return what an encoding along this axis has."""
        if self.names is not None:
            return {"type": "ordinal", "sort": list(self.names), "title": self.title or None,
                    "scale": alt.Scale(domain=list(self.names))}  # fmt: skip
        about: dict[str, Any] = {"labelExpr": TICK}
        scale: dict[str, Any] = {"nice": False} if self.log else {"nice": False, "zero": False}
        if self.limits is not None:
            scale["domain"] = list(self.limits)
        if self.log:
            assert self.limits is not None, "a logarithmic axis needs limits"
            scale["type"] = "log"
            about["values"] = log_ticks(*self.limits)
        else:
            about |= {"tickCount": 5, "tickMinStep": 1 if self.whole else alt.Undefined}
        return {"type": "quantitative", "title": self.title or None, "axis": alt.Axis(**about),
                "scale": alt.Scale(**scale)}  # fmt: skip


@dataclass(frozen=True)
class Series:
    """A field that tells curves apart: by colour and shape, or by the dashes of lines.

    Attributes
    ----------
    field, names
        Name of the field in the rows, and its values in order.
    title
        Of the legend.
    colours
        One per name; None: the palette.
    ordered
        Whether the names are growing numbers; then colours go from dark to light.
    """

    field: str
    names: Sequence[str]
    title: str = ""
    colours: Sequence[str] | None = None
    ordered: bool = False

    def colour(self) -> dict[str, Any]:
        """Return the encoding by colour."""
        count = len(self.names)
        some = SHADES if self.ordered else PALETTE
        if self.ordered:
            some = [SHADES[round(i * (len(SHADES) - 1) / max(count - 1, 1))] for i in range(count)]
        colours = [some[i % len(some)] for i in range(count)]
        return self._options(list(self.colours or colours))

    def shape(self) -> dict[str, Any]:
        """Return the encoding by shape."""
        return self._options([SHAPES[i % len(SHAPES)] for i in range(len(self.names))])

    def dash(self) -> dict[str, Any]:
        """Return the encoding by dashes."""
        dashes = [list(DASHES[i % len(DASHES)]) for i in range(len(self.names))]
        return self._options(dashes, symbolSize=LONG)

    def _options(self, values: list[Any], **legend: Any) -> dict[str, Any]:
        return {
            "field": self.field,
            "type": "nominal",
            "scale": alt.Scale(domain=list(self.names), range=values),
            "legend": alt.Legend(
                title=self.title or None, orient="bottom", direction="horizontal", **legend
            ),
        }


def points(
    rows: Iterable[Row],
    x: Axis,
    y: Axis,
    series: Series | None = None,
    *,
    across: bool = False,
    pick: alt.Parameter | None = None,
) -> ChartType:
    """Draw points with intervals; those that are not to be trusted are hollow.

    Parameters
    ----------
    rows
        With ``low`` and ``high`` where there is an interval, and ``hollow`` where a point is not to
        be trusted.
    x, y
        Axes.
    series
        What tells points apart.
    across
        Whether intervals are along x.
    pick
        Selection of a cell of a heatmap (``cells.picking``), whose rows alone are drawn.
    """
    data = list(rows)
    along = x if across else y
    ends = [_interval(row, along) for row in data]
    marks: list[Any] = []
    if any(end is not None for end in ends):
        bars = [{**row, "low": e[0], "high": e[1]} for row, e in zip(data, ends, strict=True) if e]
        low = Axis("low", along.title, along.log, along.limits, along.names, along.whole)
        place = {"x": _x(low), "x2": alt.X2(field="high")} if across else {"y": _y(low), "y2": alt.Y2(field="high")}
        rest = {"y": _y(y)} if across else {"x": _x(x)}
        stroke = {} if series is None else {"stroke": alt.Stroke(**series.colour())}
        marks.append(
            drawing(bars, pick).mark_rule(style="interval", clip=True).encode(**place, **rest, **stroke)
        )
    look: dict[str, Any] = {"fill": _hollow(alt.value(BLUE)), "stroke": alt.value(BLUE)}
    if series is not None:
        look = {
            "fill": _hollow(alt.Fill(**series.colour())),
            "stroke": alt.Stroke(**series.colour()),
            "shape": alt.Shape(**series.shape()),
        }
    tips = _tips(data, x, y, series)
    marks.append(
        drawing(data, pick)
        .mark_point(style="point", clip=True)
        .encode(_x(x), _y(y), tooltip=tips, **look)
    )
    return _layered(marks)


def lines(
    rows: Iterable[Row],
    x: Axis,
    y: Axis,
    series: Series | None = None,
    *,
    dashes: Series | None = None,
    step: bool = False,
    pick: alt.Parameter | None = None,
) -> ChartType:
    """Draw lines, one per series and kind of dashes; with ``step``, constant up to the next x."""
    look: dict[str, Any] = {}
    if series is not None:
        look["stroke"] = alt.Stroke(**series.colour())
    if dashes is not None:
        look["strokeDash"] = alt.StrokeDash(**dashes.dash())
    return (
        drawing(rows, pick)
        .mark_line(style="curve", clip=True, interpolate="step-after" if step else "linear")
        .encode(_x(x), _y(y), **look)
    )


def bands(rows: Iterable[Row], x: Axis, y: Axis, series: Series | None = None) -> ChartType:
    """Fill what lies between ``low`` and ``high`` of the rows."""
    known = [{**row, "low": e[0], "high": e[1]} for row in rows if (e := _interval(row, y))]
    low = Axis("low", y.title, y.log, y.limits)
    look = {} if series is None else {"fill": alt.Fill(**series.colour())}
    return drawing(known).mark_area(style="band", clip=True).encode(
        _x(x), _y(low), alt.Y2(field="high"), **look
    )  # fmt: skip


def bars(
    rows: Iterable[Row],
    x: Axis,
    y: Axis,
    series: Series | None = None,
    *,
    stacked: bool = False,
    across: bool = False,
) -> ChartType:
    """Draw bars with intervals: from 0, one per name of x (of y, if ``across``)."""
    data = list(rows)
    length, names = (x, y) if across else (y, x)
    look: dict[str, Any] = {}
    if series is not None:
        look["fill"] = alt.Fill(**series.colour())
        look["order"] = alt.Order(field="order", type="quantitative")
        order = {name: i for i, name in enumerate(series.names)}
        data = [{**row, "order": order[row[series.field]]} for row in data]
    options = length.options() | {"stack": "zero" if stacked else None}
    options["scale"] = alt.Scale(zero=True, nice=True)
    value = alt.X(field=length.field, **options) if across else alt.Y(field=length.field, **options)
    name = _y(names) if across else _x(names)
    drawn = drawing(data).mark_bar(style="bar").encode(
        value, name, tooltip=_tips(data, x, y, series), **look
    )  # fmt: skip
    ends = [(row, e) for row in data if (e := _interval(row, length)) and not stacked]
    if not ends:
        return drawn
    edges = [{**row, "low": e[0], "high": e[1]} for row, e in ends]
    options = options | {"stack": None}
    place = (
        {"x": alt.X(field="low", **options), "x2": alt.X2(field="high")}
        if across
        else {"y": alt.Y(field="low", **options), "y2": alt.Y2(field="high")}
    )
    return _layered([drawn, drawing(edges).mark_rule(style="edge").encode(name, **place)])


def guides(
    rows: Iterable[Row], x: Axis, y: Axis, *, upright: bool = False
) -> ChartType:
    """Draw dotted lines to compare with across the panel: ``at`` a value, with its ``name``."""
    data = list(rows)
    place = Axis("at", (x if upright else y).title, *_same(x if upright else y))
    at = _x(place) if upright else _y(place)
    rule = drawing(data).mark_rule(style="guide", clip=True).encode(at)
    if not any(row.get("name") for row in data):
        return rule
    text = {"align": "left", "x": 3, "dy": -3, "baseline": "bottom"}
    if upright:
        text = {"align": "left", "y": 3, "dx": 3, "baseline": "top"}
    note = drawing(data).mark_text(style="note", **text).encode(at, text=alt.Text(field="name", type="nominal"))
    return _layered([rule, note])


def diagonal(x: Axis, y: Axis, factor: float | None = None) -> ChartType:
    """Draw y = x, and grey what lies within a factor of it; both axes need limits."""
    assert x.limits is not None
    assert y.limits is not None
    low, high = min(x.limits[0], y.limits[0]), max(x.limits[1], y.limits[1])
    ends = [{x.field: at, y.field: at} for at in (low, high)]
    rule = drawing(ends).mark_line(style="guide", clip=True).encode(_x(x), _y(y))
    if factor is None:
        return rule
    wide = [row | {"low": row[x.field] / factor, "high": row[x.field] * factor} for row in ends]
    return _layered([bands(wide, x, y), rule])


def panel(*blocks: ChartType, title: str = "", height: float = HEIGHT) -> ChartType:
    """Lay blocks over each other, the first one lowest, under a title."""
    chart = _layered(list(blocks)).properties(width=WIDTH, height=height)
    return chart.properties(title=title) if title else chart


def figure(
    panels: Sequence[ChartType],
    title: str = "",
    *,
    note: str = "",
    least: float = NARROW,
    apart: bool = False,
    pick: alt.Parameter | None = None,
) -> ChartType:
    """Put panels side by side, in as many columns as fit, in the style of ``theme``.

    Parameters
    ----------
    panels
        Charts of one panel each.
    title, note
        Above everything, the note in smaller type.
    least
        Points that a panel must have to stand beside another.
    apart
        Whether each panel has colours and a legend of its own.
    pick
        Selection of a cell, if panels were made with one.
    """
    chart: Any = alt.concat(*panels, columns=columns(len(panels), DOUBLE, least))
    if apart:
        chart = chart.resolve_scale(**dict.fromkeys(LOOKS, "independent"))
    if title or note:
        about = alt.TitleParams(text=title, subtitle=note or alt.Undefined, style="figure")
        chart = chart.properties(title=about)
    if pick is not None:
        clicked = [
            part["name"]
            for one in chart.concat
            for part in getattr(one, "layer", ())
            if str(part["name"]).startswith(CLICKED)
        ]
        known = pick.param.to_dict() | {"views": clicked}
        chart = chart.properties(params=[alt.TopLevelSelectionParameter(**known)])
    return cast(ChartType, chart.properties(usermeta={"least": least}, config=config()))


def drawing(rows: Iterable[Row], pick: alt.Parameter | None = None) -> alt.Chart:
    """Return a chart of rows (of those that are picked alone) with nothing drawn in it yet."""
    # Altair checks InlineData row by row, and copies lists at every step: thousands of rows would
    # take a minute. It leaves a tuple in a dictionary alone.
    plain = tuple({str(k): _plain(v) for k, v in row.items()} for row in rows)
    chart = alt.Chart(cast(Any, {"values": plain}))
    return chart if pick is None else chart.transform_filter(pick)


def _plain(value: Any) -> Any:
    """Return a value as JSON has it; None for a number that is not finite."""
    if isinstance(value, np.generic):
        value = value.item()
    if isinstance(value, float):
        return float(f"{value:.7g}") if math.isfinite(value) else None
    return value


def finite(value: Any, log: bool = False) -> float | None:
    """Return a number that can be drawn, on a logarithmic axis if need be; None if it cannot."""
    if value is None or not math.isfinite(value) or (log and value <= 0):
        return None
    return float(value)


def _interval(row: Row, along: Axis) -> tuple[float, float] | None:
    """Return the ends of a row's interval; on a logarithmic axis one that reaches 0 is cut."""
    low, high = finite(row.get("low")), finite(row.get("high"))
    if low is None or high is None:
        return None
    if along.log and along.limits is not None:
        low = max(low, 0.5 * along.limits[0])
        return (low, high) if high > low else None
    return low, high


def _x(axis: Axis) -> alt.X:
    return alt.X(field=axis.field, **axis.options())


def _y(axis: Axis) -> alt.Y:
    return alt.Y(field=axis.field, **axis.options())


def _same(axis: Axis) -> tuple[Any, ...]:
    return axis.log, axis.limits, axis.names, axis.whole


def _hollow(filled: Any) -> Any:
    return alt.condition("datum.hollow === true", alt.value(GROUND), filled)


def _layered(marks: list[Any]) -> Any:
    return marks[0] if len(marks) == 1 else alt.layer(*marks)


def _tips(data: list[Any], x: Axis, y: Axis, series: Series | None) -> list[alt.Tooltip]:
    tips = [] if series is None else [tip(series.field, series.title or " ")]
    tips = [tip("name", " "), *tips] if any("name" in row for row in data) else tips
    tips += [tip(axis.field, axis.title, axis.names is None) for axis in (x, y)]
    if any(row.get("low") is not None for row in data):
        tips += [tip("low", "from", True), tip("high", "to", True)]
    return tips


def tip(field: str, title: str, number: bool = False) -> alt.Tooltip:
    """Return what a mark says about a field when one points at it."""
    if number:
        return alt.Tooltip(field=field, type="quantitative", title=title, format=NUMBER)
    return alt.Tooltip(field=field, type="nominal", title=title)


