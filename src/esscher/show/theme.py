"""How every chart looks: type, colours, widths of lines, numbers at ticks.

A chart names its colours by the values below. Files are drawn with them as they are; a page puts a
variable of its style sheet in the place of each, so that one specification is light and dark.
A unit of Vega is a point (1/72 inch); pages draw everything half as large again.
"""

from __future__ import annotations

import copy
import json
import math
import textwrap
from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from altair.typing import ChartType


#: Widths of a figure in one and in two columns of a paper, in points.
SINGLE, DOUBLE = 244.8, 504.0
#: Comes with vl-convert: the same picture on every machine. The others have its widths.
FONT = "Liberation Sans, Arial, Helvetica, sans-serif"
#: Sizes of type in points: titles, text, ticks and legends.
LARGE, TEXT, SMALL = 8.5, 8.0, 7.0

#: Okabe and Ito's palette, which colour-blind readers tell apart.
BLUE, VERMILION, GREEN, PURPLE = "#0072B2", "#D55E00", "#009E73", "#CC79A7"
ORANGE, SKY, OLIVE = "#E69F00", "#56B4E9", "#B8A500"
#: Text and axes; lines to compare with; what is not decided; grid; ground of a chart.
BLACK, GREY, PALE, GRID, GROUND = "#000001", "#777777", "#BBBBBB", "#DDDDDD", "#FFFFFF"
#: Letters in cells, the same on light and dark pages.
LETTER = "#111111"
PALETTE = (BLUE, VERMILION, GREEN, PURPLE, ORANGE, SKY, BLACK, OLIVE)
#: A shape beside each colour, so that series can be told apart in grey.
SHAPES = (
    "circle",
    "square",
    "triangle-up",
    "diamond",
    "triangle-down",
    "cross",
    "triangle-right",
    "triangle-left",
)
#: Shape of a name that has a line and no points, so that its legend shows the line.
LINE = "M-2.6,0H2.6"
#: Dashes of the kinds of lines: as measured or fitted, predicted, anything further.
DASHES = ((1, 0), (4, 2), (1, 2), (6, 2, 1, 2))
#: Colours of growing numbers, dark to light, without the lightest of viridis.
SHADES = (
    "#440154",
    "#482475",
    "#414487",
    "#355F8D",
    "#2A788E",
    "#21918C",
    "#22A884",
    "#44BF70",
    "#7AD151",
    "#B0DD2F",
)
#: Names of the variables that a page puts in the place of colours.
VARIABLES = {
    BLUE: "blue",
    VERMILION: "orange",
    GREEN: "green",
    PURPLE: "purple",
    ORANGE: "gold",
    SKY: "sky",
    OLIVE: "olive",
    BLACK: "ink",
    GREY: "grey",
    PALE: "pale",
    GRID: "grid",
    GROUND: "panel",
    **{shade: f"shade-{i}" for i, shade in enumerate(SHADES)},
}
#: Name of the selection of a cell, in charts and in the page's script.
PICK = "pick"
#: Maps from numbers to colours, even in lightness: of sizes, of shares.
SIZES, SHARES = "viridis", "cividis"


def config() -> dict[str, Any]:
    """Return Vega-Lite's configuration: everything that is the same in all charts."""

    def line(width: float, colour: str = GREY) -> dict[str, Any]:
        return {"strokeWidth": width, "color": colour}

    return {
        "font": FONT,
        "background": GROUND,
        "padding": 4,
        "aria": False,  # a chart is described as a whole
        "mark": {"color": BLUE},
        "view": {"stroke": None},
        "concat": {"spacing": 14},
        "title": {
            "fontSize": TEXT,
            "fontWeight": "normal",
            "color": BLACK,
            "subtitleColor": GREY,
            "subtitleFontSize": SMALL,
            "anchor": "middle",
            "offset": 4,
        },
        "axis": {
            "labelFontSize": SMALL,
            "titleFontSize": TEXT,
            "titleFontWeight": "normal",
            "labelColor": BLACK,
            "titleColor": BLACK,
            "titlePadding": 4,
            "domainColor": BLACK,
            "domainWidth": 0.7,
            "tickColor": BLACK,
            "tickWidth": 0.7,
            "tickSize": 2.5,
            "labelPadding": 2,
            "gridColor": GRID,
            "gridWidth": 0.5,
            "labelOverlap": "parity",
            "labelSeparation": 3,
        },
        "axisX": {"labelAngle": 0},
        "legend": {
            "labelFontSize": SMALL,
            "titleFontSize": SMALL,
            "titleFontWeight": "normal",
            "labelColor": BLACK,
            "titleColor": BLACK,
            "symbolSize": 18,
            "symbolStrokeWidth": 1.2,
            "labelLimit": 0,
            "titleLimit": 0,
            "columnPadding": 8,
            "rowPadding": 1,
            "offset": 6,
            "gradientThickness": 6,
            "titlePadding": 2,
            "tickCount": 5,
            "gradientStrokeWidth": 0,
            "labelOffset": 3,
            "padding": 0,
        },
        "style": {
            "figure": {"fontSize": LARGE, "fill": BLACK, "font": FONT, "fontWeight": "normal"},
            "point": {"size": 14, "strokeWidth": 0.8, "opacity": 1},
            "curve": line(1.2, BLUE) | {"opacity": 1},
            "guide": line(0.9) | {"strokeDash": [1, 2]},
            "interval": line(0.8, BLUE),
            "band": {"opacity": 0.18, "strokeWidth": 0, "color": BLUE},
            "bar": {"color": BLUE},
            "edge": line(0.8, BLACK),
            "stroke": {"size": 9, "thickness": 1.4, "opacity": 1},
            "note": {"fontSize": SMALL, "color": GREY},
            "letter": {"fontSize": SMALL, "color": LETTER},
            "chosen": {"stroke": VERMILION, "strokeWidth": 1.6, "fill": None},
        },
    }


