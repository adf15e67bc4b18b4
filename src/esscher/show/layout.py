"""Specifications of charts, and how wide they are: columns of panels, of legends, and widths.

Specifications say what is drawn, not how wide; ``page/charts/layout.js`` does the same in a page.
"""

from __future__ import annotations

import copy
import json
import math
import textwrap
from typing import TYPE_CHECKING, Any

from esscher.show.theme import GREY, LARGE, SMALL

if TYPE_CHECKING:
    from altair.typing import ChartType

#: Room beside a panel for its axis; for a bar of colours; between panels. In points.
AXIS, BAR, GAP = 34.0, 30.0, 14.0
#: Room of a legend's symbol with the space around it, of a letter, and between names and axis.
SYMBOL, LETTER, TICK = 20.0, 3.6, 8.0
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
            letters = int(width * SMALL / size / LETTER)
            title[part] = textwrap.wrap(title[part], letters, break_on_hyphens=False)
    return made


def _arrange(view: dict[str, Any], width: float, least: float) -> None:
    if "vconcat" in view:
        for part in view["vconcat"]:
            _arrange(part, width, least)
    elif "concat" in view:
        panels = view["concat"]
        view["columns"] = columns(len(panels), width, least)
        own = (width - GAP * (view["columns"] - 1)) / view["columns"]
        for panel in panels:
            panel["width"] = round(panel_width(panel, own), 1)
        _arrange_legends(panels, own if "resolve" in view else width, width)
    else:
        view["width"] = round(panel_width(view, width), 1)
        _arrange_legends(view, width, width)


def panel_width(view: dict[str, Any], width: float) -> float:
    """Return the width of a panel without its axis and its bar of colours.

    Names along the axis have up to ``NAMES`` of the width, and are cut beyond.
    """
    bar = BAR if "gradientLength" in json.dumps(view) else 0.0
    named = _named_axes(view)
    longest = max((len(name) for axis in named for name in axis["scale"]["domain"]), default=0)
    room = max(AXIS, min(LETTER * longest + TICK, NAMES * width))
    for axis in named:
        axis["axis"] = axis.get("axis", {}) | {"labelLimit": room}
    return max(width - room - bar, 30.0)


def _named_axes(view: Any) -> list[dict[str, Any]]:
    """Encodings along y of the names in a panel."""
    found = []
    for part in view.get("layer", []):
        found += _named_axes(part)
    axis: Any = view.get("encoding", {}).get("y", {})
    if _words(axis.get("scale", {}).get("domain")):
        found.append(axis)
    return found


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
        own = symbol + LETTER * max(len(name) for name in names)
        count = len(legend.get("values", names))
        rows = -(-count // max(1, int(width / own)))
        legend["columns"] = -(-count // rows)  # as many in each row as possible
    for key, part in view.items():
        if key not in ("data", "datasets"):
            _arrange_legends(part, whole if key == "color" else width, whole)
