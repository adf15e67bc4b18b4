"""Charts: axes and series, and the blocks that all charts are made of.

A block (points with intervals, lines, bands, bars, guides) takes tidy rows and returns an Altair
chart; ``panel`` lays blocks over each other, and ``figure`` puts panels side by side. No block
knows how wide the figure will be: ``theme.layout`` says so, for a file or for a page. Sizes are
points; colours and type are those of ``theme``.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, cast

import altair as alt
from altair.typing import ChartType

from esscher.core.variables import Variable
from esscher.show.frames import finite, rounded
from esscher.show.theme import (
    BLUE,
    DASHES,
    DOUBLE,
    GREY,
    GROUND,
    LINE,
    PALETTE,
    SHADES,
    SHAPES,
    TICK,
    columns,
    config,
    limits,
    log_ticks,
)

Row = Mapping[str, Any]
#: Points between the ends of the data and those of an axis without limits.
ROOM = 6.0
#: Size of a line in a legend: the square of its length.
LONG = 400.0
#: Points between the symbols and the names of a legend in which lines stand beside points.
BESIDE = 7.0
#: Share of a number below which its interval goes on beyond a logarithmic axis.
CUT = 0.05
#: Most growing numbers that a legend lists.
LISTED = 12


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

    @classmethod
    def of(
        cls,
        variable: Variable,
        rows: Iterable[Row] = (),
        also: Iterable[float] = (),
        *,
        log: bool = False,
    ) -> Axis:
        """Return the axis of a variable, named as it is; its ends are a little beyond the rows'.

        Those include the intervals (on a logarithmic axis as far as a twentieth of the number), and
        the numbers that are given besides.
        """
        known: list[Any] = list(also)
        for row in rows:
            value, low = row[variable.name], row.get("low")
            cut = max(low, CUT * value) if log and None not in (low, value) else low
            known += [value, cut, row.get("high")]
        ends = limits(known, log=log) if known else None
        return cls(variable.name, variable.heading, log=log, limits=ends)

    def options(self) -> dict[str, Any]:
        """Return what an encoding along this axis has."""
        if self.names is not None:
            return {
                "type": "ordinal",
                "sort": list(self.names),
                "title": self.title or None,
                "scale": alt.Scale(domain=list(self.names)),
            }
        axis: dict[str, Any] = {"labelExpr": TICK}
        if self.whole:
            axis["labelExpr"] = f"datum.value % 1 ? '' : ({TICK})"
        scale: dict[str, Any] = {"nice": False} if self.log else {"nice": False, "zero": False}
        if self.limits is None:
            scale["padding"] = ROOM
        else:
            scale["domain"] = list(self.limits)
        if self.log:
            assert self.limits is not None, "a logarithmic axis needs limits"
            scale["type"] = "log"
            axis["values"] = log_ticks(*self.limits)
        else:
            axis |= {"tickCount": 5, "tickMinStep": 1 if self.whole else alt.Undefined}
        return {
            "type": "quantitative",
            "title": self.title or None,
            "axis": alt.Axis(**axis),
            "scale": alt.Scale(**scale),
        }


@dataclass(frozen=True)
class Series:
    """A field that tells curves apart: by colour and shape, or by the dashes of lines.

    Attributes
    ----------
    field, names
        Name of the field in the rows, and its values in order.
    title
        Of the legend.
    colours, shapes
        One per name; None: the palette, and another shape for each. The shape of a name that has
        a line and no points is ``theme.LINE``.
    dashes
        One per name, for lines of the same colour; None: all lines are whole.
    ordered
        Whether the names are growing numbers; then colours go from dark to light, and a legend
        lists some of many.
    """

    field: str
    names: Sequence[str]
    title: str = ""
    colours: Sequence[str] | None = None
    shapes: Sequence[str] | None = None
    dashes: Sequence[tuple[int, ...]] | None = None
    ordered: bool = False

    def colour(self) -> dict[str, Any]:
        """Return the encoding by colour."""
        count = len(self.names)
        last = (len(SHADES) - 1) / max(count - 1, 1)
        colours = [
            SHADES[round(i * last)] if self.ordered else PALETTE[i % len(PALETTE)]
            for i in range(count)
        ]
        return self._options(list(self.colours or colours))

    def shape(self) -> dict[str, Any]:
        """Return the encoding by shape."""
        # beyond the palette, a colour comes again with another shape
        count = range(len(self.names))
        shapes = [SHAPES[(i + i // len(PALETTE)) % len(SHAPES)] for i in count]
        return self._options(list(self.shapes or shapes))

    def dash(self) -> dict[str, Any]:
        """Return the encoding by dashes."""
        dashes = self.dashes or [DASHES[i % len(DASHES)] for i in range(len(self.names))]
        return self._options([list(dash) for dash in dashes], symbolSize=LONG)

    def _options(self, values: list[Any], **legend: Any) -> dict[str, Any]:
        shapes = set(self.shapes or ())
        if shapes == {LINE}:
            legend["symbolSize"] = LONG
        elif LINE in shapes:
            legend["labelOffset"] = BESIDE
        if self.ordered and len(self.names) > LISTED:
            step = (len(self.names) - 1) / (LISTED - 1)
            legend["values"] = [self.names[round(i * step)] for i in range(LISTED)]
        return {
            "field": self.field,
            "type": "nominal",
            "scale": alt.Scale(domain=list(self.names), range=values),
            "legend": alt.Legend(
                title=self.title or None, orient="bottom", direction="horizontal", **legend
            ),
        }


# Blocks: each takes tidy rows and returns an Altair chart.

#: Size of a panel until it is laid out, and the width that it needs to stand beside another.
WIDTH, HEIGHT, NARROW = 124.0, 118.0, 120.0
#: Points from a line of text to the next.
LINE_HEIGHT = 8.5
#: Channels that tell series apart, and what puts them beside each other.
LOOKS = ("fill", "stroke", "shape", "strokeDash", "xOffset", "yOffset")
#: Name of views in which a cell is picked by a click; Altair numbers them.
CLICKED = "cells"
#: Numbers when one points at a mark.
NUMBER = ".4~g"


def points(
    rows: Iterable[Row],
    x: Axis,
    y: Axis,
    series: Series | None = None,
    *,
    across: bool = False,
    beside: bool = False,
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
    beside
        Whether points of different series at the same name stand beside each other.
    pick
        Selection of a cell of a heatmap (``cells.picking``), whose rows alone are drawn.
    """
    along = x if across else y
    data = list(rows)
    marks: list[Any] = []
    tips = _tips(data, x, y, series)
    aside: list[Any] = []
    if beside:
        assert series is not None
        order: dict[str, Any] = {
            "field": series.field,
            "type": "nominal",
            "sort": list(series.names),
        }
        aside = [alt.YOffset(**order) if across else alt.XOffset(**order)]
    if any(row.get("low") is not None for row in data):
        # one set of rows for points and intervals, so that it stands in a page once
        data = [_cut(row, along) for row in data]
        low = replace(along, field="low")
        ends = (
            [_x(low), alt.X2(field="high"), _y(y)]
            if across
            else [_x(x), _y(low), alt.Y2(field="high")]
        )
        stroke = {} if series is None else {"stroke": alt.Stroke(**series.colour())}
        rule = canvas(data, pick).mark_rule(style="interval", clip=True)
        marks.append(rule.encode(*ends, *aside, tooltip=tips, **stroke))
    look: dict[str, Any] = {"fill": _hollow(alt.value(BLUE)), "stroke": alt.value(BLUE)}
    if series is not None:
        look = {
            "fill": _hollow(alt.Fill(**series.colour())),
            "stroke": alt.Stroke(**series.colour()),
            "shape": alt.Shape(**series.shape()),
        }
    marks.append(
        canvas(data, pick)
        .mark_point(style="point", clip=True)
        .encode(_x(x), _y(y), *aside, tooltip=tips, **look)
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
    elif series is not None and series.dashes is not None:  # in the legend of the colours
        legend = {"legend": series.colour()["legend"]}
        look["strokeDash"] = alt.StrokeDash(**series.dash() | legend)
    line = canvas(rows, pick).mark_line(
        style="curve", clip=True, interpolate="step-after" if step else "linear"
    )
    return _layered([line.encode(_x(x), _y(y), **look)])


def bands(
    rows: Iterable[Row],
    x: Axis,
    y: Axis,
    series: Series | None = None,
    *,
    colour: str | None = None,
    step: bool = False,
    pick: alt.Parameter | None = None,
) -> ChartType:
    """Fill what lies between ``low`` and ``high`` of the rows; ``step`` is that of lines."""
    look: dict[str, Any] = {} if colour is None else {"fill": alt.value(colour)}
    if series is not None:
        look = {"fill": alt.Fill(**series.colour())}
    area = canvas([_cut(row, y) for row in rows], pick).mark_area(
        style="band", clip=True, interpolate="step-after" if step else "linear"
    )
    ends = _y(replace(y, field="low")), alt.Y2(field="high")
    return _layered([area.encode(_x(x), *ends, **look)])


def bars(
    rows: Iterable[Row],
    x: Axis,
    y: Axis,
    series: Series | None = None,
    *,
    across: bool = False,
) -> ChartType:
    """Draw bars with intervals: from 0, one per name of x (of y, if ``across``)."""
    data = list(rows)
    length, names = (x, y) if across else (y, x)
    look: dict[str, Any] = {}
    if series is not None:
        look["fill"] = alt.Fill(**series.colour())
    options = length.options()
    if length.limits is None:
        options["scale"] = alt.Scale(zero=True, nice=True)
    options["stack"] = None
    tips = _tips(data, x, y, series)
    channel, second = (alt.X, alt.X2) if across else (alt.Y, alt.Y2)
    name = _y(names) if across else _x(names)
    marks = [
        canvas(data)
        .mark_bar(style="bar")
        .encode(channel(field=length.field, **options), name, tooltip=tips, **look)
    ]
    if any(row.get("low") is not None for row in data):
        edge = canvas(_cut(row, length) for row in data).mark_rule(style="edge")
        ends = channel(field="low", **options), second(field="high")
        marks.append(edge.encode(*ends, name, tooltip=tips))
    return _layered(marks)


def guides(
    rows: Iterable[Row],
    x: Axis,
    y: Axis,
    series: Series | None = None,
    *,
    upright: bool = False,
    left: bool = False,
) -> ChartType:
    """Draw dotted lines to compare with across the panel: ``at`` a value, with its ``name``.

    Those that belong to a series have its colour. Names stand above lines, at their right end or
    at the ``left`` one, and right of ``upright`` lines.
    """
    data = list(rows)
    at = _x(replace(x, field="at")) if upright else _y(replace(y, field="at"))
    look = {} if series is None else {"stroke": alt.Stroke(**series.colour())}
    marks = [canvas(data).mark_rule(style="guide", clip=True).encode(at, **look)]
    named = [row for row in data if row.get("name")]
    if named:
        end = {"y": alt.value(0)} if upright else {"x": alt.value(0 if left else "width")}
        side: dict[str, Any] = (
            {"align": "left", "baseline": "top", "dx": 3}
            if upright
            else {
                "align": "left" if left else "right",
                "baseline": "bottom",
                "dx": 3 if left else -2,
                "dy": -2,
            }
        )
        note = canvas(named).mark_text(style="note", **side)
        marks.append(note.encode(at, text=alt.Text(field="name", type="nominal"), **end))
    return _layered(marks)


def words(
    rows: Iterable[Row], *, right: bool = False, pick: alt.Parameter | None = None
) -> ChartType:
    """Write the ``text`` of the rows, in one or several lines, into a lower corner."""
    split = [(row, row["text"].split("\n")[::-1]) for row in rows]
    corner = {"x": alt.value("width" if right else 0), "y": alt.value("height")}
    marks = []
    for i in range(max(len(text) for _, text in split)):
        rows_here = [{**row, "text": text[i]} for row, text in split if len(text) > i]
        note = canvas(rows_here, pick).mark_text(
            style="note",
            align="right" if right else "left",
            baseline="bottom",
            dx=-3 if right else 3,
            dy=-2 - i * LINE_HEIGHT,
        )
        marks.append(note.encode(text=alt.Text(field="text", type="nominal"), **corner))
    return _layered(marks)


def diagonal(x: Axis, y: Axis, factor: float | None = None) -> ChartType:
    """Draw y = x, and grey what lies within a factor of it; both axes need limits."""
    assert x.limits is not None
    assert y.limits is not None
    low, high = min(x.limits[0], y.limits[0]), max(x.limits[1], y.limits[1])
    ends = [{x.field: at, y.field: at} for at in (low, high)]
    marks: list[Any] = [canvas(ends).mark_line(style="guide", clip=True).encode(_x(x), _y(y))]
    if factor is not None:
        wide = [row | {"low": row[x.field] / factor, "high": row[x.field] * factor} for row in ends]
        marks = [bands(wide, x, y, colour=GREY), *marks]
    return _layered(marks)


def panel(
    *blocks: ChartType, title: str | alt.TitleParams = "", height: float = HEIGHT
) -> ChartType:
    """Lay blocks over each other, the first one lowest, under a title."""
    chart: Any = _layered(list(blocks))
    if title:
        chart = chart.properties(title=title)
    return cast(ChartType, chart.properties(width=WIDTH, height=height))


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
    heading = alt.TitleParams(text=title, subtitle=note or alt.Undefined, style="figure")
    chart = chart.properties(title=heading)
    if pick is not None:
        clicked = [
            part["name"]
            for one in chart.concat
            for part in getattr(one, "layer", ())
            if str(part["name"]).startswith(CLICKED)
        ]
        param = cast(Any, pick.param).to_dict() | {"views": clicked}
        chart = chart.properties(params=[alt.TopLevelSelectionParameter(**param)])
    return cast(ChartType, chart.properties(usermeta={"least": least}, config=config()))


def sheet(figures: Sequence[ChartType], title: str = "", *, note: str = "") -> ChartType:
    """Put figures below each other, without their titles; each keeps its colours and legends."""
    parts: list[Any] = [one.copy() for one in figures]
    least = parts[0].usermeta["least"]
    for part in parts:
        part.title = part.usermeta = part.config = alt.Undefined
    chart: Any = alt.vconcat(*parts)
    chart = chart.resolve_scale(**dict.fromkeys(LOOKS, "independent"))
    heading = alt.TitleParams(text=title, subtitle=note or alt.Undefined, style="figure")
    made = chart.properties(title=heading, usermeta={"least": least}, config=config())
    return cast(ChartType, made)


def canvas(rows: Iterable[Row], pick: alt.Parameter | None = None) -> alt.Chart:
    """Return a chart of rows (of those that are picked alone) with nothing drawn in it yet."""
    # Altair checks InlineData row by row, and copies lists at every step: thousands of rows would
    # take a minute. It leaves a tuple in a dictionary alone.
    plain = tuple({str(k): rounded(v) for k, v in row.items()} for row in rows)
    if pick is None:
        return alt.Chart(cast(Any, {"values": plain}))
    packed, lists = _packed(plain, cast(Any, pick.param).select.fields)
    chart = alt.Chart(cast(Any, {"values": packed})).transform_filter(pick)
    return chart.transform_flatten(cast(Any, lists)) if lists else chart


def _packed(
    rows: Sequence[dict[str, Any]], cell: Sequence[str]
) -> tuple[tuple[dict[str, Any], ...], list[str]]:
    """Put rows of one cell, and of the same words, into one; also return which fields are lists.

    A page then is smaller, and a click looks at cells instead of at all their rows.
    """
    fields = list(dict.fromkeys(field for row in rows for field in row))
    lists = [
        field
        for field in fields
        if field not in cell and any(type(row.get(field)) in (int, float) for row in rows)
    ]
    groups: dict[tuple[Any, ...], dict[str, Any]] = {}
    for row in rows:
        same = {field: row.get(field) for field in fields if field not in lists}
        group = groups.setdefault(tuple(same.values()), same | {field: [] for field in lists})
        for field in lists:
            group[field].append(row.get(field))
    return tuple(groups.values()), lists


def _cut(row: Row, along: Axis) -> dict[str, Any]:
    """Return a row with the ends of its interval as they can be drawn; None if there is none."""
    low, high = finite(row.get("low")), finite(row.get("high"))
    if low is None or high is None:
        return {**row, "low": None, "high": None}
    if along.log and along.limits is not None:  # one that reaches 0 is cut
        low = max(low, 0.5 * along.limits[0])
        high = max(low, high)
    return {**row, "low": low, "high": high}


def _x(axis: Axis) -> alt.X:
    return alt.X(field=axis.field, **axis.options())


def _y(axis: Axis) -> alt.Y:
    return alt.Y(field=axis.field, **axis.options())


def _hollow(filled: Any) -> Any:
    return alt.condition("datum.hollow === true", alt.value(GROUND), filled)


def _layered(blocks: list[Any]) -> ChartType:
    """Lay marks over each other in one layer: Altair copies everything below a layer many times."""
    marks = []
    for block in blocks:
        for mark in getattr(block, "layer", [block]):
            part = mark.copy(deep=False)
            part.data = block.data if part.data is alt.Undefined else part.data
            marks.append(part)
    return cast(ChartType, marks[0] if len(marks) == 1 else alt.layer(*marks))


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