_POWER = "floor(log(abs(datum.value)) / LN10 + 1e-9)"
#: A tick's label in Vega's language: plain digits from 0.001 to below 10^6, others powers of 10.
#: (With ``^``: the font that comes with vl-convert has no superscripts.)
TICK = (
    "datum.value == 0 ? '0' : abs(datum.value) > 0.00099 && abs(datum.value) < 999999 "
    "? format(datum.value, ',~r') : "
    f"(abs(abs(datum.value) / pow(10, {_POWER}) - 1) < 0.001 ? (datum.value < 0 ? '-' : '') "
    f": format(datum.value / pow(10, {_POWER}), '~r') + '×') + '10^' + {_POWER}"
)


def log_ticks(low: float, high: float) -> list[float]:
    """Return the ticks of a logarithmic axis: powers of ten, and between them what has room.

    A range with fewer than two of those has even ticks.
    """
    ratio = high / low
    steps: Sequence[float] = (1, 1.5, 2, 3, 4, 5, 6, 8)
    for most, coarser in (
        (3, (1, 2, 3, 5)),
        (10, (1, 2, 5)),
        (30, (1, 3)),
        (300, (1,)),
    ):
        steps = coarser if ratio > most else steps
    powers = range(math.floor(math.log10(low)), math.ceil(math.log10(high)) + 1)
    inside = math.floor(math.log10(high)) - math.ceil(math.log10(low)) + 1
    some = max(1, math.ceil(inside / 8))
    ticks = [float(f"{step}e{power}") for power in powers if power % some == 0 for step in steps]
    ticks_inside = [tick for tick in ticks if low / 1.0001 <= tick <= high * 1.0001]
    return ticks_inside if len(ticks_inside) > 1 else even_ticks(low, high)


def even_ticks(low: float, high: float) -> list[float]:
    """Return up to six round numbers, equally far from each other."""
    step = 10.0 ** math.floor(math.log10((high - low) / 2))
    step = next(step * k for k in (1, 2, 5, 10, 20) if (high - low) / (step * k) <= 5)
    first, last = math.ceil(low / step - 1e-9), math.floor(high / step + 1e-9)
    return [float(f"{step * i:.10g}") for i in range(first, last + 1)]


def limits(values: Iterable[Any], *, log: bool = False) -> tuple[float, float]:
    """Return the ends of an axis: those of the finite values, and a little more on both sides."""
    known = [
        float(value)
        for value in values
        if value is not None and math.isfinite(value) and (value > 0 or not log)
    ]
    if not known:
        return (1.0, 10.0) if log else (0.0, 1.0)
    low, high = min(known), max(known)
    if log:
        room = max(0.04 * math.log(high / low), 0.05)
        return low * math.exp(-room), high * math.exp(room)
    room = 0.04 * (high - low) or 0.5 * abs(low) or 0.5
    return low - room, high + room


# Widths: specifications say what is drawn, not how wide; ``page/charts/layout.js`` does the same.

#: Room beside a panel for its axis; for a bar of colours; between panels. In points.
AXIS, BAR, GAP = 34.0, 30.0, 14.0
#: Room of a legend's symbol with the space around it, of a letter, and between names and axis.
SYMBOL, LETTER_WIDTH, TICK_ROOM = 20.0, 3.6, 8.0
#: Most of a panel's width that names along its axis take.
NAMES = 0.6

