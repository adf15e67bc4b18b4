"""Charts of reach: weights predicted and measured, phases with the heads on them, scales."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
from altair.typing import ChartType

from esscher.math.theory.reach_phases import PHASES
from esscher.show.cells import heatmap
from esscher.show.chart import bands, diagonal, figure, guides, lines, panel, points
from esscher.show.drawing import Drawing, check_heads
from esscher.show.frames import records
from esscher.show.numbers import counted
from esscher.show.scales import Axis, Series
from esscher.show.theme import BLACK, BLUE, GREEN, GREY, ORANGE, PALE, SIGNED, VERMILION, limits
from esscher.studies.reach.records import ARMS, AtLength, HeadReach
from esscher.studies.reach.result import Reach

#: Heads whose curves are drawn unless some are chosen.
SHOWN = 5
WIDE, HEIGHT = 170.0, 150.0
#: Places along the spread of logits.
PLACES = 60
VERDICTS = ("retrieves", "undecided", "does not")
#: Areas and points of one panel share their colours.
PLACED = Series(
    "what", (*PHASES, *VERDICTS),
    colours=(ORANGE, GREEN, BLUE, PALE, VERMILION, BLACK, GREY),
    shapes=("square",) * len(PHASES) + ("circle", "diamond", "triangle-up"),
)  # fmt: skip
KINDS = ("measured", "predicted", "unchanged")
KIND = Series("kind", KINDS, colours=(BLUE, VERMILION, BLACK))


def reach(found: Reach) -> ChartType:
    """Draw predicted against measured weights, and the model's answers along the lengths."""
    return figure(
        [_scatter(found), _scores(found)], _title(found), note=_note(found), least=WIDE, apart=True
    )


def curves(found: Reach, heads: Sequence[tuple[int, int]] | None = None) -> ChartType:
    """Draw the weight of single heads along the lengths, measured and predicted."""
    chosen = found.retrieving[:SHOWN] or found.heads[:SHOWN]
    if heads is not None:
        check_heads(heads, [(head.layer, head.head) for head in found.heads])
        chosen = tuple(found.head(*pair) for pair in heads)
    names = [f"head {head.layer}.{head.head}" for head in chosen]
    rows: list[dict[str, Any]] = []
    for name, head in zip(names, chosen, strict=True):
        for one in head.lengths:
            low, high = one.weight.interval
            rows.append({"head": name, "kind": KINDS[0], "length": one.length,
                         "weight": one.weight.value, "low": low, "high": high})  # fmt: skip
            rows.append({"head": name, "kind": KINDS[1], "length": one.length,
                         "weight": one.predicted})  # fmt: skip
    x, y = _along(found), Axis("weight", "weight of the copied token", limits=(0.0, 1.0))
    series = Series("head", names)
    drawn = panel(
        lines(rows, x, y, series, dashes=Series("kind", KINDS[:2])),
        points([row for row in rows if row["kind"] == KINDS[0]], x, y, series),
        height=HEIGHT,
    )
    return figure([drawn], _title(found), note=_note(found))


def phases(found: Reach) -> ChartType:
    """Draw where the heads lie among the phases of Gaussian logits, at both ends of the lengths."""
    panels = [_phases(found, i) for i in sorted({0, len(found.lengths) - 1})]
    note = "scale 1; a larger scale moves a head along the ray from the origin"
    return figure(panels, _title(found), note=note, least=WIDE)


def heads(found: Reach) -> ChartType:
    """Draw contribution, weight and k-hat of every head."""
    rows = records(found.table())
    panels = [
        heatmap(rows, "contribution", "contribution (nats)", colours=SIGNED,
                ends=_even([row["contribution"] for row in rows])),
        heatmap(rows, "weight", f"weight at {found.lengths[0]:,}"),
        heatmap(rows, "last_weight", f"weight at {found.lengths[-1]:,}"),
        heatmap(rows, "tail", "k-hat of other keys"),
    ]  # fmt: skip
    return figure(panels, _title(found), least=120.0, apart=True)


