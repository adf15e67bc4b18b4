"""Every head as a cell of heatmaps, and the curves of the one that is picked."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import altair as alt
from altair.typing import ChartType

from esscher.core.variables import Variable
from esscher.show.cells import category_map, heatmap, picking
from esscher.show.chart import NARROW, Series, figure
from esscher.show.content import check_heads
from esscher.show.frames import records
from esscher.show.table_view import TableView

if TYPE_CHECKING:
    import pandas as pd


@dataclass(frozen=True)
class HeadMap:
    """A heatmap of a variable: a number of every head, or a word.

    Attributes
    ----------
    variable
        What is drawn; its heading stands above the map.
    column
        Column of the table, if the variable has several.
    look
        How numbers are coloured: see :func:`esscher.show.cells.heatmap`.
    words, letters
        Words in order with their colours, and a letter for each.
    """

    variable: Variable
    column: str = ""
    look: Mapping[str, Any] = field(default_factory=dict)
    words: Series | None = None
    letters: Mapping[str, str] = field(default_factory=dict)

    def draw(
        self, frame: pd.DataFrame, columns: str = "head", pick: alt.Parameter | None = None
    ) -> ChartType:
        """Draw it; ``columns`` is the axis beside the layers."""
        rows, column, title = records(frame), self.column or self.variable.name, self.title
        if self.words is None:
            return heatmap(rows, column, title, columns=columns, pick=pick, **dict(self.look))
        return category_map(
            rows, column, title, self.words, self.letters, columns=columns, pick=pick
        )

    @property
    def title(self) -> str:
        """What stands above the map."""
        return self.variable.titled(self.column.removeprefix(self.variable.name).strip("_"))


def explorer(
    result: Any,
    table: TableView,
    maps: Sequence[HeadMap],
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
        What is drawn of every head.
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
    panels = [each.draw(frame, columns, pick) for each in maps]
    panels += curves(pick)
    return figure(panels, result.subject, note=note, least=least, apart=True, pick=pick)
