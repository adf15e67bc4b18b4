"""Heatmaps: a number or a word per layer and head, and the choice of one of them."""

from __future__ import annotations

import json
import math
from collections.abc import Iterable
from typing import Any, cast

import altair as alt
from altair.typing import ChartType

from esscher.show.chart import CLICKED, Row, Series, canvas, tip
from esscher.show.frames import finite
from esscher.show.theme import (
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


def heatmap(
    rows: Iterable[Row],
    field: str,
    title: str,
    *,
    log: bool = False,
    ends: tuple[float, float] | None = None,
    colours: str = SIZES,
    columns: str = "head",
    words: Series | None = None,
    letters: dict[str, str] | None = None,
    pick: alt.Parameter | None = None,
) -> ChartType:
    """Draw a number or a word per layer and head as colour; a cross marks a cell without a number.

    Parameters
    ----------
    rows
        With ``layer``, the field of the columns, and the number or word.
    field, title
        Name of it in the rows, and above the panel.
    log
        Whether colours are logarithmic.
    ends
        Numbers at the ends of the colours; None: those of the data. Where numbers lie beyond, the
        bar of colours says so with ``≤`` and ``≥``.
    colours
        Name of the map from numbers to colours.
    columns
        Field along x.
    words, letters
        For a field of words: the words in order with their colours, and a letter of each, to tell
        them apart in grey; if left out, the first one that no word before it has. A cell without a
        word is empty.
    pick
        Selection of a cell: see :func:`picking`.
    """
    value = (lambda word: word) if words else (lambda number: finite(number, log))
    data = [
        {"layer": row["layer"], columns: row[columns], field: value(row[field])} for row in rows
    ]
    layers, heads = (sorted({row[axis] for row in data}) for axis in ("layer", columns))
    height = map_height(len(layers))
    size = round(min(max(0.65 * height / max(len(layers), 1), 2.5), SMALL), 2)
    scales = [alt.Scale(domain=labels, padding=0.04) for labels in (heads, layers[::-1])]
    name = columns.replace("_", " ")
    place = (
        alt.X(
            field=columns, type="ordinal", scale=scales[0], title=name, axis=_axis(heads, ACROSS)
        ),
        alt.Y(field="layer", type="ordinal", scale=scales[1], axis=_axis(layers, UP)),
    )
    tips = [tip("layer", "layer"), tip(columns, name)]
    # below marks that hear clicks, which say it, cells say nothing themselves
    empty = {"tooltip": tips} if pick is None else {}
    tips = [*tips, tip(field, title, words is None)]
    tooltips = {"tooltip": tips} if pick is None else {}
    there = [row for row in data if row[field] is not None]
    cells = canvas(there)
    if words is not None:
        if letters is None:
            letters = {}
            for word in words.names:
                unused = (c for c in word.upper() if c not in letters.values())
                letters[word] = next(unused, "?")
        names = {word: f"{letters[word]}: {word}" for word in words.names}
        legend = alt.Legend(
            title=None,
            orient="bottom",
            direction="horizontal",
            symbolType="square",
            labelExpr=f"{json.dumps(names)}[datum.value]",
        )
        # not ``fill``, so that maps of numbers have theirs beside it
        look = {"color": alt.Color(**words.colour() | {"field": field, "legend": legend})}
        letter = alt.Text(field="letter", type="nominal")
        marks: list[Any] = [
            cells.mark_rect(style="cell").encode(*place, **look, **tooltips),
            canvas(row | {"letter": letters.get(row[field])} for row in there)
            .mark_text(style="letter", fontSize=size)
            .encode(*place, text=letter, **tooltips),
        ]
        title = title if there else f"{title}: none"
    else:
        known = [row[field] for row in there]
        low, high = ends or ((min(known), max(known)) if known else (1.0, 10.0))
        if not high > low:  # one number only
            low, high = (low / 1.5, low * 1.5) if log else (low - 0.5, low + 0.5)
        label = TICK
        if known and max(known) > high:
            label = f"(datum.value >= {high} ? '≥ ' : '') + ({label})"
        if known and min(known) < low:
            label = f"(datum.value <= {low} ? '≤ ' : '') + ({label})"
        fill = alt.Fill(
            field=field,
            type="quantitative",
            scale=alt.Scale(
                type="log" if log else "linear",
                domain=[low, high],
                clamp=True,
                scheme=cast(Any, colours),
                nice=False,
            ),
            legend=alt.Legend(
                title=None,
                orient="right",
                gradientLength=height,
                values=log_ticks(low, high) if log else even_ticks(low, high),
                labelExpr=label,
            ),
        )
        marks = [cells.mark_rect(style="cell").encode(*place, fill=fill, **tooltips)]
        if len(known) < len(data):
            cross = canvas(row for row in data if row[field] is None)
            cross = cross.mark_text(style="note", text="×", fontSize=size)
            marks.append(cross.encode(*place, **empty))
    if pick is not None:
        # on top what hears clicks, and a frame around the chosen cell: a click changes that frame
        # alone, which for thousands of cells is a matter of seconds
        places = [{key: row[key] for key in ("layer", columns)} for row in data]
        hears = canvas(data).mark_rect(fill="transparent").encode(*place, tooltip=tips)
        frame = canvas(places, pick).mark_rect(style="chosen", fill="transparent")
        marks += [hears.properties(name=CLICKED), frame.encode(*place)]
    made = alt.layer(*marks).properties(title=title, width=WIDTH, height=height)
    return cast(ChartType, made)


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
    place = f"', layer ' + {PICK}.layer + ', {columns.replace('_', ' ')} ' + {PICK}['{columns}']"
    return alt.TitleParams(text=alt.ExprRef(f"{json.dumps(title)} + ({PICK}.layer ? {place} : '')"))


def map_height(layers: int) -> float:
    """Return the height of a heatmap of so many layers."""
    return min(max(LAYER * layers, SHORT), TALL)


def _axis(numbers: list[Any], most: int) -> alt.Axis:
    step = 1 if len(numbers) <= most else 2 if len(numbers) <= 2 * most else 0
    step = step or 5 * math.ceil(len(numbers) / most / 5)
    return alt.Axis(grid=False, domain=False, ticks=False, values=numbers[::step])