def growth(found: Reach) -> ChartType:
    """Draw entropy, largest weight and counted gaps along the lengths: medians over heads."""
    groups = {"retrieving heads": found.retrieving,
              "other heads": [h for h in found.heads if h.verdict != "retrieves"]}  # fmt: skip
    about: tuple[tuple[str, str, Callable[[AtLength], float]], ...] = (
        ("entropy", "entropy (nats)", lambda one: one.entropy),
        ("largest", "largest weight", lambda one: one.largest),
        ("gap", "keys within 4 of the largest", lambda one: one.gaps[2]),
        ("certified", "keys for 1% total variation", lambda one: one.certified[0]),
    )
    panels = []
    for field, title, pick in about:
        rows: list[dict[str, Any]] = []
        for name, group in groups.items():
            for i, n in enumerate(found.lengths):
                values = [pick(head.lengths[i]) for head in group]
                if values:
                    low, middle, high = np.quantile(values, [0.25, 0.5, 0.75])
                    rows.append({"heads": name, "length": n, field: middle, "low": low,
                                 "high": high})  # fmt: skip
        x, y = _along(found), Axis(field, title, limits=(0.0, 1.1 * max(r["high"] for r in rows)))
        series = Series("heads", [name for name in groups if groups[name]])
        panels.append(panel(lines(rows, x, y, series), points(rows, x, y, series)))
    note = "medians over heads; bars: quartiles"
    return figure(panels, _title(found), note=note, least=WIDE)


def scales(found: Reach) -> ChartType:
    """Draw what scales change on held-out items: surprise at text, log-probability of answers."""
    panels = []
    about = (
        ("surprise_change", "change of surprise at text (nats)"),
        ("log_probability_change", "change of log-probability (nats)"),
    )
    for field, title in about:
        rows = []
        for one in found.scales:
            if one.arm != "none":
                value = getattr(one, field)
                low, high = value.interval
                rows.append({"arm": one.arm, "length": f"{one.length:,}", field: value.value,
                             "low": low, "high": high})  # fmt: skip
        x = Axis("length", "tokens", names=sorted({row["length"] for row in rows}, key=_number))
        ends = [v for row in rows for v in (row[field], row["low"], row["high"])]
        y = Axis(field, title, limits=limits([0.0, *ends]))
        panels.append(
            panel(
                guides([{"at": 0.0}], x, y),
                points(rows, x, y, Series("arm", ARMS[1:]), beside=True),
            )
        )
    return figure(panels, _title(found), note="bars: 95% intervals, paired by items", least=WIDE)


def _nothing(found: Reach) -> str | None:
    return None if found.heads else "no item of the shortest length is there"


def _unchecked(found: Reach) -> str | None:
    return None if found.scales else "no scale was checked; give --check"


DRAWINGS = (
    Drawing(
        "reach", "predicted and measured weights, and answers along the lengths", reach,
        missing=_nothing, heading="Weights and answers",
        caption="Left: weight of the copied token in retrieving heads, predicted from the shortest "
        "length alone, against measured. Right: log-probability of the right answer per token.",
    ),
    Drawing(
        "curves", "weight of the copied token along the lengths, for single heads (--head)",
        curves, heads=True, missing=_nothing, heading="Single heads",
        caption="Measured with 95% intervals, and predicted from the shortest length (dashed).",
    ),
    Drawing(
        "phases", "heads among the phases of Gaussian logits", phases, missing=_nothing,
        heading="Phases",
        caption="Spread and advantage of every head's logits. Above the parabola the copied token "
        "has half of the attention at scale 1; below the line no scale gives it that.",
    ),
    Drawing(
        "heads", "contribution, weights and tails of every head", heads, missing=_nothing,
        heading="Every head",
    ),
    Drawing(
        "growth", "entropy, largest weight and gaps along the lengths", growth, missing=_nothing,
        heading="What grows with the text",
    ),
    Drawing(
        "scales", "what factors of the logits change on held-out items", scales,
        missing=_unchecked, heading="Scales",
        caption="Surprise: lower is better. Log-probability of answers: higher is better.",
    ),
)  # fmt: skip


