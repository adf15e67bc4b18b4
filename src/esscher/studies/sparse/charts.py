"""Charts of sparse patterns: errors and exponents with verdicts, and every head."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import altair as alt
from altair.typing import ChartType

from esscher.core.variables import table
from esscher.engine.patterns import BASELINE
from esscher.show.cells import ROW, picked_title
from esscher.show.chart import Axis, Series, figure, guides, lines, panel, points, sheet
from esscher.show.content import Drawing
from esscher.show.explorer import HeadMap
from esscher.show.explorer import explorer as head_explorer
from esscher.show.frames import records
from esscher.show.theme import (
    BLACK,
    BLUE,
    GREEN,
    GREY,
    OLIVE,
    ORANGE,
    PALE,
    PURPLE,
    SKY,
    VERMILION,
    limits,
)
from esscher.studies.sparse.study import AnySparse
from esscher.studies.sparse.view import CURVES, TABLES, subject

WHOLE, DASHED, DOTTED = (1, 0), (4, 2), (1, 2)
#: Colour, shape, dashes and letter of each pattern.
STYLES: dict[str, tuple[str, str, tuple[int, int], str]] = {
    "random": (BLACK, "circle", WHOLE, "R"),
    "corrected": (BLUE, "circle", WHOLE, "C"),
    "topk": (GREEN, "triangle-up", WHOLE, "T"),
    "streaming": (VERMILION, "square", WHOLE, "S"),
    "window": (ORANGE, "square", DASHED, "W"),
    "longformer": (ORANGE, "diamond", DOTTED, "L"),
    "bigbird": (PURPLE, "diamond", WHOLE, "B"),
    "strided": (SKY, "triangle-down", WHOLE, "D"),
    "block": (SKY, "cross", DASHED, "K"),
    "pooled": (GREY, "triangle-right", WHOLE, "P"),
    "linformer": (GREY, "triangle-left", DASHED, "F"),
}
#: For a pattern that is not in the list.
OTHER = (OLIVE, "circle", DASHED, "?")
#: Errors in the order of the panels, and their names.
METRICS = {"map": "map", "mean": "mean output", "cov": "covariance"}
#: A relative error that is marked.
TARGET: dict[str, Any] = {"at": 0.1, "name": "10%"}
#: Curves that lie above all others by more than this factor leave the panel.
HEADROOM = 2.0


def patterns(result: AnySparse) -> ChartType:
    """Draw errors against the budget, a panel per metric, and exponents with verdicts."""
    errors = records(result.table("curves"))
    panels = []
    for metric, title in METRICS.items():
        rows = [row for row in errors if row["metric"] == metric]
        for row in rows:
            row["low"], row["high"] = row.pop("error_low"), row.pop("error_high")
            if row["low"] is not None:
                row["low"] = max(row["low"], 0.05 * row["error"])
        ends, above = _ends(rows)
        guide = [TARGET] if metric == "map" and ends[0] < TARGET["at"] < ends[1] else []
        y = Axis("error", "relative error", log=True, limits=ends)
        panels.append(_curves(result, rows, y, guide, title=f"{title}{above}"))
    parts = [figure(panels), figure([_exponents(result)])]
    note = "bars: 95% intervals; hollow: not to be trusted, or no power law"
    return sheet(parts, subject(result), note=note)


def _ends(rows: list[dict[str, Any]]) -> tuple[tuple[float, float], str]:
    """Ends of an axis, and what the title says about a curve that leaves it.

    A curve that is far above all others would press them together.
    """
    tops: dict[str, float] = {}
    for row in rows:
        tops[row["pattern"]] = max(row["error"], tops.get(row["pattern"], 0.0))
    highest, *others = sorted(tops, key=lambda name: -tops[name])
    known = [row.get(key) for row in rows for key in ("error", "low", "high")]
    if not others or tops[highest] <= HEADROOM * tops[others[0]]:
        return limits(known, log=True), ""
    low = min(row["error"] for row in rows)
    return (0.7 * low, HEADROOM * tops[others[0]]), f" ({highest} begins at {tops[highest]:.3g})"


def _exponents(result: AnySparse) -> ChartType:
    verdicts = result["verdict"].to_series()
    names = {n: n if n == BASELINE else f"{n}: {verdict}" for n, verdict in verdicts.items()}
    frame = table(result.data, ("pattern", "metric"), ["exponent", "law", "trusted"])
    rows = [
        {
            "pattern": names[row["pattern"]],
            "metric": METRICS[row["metric"]],
            "exponent": row["exponent"],
            "low": row["exponent_low"],
            "high": row["exponent_high"],
            "hollow": not (row["trusted"] and row["law"] == "power"),
        }
        for row in records(frame)
    ]
    known = [row[key] for row in rows for key in ("exponent", "low", "high")]
    x = Axis("exponent", "exponent β of error ~ r^-β", limits=limits([0.0, 0.5, *known]))
    y = Axis("pattern", names=list(names.values()))
    marks = points(rows, x, y, Series("metric", tuple(METRICS.values())), across=True, beside=True)
    compare = guides([{"at": 0.0}, {"at": 0.5, "name": "1/2"}], x, y, upright=True)
    return panel(compare, marks, height=1.6 * ROW * len(names))


def explorer(result: AnySparse, heads: Sequence[tuple[int, int]] | None = None) -> ChartType:
    """Draw the map errors of every head, and the curves of the one that is picked."""
    frame = TABLES[1].ordered(result)  # the head of largest error at random comes first
    names = result.data["pattern"].values.tolist()
    there = set(frame["best"])
    styles = {name: STYLES.get(name, OTHER) for name in names if name in there}
    # a letter must be seen in its cell
    colours = [PALE if colour == BLACK else colour for colour, *_ in styles.values()]
    letters = {name: letter for name, (*_, letter) in styles.items()}
    words = Series("pattern", list(styles), colours=colours)
    maps = [
        HeadMap("random", "exponent, random", {"ends": (0.0, 0.6)}),
        *(HeadMap(f"error_{name}", name, {"log": True}) for name in names),
        HeadMap("best", "smallest error", words=words, letters=letters),
    ]
    rows = records(CURVES.frame(result).rename(columns={"head_error": "error"}))
    ends = limits([TARGET["at"], *(row["error"] for row in rows)], log=True)
    y = Axis("error", "relative map error", log=True, limits=ends)
    title, budgets = picked_title("map error"), result.data["budget"].values
    return head_explorer(
        frame,
        maps,
        lambda pick: [_curves(result, rows, y, [TARGET], title=title, pick=pick)],
        title=subject(result),
        heads=heads,
        note=f"map errors at r = {budgets[-1]:,}, mean over {result.data.sizes['replicate']} "
        "replicates",
    )


def _curves(
    result: AnySparse,
    rows: list[dict[str, Any]],
    y: Axis,
    guide: Sequence[dict[str, Any]],
    *,
    title: str | alt.TitleParams,
    pick: alt.Parameter | None = None,
) -> ChartType:
    """Lines with points of every pattern against the budget, over lines to compare with."""
    ends = limits(result.data["budget"].values, log=True)
    x = Axis("budget", "keys r that a query attends", log=True, limits=ends)
    names = tuple(result.data["pattern"].values.tolist())
    styles = (STYLES.get(name, OTHER) for name in names)
    colours, shapes, dashes, _ = zip(*styles, strict=True)
    series = Series("pattern", names, colours=colours, shapes=shapes, dashes=dashes)
    below = [guides(guide, x, y)] if guide else []
    marks = lines(rows, x, y, series, pick=pick), points(rows, x, y, series, pick=pick)
    return panel(*below, *marks, title=title)


def _no_heads(result: AnySparse) -> str | None:
    return None if "head" in result.data.dims else "tokens of a law have no heads"


DRAWINGS = (
    Drawing(
        "patterns",
        "errors, exponents and verdicts",
        patterns,
        heading="Errors and exponents",
        caption="Relative errors against dense attention, with 95% intervals over replicates; "
        "exponents β of error ~ r^-β, with the verdict on the map of each pattern.",
    ),
    Drawing(
        "explorer",
        "map errors of every head, and the curves of one of them (--head)",
        explorer,
        heads=True,
        missing=_no_heads,
        heading="Every head",
        caption="Map errors by pattern. Click a cell, or move with the arrow keys, to see the "
        "curves of that head.",
    ),
)
