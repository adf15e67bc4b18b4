"""Charts of sparse patterns: errors against the budget, exponents with verdicts, bias, heads."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import altair as alt
from altair.typing import ChartType

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
from esscher.studies.sparse.result import NOTHING, RANDOM, Reference, Sparse, SparseHead, student

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
#: Relative error for which budgets are asked.
TARGET: dict[str, Any] = {"at": 0.1, "name": "10%"}
#: Curves that lie above all others by more than this factor leave the panel.
HEADROOM = 2.0
BUDGET = "keys r that a query attends"
SURE = "bars: 95% intervals"
HOLLOW = "hollow: not to be trusted, or no power law"


def patterns(found: Sparse) -> ChartType:
    """Draw errors against the budget, and exponents with verdicts."""
    parts = [figure(_curves(found, "dense")), figure([_exponents(found)])]
    return sheet(parts, found.subject, note=f"{SURE}; {HOLLOW}")


def curves(found: Sparse) -> ChartType:
    """Draw errors against dense attention, a panel per metric."""
    return figure(_curves(found, "dense"), found.subject, note=SURE)


def exponents(found: Sparse) -> ChartType:
    """Draw the exponents of every pattern, and the verdict on its map."""
    return figure([_exponents(found)], found.subject, note=f"{SURE}; {HOLLOW}")


def limit(found: Sparse) -> ChartType:
    """Draw errors against the infinite-token limit, below which no pattern falls for ever."""
    return figure(_curves(found, "limit"), f"{found.subject}, against the limit", note=SURE)


def bias(found: Sparse) -> ChartType:
    """Draw the share of the squared map error that averaging does not remove."""
    rows = [
        {"pattern": name, "budget": budget, "share": share}
        for name, pattern in found.patterns.items()
        for budget, share in zip(found.budgets, pattern.bias.share or (), strict=False)
    ]
    y = Axis("share", "share of the squared map error", limits=(-0.05, 1.05))
    return figure([_drawn(rows, _budget(found), y, _series(found))], found.subject)


def heads(found: Sparse) -> ChartType:
    """Draw the exponent of the map error of every head, a panel per pattern."""
    rows = _head_rows(found)
    panels = [heatmap(rows, f"{name} exponent", name) for name in found.patterns]
    return figure(panels, found.subject, note="exponent of the map error", apart=True)


def explorer(found: Sparse, heads: Sequence[tuple[int, int]] | None = None) -> ChartType:
    """Draw the map errors of every head, and the curves of the one that is picked."""
    rows, names = _head_rows(found), list(found.patterns)
    pick = picking(*_chosen(found, heads))
    panels = [heatmap(rows, f"{RANDOM} exponent", "exponent, random", ends=(0.0, 0.6), pick=pick)]
    panels += [heatmap(rows, f"{name} error", name, log=True, pick=pick) for name in names]
    best = [name for name in names if any(row["best"] == name for row in rows)]
    letters = {name: _style(name)[3] for name in best}
    # a letter must be seen in its cell
    colours = [PALE if _style(name)[0] == BLACK else _style(name)[0] for name in best]
    words = Series("pattern", best, colours=colours)
    panels.append(category_map(rows, "best", "smallest error", words, letters, pick=pick))
    at = [
        {"layer": unit.layer, "head": unit.head, "pattern": name, "budget": budget, "error": error}
        for unit in found.heads
        for name, pattern in unit.patterns.items()
        for budget, error in zip(found.budgets, pattern.map.error, strict=True)
    ]
    y = Axis(
        "error",
        "relative map error",
        log=True,
        limits=limits([TARGET["at"], *(row["error"] for row in at)], log=True),
    )
    panels.append(
        _drawn(
            at,
            _budget(found),
            y,
            _series(found),
            guide=[TARGET],
            pick=pick,
            title=picked_title("map error"),
        )
    )
    note = f"map errors at r = {found.budgets[-1]:,}, mean over {found.replicates} replicates"
    return figure(panels, found.subject, note=note, apart=True, pick=pick)


def _nothing(found: Sparse) -> str | None:
    return None if found.patterns else NOTHING


def _no_limit(found: Sparse) -> str | None:
    known = all(pattern.curve.limit is not None for pattern in found.patterns.values())
    return _nothing(found) or (
        None if known else "tokens of a model have no known infinite-token limit"
    )


def _no_bias(found: Sparse) -> str | None:
    known = any(pattern.bias.share is not None for pattern in found.patterns.values())
    return _nothing(found) or (None if known else "there are too few replicates to see a bias")


def _no_heads(found: Sparse) -> str | None:
    return _nothing(found) or (None if found.heads else "tokens of a law have no heads")


DRAWINGS = (
    Drawing("patterns", "errors, exponents and verdicts", patterns, missing=_nothing),
    Drawing(
        "curves",
        "errors against the budget",
        curves,
        missing=_nothing,
        heading="Error against the budget",
        caption="Relative error against dense attention, with 95% intervals over replicates.",
    ),
    Drawing(
        "exponents",
        "exponents and verdicts",
        exponents,
        missing=_nothing,
        heading="Exponents by pattern",
        caption="Exponents β of error ~ r^-β; beside each pattern, the verdict on its map.",
    ),
    Drawing("limit", "errors against the infinite-token limit", limit, missing=_no_limit),
    Drawing(
        "bias",
        "how much of the error is bias",
        bias,
        missing=_no_bias,
        heading="How much of the error is bias",
        caption="Share of the squared map error that averaging over draws does not remove: all of "
        "it, for a pattern without randomness.",
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
    Drawing(
        "heads",
        "exponents of every head, by pattern",
        heads,
        missing=_no_heads,
        heading="Exponents of every head",
        caption="Intervals are in the CSV file of the table of heads.",
    ),
)


def best_pattern(unit: SparseHead) -> str:
    """Return the pattern of smallest map error at the largest budget in a head."""
    last = {name: pattern.map.error[-1] for name, pattern in unit.patterns.items()}
    return min(last, key=lambda name: last[name])


def _curves(found: Sparse, reference: Reference) -> list[ChartType]:
    """A panel per metric."""
    panels = []
    for metric, title in METRICS.items():
        rows: list[dict[str, Any]] = []
        for name, pattern in found.patterns.items():
            curve = pattern.curve.by_reference[reference][metric]
            noise = curve.standard_error or (None,) * len(found.budgets)
            for budget, mean, error in zip(found.budgets, curve.mean, noise, strict=True):
                ends = (
                    {}
                    if error is None
                    else {
                        "low": max(mean - student(found) * error, 0.05 * mean),
                        "high": mean + student(found) * error,
                    }
                )
                rows.append({"pattern": name, "budget": budget, "error": mean} | ends)
        dense = found.dense_against_limit
        floor = dense[metric] if reference == "limit" and dense is not None else None
        guide: list[dict[str, Any]] = []
        if floor is not None:
            guide.append({"at": floor, "name": "dense"})
        shown, above = _ends([*rows, *({"pattern": "", "error": row["at"]} for row in guide)])
        if metric == "map" and shown[0] < TARGET["at"] < shown[1]:
            guide.append(TARGET)
        y = Axis("error", "relative error", log=True, limits=shown)
        panels.append(
            _drawn(rows, _budget(found), y, _series(found), guide=guide, title=f"{title}{above}")
        )
    return panels


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


def _drawn(
    rows: list[dict[str, Any]],
    x: Axis,
    y: Axis,
    series: Series,
    *,
    guide: Sequence[dict[str, Any]] = (),
    title: str | alt.TitleParams = "",
    pick: alt.Parameter | None = None,
) -> ChartType:
    """Lines with points over lines to compare with."""
    below = [guides(guide, x, y)] if guide else []
    marks = lines(rows, x, y, series, pick=pick), points(rows, x, y, series, pick=pick)
    return panel(*below, *marks, title=title)


def _exponents(found: Sparse) -> ChartType:
    rows, names = [], []
    for name, pattern in found.patterns.items():
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


def _head_rows(found: Sparse) -> list[dict[str, Any]]:
    """One row per head: map errors at the largest budget, exponents, and the best pattern."""
    return [
        {"layer": unit.layer, "head": unit.head, "best": best_pattern(unit)}
        | {f"{name} error": pattern.map.error[-1] for name, pattern in unit.patterns.items()}
        | {f"{name} exponent": pattern.map.exponent for name, pattern in unit.patterns.items()}
        for unit in found.heads
    ]


def _series(found: Sparse) -> Series:
    own = tuple(found.patterns)
    colours, shapes, dashes, _ = zip(*(_style(name) for name in own), strict=True)
    return Series("pattern", own, colours=colours, shapes=shapes, dashes=dashes)


def _style(name: str) -> tuple[str, str, tuple[int, int], str]:
    return STYLES.get(name, OTHER)


def _budget(found: Sparse) -> Axis:
    return Axis("budget", BUDGET, log=True, limits=limits(found.budgets, log=True))


def _chosen(found: Sparse, heads: Sequence[tuple[int, int]] | None) -> tuple[int, int]:
    """The first head that was asked for; otherwise the one of largest error at random."""
    if heads is not None:
        check_heads(heads, [(unit.layer, unit.head) for unit in found.heads])
        return heads[0]
    worst = max(found.heads, key=lambda unit: unit.patterns[RANDOM].map.error[-1])
    return worst.layer, worst.head