def _scatter(found: Reach) -> ChartType:
    lengths = [f"{n:,}" for n in found.lengths[1:]]
    rows = []
    for head in found.retrieving:
        for one in head.lengths[1:]:
            low, high = one.weight.interval
            rows.append({"length": f"{one.length:,}", "measured": one.weight.value,
                         "predicted": one.predicted, "low": low, "high": high})  # fmt: skip
    known = [row[name] for row in rows for name in ("measured", "predicted")]
    ends = limits(known, log=True)
    x = Axis("measured", "measured weight", log=True, limits=ends)
    y = Axis("predicted", "predicted weight", log=True, limits=ends)
    series = Series("length", lengths, title="tokens", ordered=True)
    return panel(
        diagonal(x, y, 2.0), points(rows, x, y, series, across=True),
        title="retrieving heads", height=HEIGHT,
    )  # fmt: skip


def _scores(found: Reach) -> ChartType:
    rows: list[dict[str, Any]] = []
    for one in found.scores:
        for kind, value in zip(KINDS, (one.log_probability, one.predicted), strict=False):
            low, high = value.interval
            rows.append({"kind": kind, "length": one.length, "score": value.value, "low": low,
                         "high": high})  # fmt: skip
        rows.append({"kind": KINDS[2], "length": one.length, "score": one.unchanged})
    x = _along(found)
    values = [v for row in rows for v in (row["score"], row.get("low"), row.get("high"))]
    y = Axis("score", "log-probability per answer token", limits=limits(values))
    return panel(
        lines(rows, x, y, KIND), points(rows, x, y, KIND), title="the model's answers",
        height=HEIGHT,
    )  # fmt: skip


def _phases(found: Reach, i: int) -> ChartType:
    """Heads at one length, over the phases of n Gaussian keys in (spread, advantage)."""
    n = found.lengths[i]
    rows = [_place(head, i) for head in found.heads]
    wide = 1.05 * max(row["spread"] for row in rows)
    log_n = math.log(n)
    frozen = math.sqrt(2 * log_n)
    low = min(0.0, *(row["advantage"] for row in rows)) - 1
    high = 1.05 * max(log_n + 4, *(row["advantage"] for row in rows))
    areas = []
    for s in np.unique([*np.linspace(0, wide, PLACES), min(frozen, wide)]):
        line, found_at = s * frozen, log_n + s**2 / 2
        if s <= frozen:
            edges = {"lost": (low, line), "averaging": (line, found_at),
                     "retrieving": (found_at, high), "frozen": (high, high)}  # fmt: skip
        else:
            edges = {"lost": (low, line), "averaging": (line, line),
                     "retrieving": (line, line), "frozen": (line, high)}  # fmt: skip
        areas += [
            {"what": name, "spread": s, "low": min(a, high), "high": min(b, high)}
            for name, (a, b) in edges.items()
        ]
    x = Axis("spread", "spread s of logits", limits=(0.0, wide))
    y = Axis("advantage", "advantage z of the copied token", limits=(low, high))
    return panel(
        bands(areas, x, y, PLACED),
        points(rows, x, y, PLACED),
        title=f"{n:,} tokens",
        height=HEIGHT,
    )


def _place(head: HeadReach, i: int) -> dict[str, Any]:
    one = head.lengths[i]
    return {"what": head.verdict, "spread": one.spread, "advantage": one.advantage}


def _along(found: Reach) -> Axis:
    return Axis("length", "tokens of text", log=True, limits=limits(found.lengths, log=True))


def _even(values: Sequence[float]) -> tuple[float, float]:
    largest = max(abs(value) for value in values) or 1.0
    return -largest, largest


def _number(text: str) -> int:
    return int(text.replace(",", ""))


def _note(found: Reach) -> str:
    return f"predicted from {found.lengths[0]:,} tokens alone; bars: 95% intervals over items"


def _title(found: Reach) -> str:
    study = found.study
    return (
        f"{study.model_record.name} on {study.text_record.source}: {', '.join(study.tasks)}, "
        f"{counted(study.items, 'item')} each"
    )
