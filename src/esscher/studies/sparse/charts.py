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
from esscher.show.explorer import explorer, head_map
from esscher.show.frames import records
from esscher.show.theme import BLACK, PALE, PALETTE, limits
from esscher.studies.sparse.study import AnySparse, SparseData, SparseLawData
from esscher.studies.sparse.view import BEST, CURVES, HEAD_ERROR, HEAD_EXPONENT, TABLES

#: Errors in the order of the panels, and their names.
METRICS = {"map": "map", "mean": "mean output", "cov": "covariance"}
#: A relative error that is marked.
TARGET: dict[str, Any] = {"at": 0.1, "name": "10%"}


def patterns(result: AnySparse) -> ChartType:
    """Draw errors against the budget, a panel per metric, and exponents with verdicts."""
    errors, panels = result.table("curves"), []
    for metric, title in METRICS.items():
        rows = records(errors[errors["metric"] == metric], interval="error")
        y = Axis.of(SparseLawData.error, rows, log=True)
        guide = [TARGET] if metric == "map" else []
        panels.append(_curves(result, rows, y, guide, title=title))
    parts = [figure(panels), figure([_exponents(result)])]
    note = "bars: 95% intervals; hollow: not to be trusted, or no power law"
    return sheet(parts, result.subject, note=note)


def _exponents(result: AnySparse) -> ChartType:
    verdicts = result["verdict"].to_series()
    names = {n: n if n == BASELINE else f"{n}: {verdict}" for n, verdict in verdicts.items()}
    frame = table(result.data, ("pattern", "metric"), ["exponent", "law", "trusted"])
    frame["hollow"] = ~(frame["trusted"] & (frame["law"] == "power"))
    frame["pattern"], frame["metric"] = frame["pattern"].map(names), frame["metric"].map(METRICS)
    rows = records(frame, interval="exponent")
    x = Axis.of(SparseLawData.fit.exponent, rows, (0.0, 0.5))
    y = Axis("pattern", names=list(names.values()))
    marks = points(rows, x, y, Series("metric", tuple(METRICS.values())), across=True, beside=True)
    compare = guides([{"at": 0.0}, {"at": 0.5, "name": "1/2"}], x, y, upright=True)
    return panel(compare, marks, height=1.6 * ROW * len(names))


def heads(result: AnySparse, heads: Sequence[tuple[int, int]] | None = None) -> ChartType:
    """Draw errors and the best pattern of every head, and the curves of the one picked."""
    rows = records(CURVES.frame(result))
    y = Axis.of(SparseData.head_error, rows, (TARGET["at"],), log=True)
    names, best = result.data["pattern"].values.tolist(), set(TABLES[1].frame(result)["best"])
    # the colours of the curves, but a letter must be seen in its cell
    shades = [PALE if colour == BLACK else colour for colour in PALETTE]
    colours = {n: shades[i % len(shades)] for i, n in enumerate(names) if n in best}
    words = Series("pattern", list(colours), colours=list(colours.values()))
    maps = (
        head_map(HEAD_EXPONENT, f"exponent_{BASELINE}", ends=(0.0, 0.6)),
        head_map(HEAD_ERROR, f"error_{BASELINE}", log=True),
        head_map(BEST, words=words),
    )
    title = picked_title("map error")
    budgets, replicates = result.data["budget"].values, result.data.sizes["replicate"]
    return explorer(
        result,
        TABLES[1],  # the head of largest error at random comes first
        maps,
        lambda pick: [_curves(result, rows, y, [TARGET], title=title, pick=pick)],
        heads=heads,
        note=f"map errors at r = {budgets[-1]:,}, mean over {replicates} replicates",
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
    series = Series("pattern", result.data["pattern"].values.tolist())
    marks = lines(rows, x, y, series, pick=pick), points(rows, x, y, series, pick=pick)
    return panel(guides(guide, x, y), *marks, title=title)


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
        heads,
        heads=True,
        missing=_no_heads,
        heading="Every head",
        caption="Click a cell, or move with the arrow keys, to see the map errors of that head by "
        "pattern.",
    ),
)
