"""Every head as a cell of heatmaps, and the curves of the one that is picked."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import altair as alt
from altair.typing import ChartType

from esscher.show.cells import category_map, heatmap, picking
from esscher.show.chart import NARROW, Series, figure
from esscher.show.content import check_heads
from esscher.show.frames import records

if TYPE_CHECKING:
    import pandas as pd


@dataclass(frozen=True)
class HeadMap:
    """A heatmap: a number of every head, or a word.

    Attributes
    ----------
    column, title
        Column of the table, and what stands above the map.
    look
        How numbers are coloured: see :func:`esscher.show.cells.heatmap`.
    words, letters
        Words in order with their colours, and a letter for each.
    """

    column: str
    title: str
    look: Mapping[str, Any] = field(default_factory=dict)
    words: Series | None = None
    letters: Mapping[str, str] = field(default_factory=dict)

    def draw(
        self, frame: pd.DataFrame, columns: str = "head", pick: alt.Parameter | None = None
    ) -> ChartType:
        """Draw it; ``columns`` is the axis beside the layers."""
        rows = records(frame)
        if self.words is None:
            return heatmap(
                rows, self.column, self.title, columns=columns, pick=pick, **dict(self.look)
            )
        return category_map(
            rows, self.column, self.title, self.words, self.letters, columns=columns, pick=pick
        )


def explorer(
    frame: pd.DataFrame,
    maps: Sequence[HeadMap],
    curves: Callable[[alt.Parameter], Sequence[ChartType]],
    *,
    title: str,
    heads: Sequence[tuple[int, int]] | None = None,
    note: str = "",
    columns: str = "head",
    least: float = NARROW,
) -> ChartType:
    """Draw maps of all heads, and the curves of one: the first row of the table unless given.

    Parameters
    ----------
    frame
        A row per head, with the columns of the maps.
    maps
        What is drawn of every head.
    curves
        Takes the selection of a head; returns the panels that show it.
    title, note
        Above everything.
    heads
        The head to begin with; others after it are for the curves.
    columns
        Axis beside the layers: ``head`` or ``key_head``.
    least
        Points that a panel must have to stand beside another.
    """
    there = [(int(layer), int(head)) for layer, head in frame[["layer", columns]].to_numpy()]
    if heads is not None:
        check_heads(heads, there)
    pick = picking(*(heads or there)[0], columns=columns)
    panels = [each.draw(frame, columns, pick) for each in maps]
    panels += curves(pick)
    return figure(panels, title, note=note, least=least, apart=True, pick=pick)