#: Legends of a figure stand below each other, in the middle.
LEGENDS = {"bottom": {"anchor": "middle", "direction": "vertical", "center": True, "margin": 3}}


def specification(chart: ChartType) -> dict[str, Any]:
    """Return a chart's Vega-Lite specification, whatever the caller has set up in Altair."""
    import altair as alt

    with (
        alt.theme.enable("default"),
        alt.data_transformers.enable("default", consolidate_datasets=True),
    ):
        # blocks were checked when they were made: checking all of them again takes half a second
        return dict(chart.to_dict(validate=False))


def columns(count: int, width: float, least: float) -> int:
    """Return how many of ``count`` panels stand side by side, each at least so wide.

    As many in each row as possible: four panels of which three would fit are two and two.
    """
    fitting = max(1, min(int((width + GAP) / (least + GAP)), count))
    rows = -(-count // fitting)
    return -(-count // rows)


def layout(spec: dict[str, Any], width: float) -> dict[str, Any]:
    """Return a specification laid out for a width in points.

    Parameters
    ----------
    spec
        A chart of one panel, or panels that stand side by side (``concat``) or below each other
        (``vconcat``); ``usermeta`` says how wide a panel must be at least.
    width
        Of the whole chart. What comes out is about as wide: axes and legends decide.
    """
    made = copy.deepcopy(spec)
    # Vega-Lite takes this, but its schema, and so Altair, does not know it
    made.setdefault("config", {}).setdefault("legend", {})["layout"] = LEGENDS
    _arrange(made, width, made.get("usermeta", {}).get("least", width))
    title = made.get("title", {})
    if title.get("subtitle") and not title.get("text"):  # Vega draws none without the other
        title |= {"text": title.pop("subtitle"), "fontSize": SMALL, "color": GREY}
    for part, size in (("text", LARGE), ("subtitle", SMALL)):
        if title.get(part):
            letters = int(width * SMALL / size / LETTER_WIDTH)
            title[part] = textwrap.wrap(title[part], letters, break_on_hyphens=False)
    return made


def _arrange(view: dict[str, Any], width: float, least: float) -> None:
    if "vconcat" in view:
        for part in view["vconcat"]:
            _arrange(part, width, least)
        return
    panels, each = view.get("concat", [view]), width
    if "concat" in view:
        view["columns"] = columns(len(panels), width, least)
        each = (width - GAP * (view["columns"] - 1)) / view["columns"]
    for panel in panels:
        # without its bar of colours, and its axis: names along it are cut beyond NAMES of the width
        bar = BAR if "gradientLength" in json.dumps(panel) else 0.0
        named = _named_axes(panel)
        longest = max((len(name) for axis in named for name in axis["scale"]["domain"]), default=0)
        room = max(AXIS, min(LETTER_WIDTH * longest + TICK_ROOM, NAMES * each))
        for axis in named:
            axis["axis"] = axis.get("axis", {}) | {"labelLimit": room}
        panel["width"] = round(max(each - room - bar, 30.0), 1)
        _arrange_legends(panel, each if "resolve" in view else width, width)


def _named_axes(view: Any) -> list[dict[str, Any]]:
    """Encodings along y of the names in a panel."""
    axes = [axis for part in view.get("layer", []) for axis in _named_axes(part)]
    axis: Any = view.get("encoding", {}).get("y", {})
    return [*axes, axis] if _words(axis.get("scale", {}).get("domain")) else axes


def _words(names: Any) -> bool:
    return bool(names) and all(isinstance(name, str) for name in names)


def _arrange_legends(view: Any, width: float, whole: float) -> None:
    """Give legends of named series as many columns as the width takes; those of words have all."""
    if isinstance(view, list):
        for part in view:
            _arrange_legends(part, width, whole)
    if not isinstance(view, dict):
        return
    legend: Any = view.get("legend")
    names: Any = view["scale"].get("domain") if legend and "scale" in view else None
    if _words(names):
        symbol = SYMBOL + math.sqrt(legend.get("symbolSize", 0))
        each = symbol + LETTER_WIDTH * max(len(name) for name in names)
        count = len(legend.get("values", names))
        rows = -(-count // max(1, int(width / each)))
        legend["columns"] = -(-count // rows)  # as many in each row as possible
    for key, part in view.items():
        if key not in ("data", "datasets"):
            _arrange_legends(part, whole if key == "color" else width, whole)
