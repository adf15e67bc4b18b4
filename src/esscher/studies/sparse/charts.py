"""Charts of sparse patterns: errors and exponents with verdicts, and every head."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import altair as alt
from altair.typing import ChartType

from esscher.core.shown import counted
from esscher.show.cells import ROW, category_map, heatmap, picked_title, picking
from esscher.show.chart import Axis, Series, figure, guides, lines, panel, points, sheet
from esscher.show.content import Drawing, check_heads
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
from esscher.studies.sparse.result import RANDOM, Sparse, SparseHead
from esscher.studies.sparse.study import SparseStudy

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


def subject(result: Sparse) -> str:
    """Return what was measured, in a line."""
    study = result.study
    if isinstance(study, SparseStudy):
        heads = counted(len(study.layers) * len(study.heads), "head")
        return (
            f"{study.model_record.name} on {study.text_record.source}, {heads}, "
            f"{counted(study.passages, 'passage')} of {study.context} tokens"
        )
    kind = f"AR(1) with rho = {study.correlation:g}" if study.correlation else "independent"
    horizon = f"spectrum {list(study.spectrum or ())}"
    if study.horizon is not None:
        horizon = f"H = {study.horizon:g}"
    return (
        f"{study.law} tokens, {kind}, {horizon}, d = {study.dim}, N = {study.tokens:,}, "
        f"{counted(study.replicates, 'replicate')}"
    )


def patterns(result: Sparse) -> ChartType:
    """Draw errors against the budget, a panel per metric, and exponents with verdicts."""
    panels = []
    for metric, title in METRICS.items():
        rows: list[dict[str, Any]] = []
        for name, pattern in result.patterns.items():
            curve = pattern.curve[metric]
            for budget, mean, ends in zip(result.budgets, curve.mean, curve.interval, strict=True):
                row = {"pattern": name, "budget": budget, "error": mean}
                if ends is not None:
                    row |= {"low": max(ends[0], 0.05 * mean), "high": ends[1]}
                rows.append(row)
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


def _exponents(result: Sparse) -> ChartType:
    rows, names = [], []
    for name, pattern in result.patterns.items():
        names.append(name if name == RANDOM else f"{name}: {pattern.verdict}")
        for metric, title in METRICS.items():
            fit = pattern.fit[metric]
            rows.append(
                {
                    "pattern": names[-1],
                    "metric": title,
                    "exponent": fit.exponent,
                    "low": fit.interval[0],
                    "high": fit.interval[1],
                    "hollow": not (fit.trusted and fit.law == "power"),
                }
            )
    known = [row[key] for row in rows for key in ("exponent", "low", "high")]
    x = Axis("exponent", "exponent β of error ~ r^-β", limits=limits([0.0, 0.5, *known]))
    y = Axis("pattern", names=names)
    marks = points(rows, x, y, Series("metric", tuple(METRICS.values())), across=True, beside=True)
    compare = guides([{"at": 0.0}, {"at": 0.5, "name": "1/2"}], x, y, upright=True)
    return panel(compare, marks, height=1.6 * ROW * len(names))


def explorer(result: Sparse, heads: Sequence[tuple[int, int]] | None = None) -> ChartType:
    """Draw the map errors of every head, and the curves of the one that is picked."""
    rows = [
        {"layer": unit.layer, "head": unit.head, "best": best_pattern(unit)}
        | {f"{name} error": pattern.error[-1] for name, pattern in unit.patterns.items()}
        | {f"{name} exponent": pattern.exponent.value for name, pattern in unit.patterns.items()}
        for unit in result.heads
    ]
    if heads is not None:
        check_heads(heads, [(unit.layer, unit.head) for unit in result.heads])
        pick = picking(*heads[0])
    else:  # the head of largest error at random
        worst = max(result.heads, key=lambda unit: unit.patterns[RANDOM].error[-1])
        pick = picking(worst.layer, worst.head)
    names = list(result.patterns)
    panels = [heatmap(rows, f"{RANDOM} exponent", "exponent, random", ends=(0.0, 0.6), pick=pick)]
    panels += [heatmap(rows, f"{name} error", name, log=True, pick=pick) for name in names]
    best = [name for name in names if any(row["best"] == name for row in rows)]
    styles = {name: STYLES.get(name, OTHER) for name in best}
    # a letter must be seen in its cell
    colours = [PALE if colour == BLACK else colour for colour, *_ in styles.values()]
    words = Series("pattern", best, colours=colours)
    letters = {name: letter for name, (*_, letter) in styles.items()}
    panels.append(category_map(rows, "best", "smallest error", words, letters, pick=pick))
    at = [
        {"layer": unit.layer, "head": unit.head, "pattern": name, "budget": budget, "error": error}
        for unit in result.heads
        for name, pattern in unit.patterns.items()
        for budget, error in zip(result.budgets, pattern.error, strict=True)
    ]
    ends = limits([TARGET["at"], *(row["error"] for row in at)], log=True)
    y = Axis("error", "relative map error", log=True, limits=ends)
    title = picked_title("map error")
    panels.append(_curves(result, at, y, [TARGET], title=title, pick=pick))
    note = f"map errors at r = {result.budgets[-1]:,}, mean over {result.replicates} replicates"
    return figure(panels, subject(result), note=note, apart=True, pick=pick)


def _curves(
    result: Sparse,
    rows: list[dict[str, Any]],
    y: Axis,
    guide: Sequence[dict[str, Any]],
    *,
    title: str | alt.TitleParams,
    pick: alt.Parameter | None = None,
) -> ChartType:
    """Lines with points of every pattern against the budget, over lines to compare with."""
    ends = limits(result.budgets, log=True)
    x = Axis("budget", "keys r that a query attends", log=True, limits=ends)
    names = tuple(result.patterns)
    styles = (STYLES.get(name, OTHER) for name in names)
    colours, shapes, dashes, _ = zip(*styles, strict=True)
    series = Series("pattern", names, colours=colours, shapes=shapes, dashes=dashes)
    below = [guides(guide, x, y)] if guide else []
    marks = lines(rows, x, y, series, pick=pick), points(rows, x, y, series, pick=pick)
    return panel(*below, *marks, title=title)


def best_pattern(unit: SparseHead) -> str:
    """Return the pattern of smallest map error at the largest budget in a head."""
    return min(unit.patterns, key=lambda name: unit.patterns[name].error[-1])


def _nothing(result: Sparse) -> str | None:
    return None if result.patterns else "nothing is measured yet"


def _no_heads(result: Sparse) -> str | None:
    return _nothing(result) or (None if result.heads else "tokens of a law have no heads")


DRAWINGS = (
    Drawing(
        "patterns",
        "errors, exponents and verdicts",
        patterns,
        missing=_nothing,
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
