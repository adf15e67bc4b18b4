"""Every head as a cell of heatmaps, and the curves of the one that is picked."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import altair as alt
from altair.typing import ChartType

from esscher.core.variables import Variable
from esscher.show.cells import heatmap, picking
from esscher.show.chart import NARROW, figure
from esscher.show.content import check_heads
from esscher.show.frames import records
from esscher.show.table_view import TableView


def head_map(variable: Variable, column: str = "", **look: Any) -> dict[str, Any]:
    """Return the options of the map of a variable: its heading stands above it.

    Parameters
    ----------
    variable
        What is drawn.
    column
        Column of the table, if the variable has several.
    look
        How it is coloured: see :func:`esscher.show.cells.heatmap`.
    """
    column = column or variable.name
    title = variable.titled(column.removeprefix(variable.name).strip("_"))
    return {"field": column, "title": title, **look}


def explorer(
    result: Any,
    table: TableView,
    maps: Sequence[Mapping[str, Any]],
    curves: Callable[[alt.Parameter], Sequence[ChartType]],
    *,
    heads: Sequence[tuple[int, int]] | None = None,
    note: str = "",
    least: float = NARROW,
) -> ChartType:
    """Draw maps of all heads, and the curves of one: the first row of the table unless given.

    Parameters
    ----------
    result
        The result.
    table
        Its table with a row per head, which has the columns of the maps.
    maps
        What is drawn of every head: see :func:`head_map`.
    curves
        Takes the selection of a head; returns the panels that show it.
    heads
        The head to begin with; others after it are for the curves.
    note
        Above everything, below what was measured.
    least
        Points that a panel must have to stand beside another.
    """
    frame, columns = table.ordered(result), table.rows[1]
    there = [(int(layer), int(head)) for layer, head in frame[["layer", columns]].to_numpy()]
    if heads is not None:
        check_heads(heads, there)
    pick = picking(*(heads or there)[0], columns=columns)
    rows = records(frame)
    panels = [heatmap(rows, columns=columns, pick=pick, **each) for each in maps]
    panels += curves(pick)
    return figure(panels, result.subject, note=note, least=least, apart=True, pick=pick)
