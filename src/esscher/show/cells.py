"""Heatmaps: a number or a word per layer and head, and the choice of one of them."""

from __future__ import annotations

import json
import math
from collections.abc import Iterable, Mapping
from typing import Any, cast

import altair as alt
from altair.typing import ChartType

from esscher.show.chart import CLICKED, Row, Series, canvas, tip
from esscher.show.frames import finite
from esscher.show.theme import (
    LETTER,
    LIGHT_LETTER,
    PICK,
    SIZES,
    SMALL,
    TICK,
    even_ticks,
    log_ticks,
)

#: Height of a layer; of a heatmap at least and at most. In points.
LAYER, SHORT, TALL = 7.2, 97.0, 245.0
#: Width of a heatmap until it is laid out.
WIDTH = 96.0
#: Most ticks along layers and heads.
UP, ACROSS = 10, 7
#: Height of a row of names.
ROW = 13.0
#: Written into the cells of numbers beyond what was measured.
BEYOND = "→"
#: Share of the way from dark to light colours from which letters are dark.
LIGHT = 0.6


def heatmap(
    rows: Iterable[Row],
    field: str,
    title: str,
    *,
    log: bool = False,
    ends: tuple[float, float] | None = None,
    colours: str = SIZES,
    columns: str = "head",
    beyond: str | None = None,
    pick: alt.Parameter | None = None,
) -> ChartType:
    """Draw a number per layer and head as colour; a cross marks a cell without one.

    Parameters
    ----------
    rows
        With ``layer``, the field of the columns, and the number.
    field, title
        Name of the number in the rows, and above the panel.
    log
        Whether colours are logarithmic.
    ends
        Numbers at the ends of the colours; None: those of the data. Where numbers lie beyond, the
        bar of colours says so with ``≤`` and ``≥``.
    colours
        Name of the map from numbers to colours.
    columns
        Field along x.
    beyond
        Field that is true where a number lies beyond what was measured: an arrow says so.
    pick
        Selection of a cell: see :func:`picking`.
    """
    data = [
        {"layer": row["layer"], columns: row[columns], field: finite(row[field], log)}
        | ({} if beyond is None else {beyond: row[beyond]})
        for row in rows
    ]
    known = [row[field] for row in data if row[field] is not None]
    low, high = ends or ((min(known), max(known)) if known else (1.0, 10.0))
    if not high > low:  # one number only
        low, high = (low / 1.5, low * 1.5) if log else (low - 0.5, low + 0.5)
    label = TICK
    if known and max(known) > high:
        label = f"(datum.value >= {high} ? '≥ ' : '') + ({label})"
    if known and min(known) < low:
        label = f"(datum.value <= {low} ? '≤ ' : '') + ({label})"
    place, height, letter, tips = _grid(data, columns)
    scale: dict[str, Any] = {
        "type": "log" if log else "linear",
        "domain": [low, high],
        "clamp": True,
        "scheme": colours,
        "nice": False,
    }
    ticks = log_ticks(low, high) if log else even_ticks(low, high)
    fill = _fill(field, scale, height, ticks, label)
    # below marks that hear clicks, which say it, cells say nothing themselves
    empty = {"tooltip": tips} if pick is None else {}
    tips = [*tips, tip(field, title, True)]
    tooltips = {"tooltip": tips} if pick is None else {}
    marks = [
        canvas(row for row in data if row[field] is not None)
        .mark_rect(style="cell")
        .encode(*place, fill=fill, **tooltips)
    ]
    if len(known) < len(data):
        marks.append(
            canvas(row for row in data if row[field] is None)
            .mark_text(style="note", text="×", fontSize=letter)
            .encode(*place, **empty)
        )
    if beyond is not None:
        # dark letters in light cells, light ones in dark cells
        light = low ** (1 - LIGHT) * high**LIGHT if log else (1 - LIGHT) * low + LIGHT * high
        dark = f"datum[{json.dumps(field)}] > {light}"
        colour: Any = alt.condition(dark, alt.value(LETTER), alt.value(LIGHT_LETTER))
        marks.append(
            canvas(row for row in data if row[field] is not None and row[beyond])
            .mark_text(text=BEYOND, fontSize=letter)
            .encode(*place, color=colour, **tooltips)
        )
    return _panel(place, height, data, columns, marks, title, tips, pick)


