"""What the fields of a chart's rows become: places along an axis, colours, shapes, dashes."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import altair as alt

from esscher.show.theme import DASHES, LINE, PALETTE, SHADES, SHAPES, TICK, log_ticks

Row = Mapping[str, Any]
#: Points between the ends of the data and those of an axis without limits.
ROOM = 6.0
#: Size of a line in a legend: the square of its length.
LONG = 400.0
#: Points between the symbols and the names of a legend in which lines stand beside points.
BESIDE = 7.0
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

    def options(self) -> dict[str, Any]:
        """Return what an encoding along this axis has."""
        if self.names is not None:
            return {"type": "ordinal", "sort": list(self.names), "title": self.title or None,
                    "scale": alt.Scale(domain=list(self.names))}  # fmt: skip
        about: dict[str, Any] = {"labelExpr": TICK}
        if self.whole:
            about["labelExpr"] = f"datum.value % 1 ? '' : ({TICK})"
        scale: dict[str, Any] = {"nice": False} if self.log else {"nice": False, "zero": False}
        if self.limits is None:
            scale["padding"] = ROOM
        else:
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
        own = self.dashes or [DASHES[i % len(DASHES)] for i in range(len(self.names))]
        return self._options([list(dash) for dash in own], symbolSize=LONG)

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