def category_map(
    rows: Iterable[Row],
    field: str,
    title: str,
    series: Series,
    letters: Mapping[str, str],
    *,
    columns: str = "head",
    pick: alt.Parameter | None = None,
) -> ChartType:
    """Draw a word per layer and head as colour, with a letter to tell words apart in grey.

    Parameters
    ----------
    rows, title, columns, pick
        As for :func:`heatmap`; a word that is missing leaves its cell empty.
    field
        Name of the word in the rows.
    series
        The words in order, and their colours.
    letters
        A letter for each word.
    """
    data = [
        {
            "layer": row["layer"],
            columns: row[columns],
            "word": row[field],
            "letter": letters.get(row[field]),
        }
        for row in rows
    ]
    known = [row for row in data if row["word"] is not None]
    colour = series.colour()  # not ``fill``, so that maps of numbers have theirs beside it
    colour["field"] = "word"
    names = {name: f"{letters[name]}: {name}" for name in series.names}
    colour["legend"] = alt.Legend(
        title=None,
        orient="bottom",
        direction="horizontal",
        symbolType="square",
        labelExpr=f"{json.dumps(names)}[datum.value]",
    )
    place, height, letter, tips = _grid(data, columns)
    tips = [*tips, tip("word", title)]
    tooltips = {"tooltip": tips} if pick is None else {}
    cells = canvas(known)
    marks = [
        cells.mark_rect(style="cell").encode(*place, color=alt.Color(**colour), **tooltips),
        cells.mark_text(style="letter", fontSize=letter).encode(
            *place, text=alt.Text(field="letter", type="nominal"), **tooltips
        ),
    ]
    name = title if known else f"{title}: none"
    return _panel(place, height, data, columns, marks, name, tips, pick)


def _words(columns: str) -> str:
    """What a column is called: ``key head`` for ``key_head``."""
    return columns.replace("_", " ")


def picking(layer: int, head: int, columns: str = "head") -> alt.Parameter:
    """Return the selection of one cell of heatmaps by a click, which starts at a given one."""
    return alt.selection_point(
        name=PICK,
        fields=["layer", columns],
        on="click",
        clear=False,
        toggle=False,
        value=[{"layer": layer, columns: head}],
    )


def picked_title(title: str, columns: str = "head") -> alt.TitleParams:
    """Return a title that names the cell that is picked."""
    place = f"', layer ' + {PICK}.layer + ', {_words(columns)} ' + {PICK}['{columns}']"
    return alt.TitleParams(text=alt.ExprRef(f"{json.dumps(title)} + ({PICK}.layer ? {place} : '')"))


def map_height(layers: int) -> float:
    """Return the height of a heatmap of so many layers."""
    return min(max(LAYER * layers, SHORT), TALL)


def _grid(
    data: list[dict[str, Any]], columns: str
) -> tuple[tuple[alt.X, alt.Y], float, float, list[alt.Tooltip]]:
    """Axes with layers upwards and heads to the right, height, size of letters, tooltips."""
    layers = sorted({row["layer"] for row in data})
    heads = sorted({row[columns] for row in data})
    height = map_height(len(layers))
    letter = round(min(max(0.65 * height / max(len(layers), 1), 2.5), SMALL), 2)
    x = alt.Scale(domain=heads, padding=0.04)
    y = alt.Scale(domain=layers[::-1], padding=0.04)
    place = (
        alt.X(
            field=columns, type="ordinal", scale=x, title=_words(columns), axis=_axis(heads, ACROSS)
        ),
        alt.Y(field="layer", type="ordinal", scale=y, title="layer", axis=_axis(layers, UP)),
    )
    return place, height, letter, [tip("layer", "layer"), tip(columns, _words(columns))]


def _panel(
    place: tuple[alt.X, alt.Y],
    height: float,
    data: list[dict[str, Any]],
    columns: str,
    marks: list[Any],
    title: str,
    tips: list[alt.Tooltip],
    pick: alt.Parameter | None,
) -> ChartType:
    """Lay marks over each other; on top what hears clicks, and a frame around the chosen cell.

    A click changes that frame alone, which for thousands of cells is a matter of seconds.
    """
    if pick is not None:
        cells = [{key: row[key] for key in ("layer", columns)} for row in data]
        hears = canvas(data).mark_rect(fill="transparent").encode(*place, tooltip=tips)
        frame = canvas(cells, pick).mark_rect(style="chosen", fill="transparent")
        marks = [*marks, hears.properties(name=CLICKED), frame.encode(*place)]
    made = alt.layer(*marks).properties(title=title, width=WIDTH, height=height)
    return cast(ChartType, made)


def _fill(
    field: str, scale: dict[str, Any], height: float, ticks: list[float], label: str = TICK
) -> alt.Fill:
    """Colours of numbers, with a bar of them beside the panel."""
    legend = alt.Legend(
        title=None, orient="right", gradientLength=height, values=ticks, labelExpr=label
    )
    return alt.Fill(field=field, type="quantitative", scale=alt.Scale(**scale), legend=legend)


def _axis(numbers: list[Any], most: int) -> alt.Axis:
    step = 1 if len(numbers) <= most else 2 if len(numbers) <= 2 * most else 0
    step = step or 5 * math.ceil(len(numbers) / most / 5)
    return alt.Axis(grid=False, domain=False, ticks=False, values=numbers[::step])
