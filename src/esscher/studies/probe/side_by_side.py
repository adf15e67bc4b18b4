"""Probes of the same heads in one chart, and how far they agree."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import pandas as pd
import scipy
from altair.typing import ChartType

from esscher.engine.sampled.layer import METRICS
from esscher.show.chart import diagonal, figure, panel, points
from esscher.show.content import Column, Compared, Drawn, Part, Table
from esscher.show.frames import finite
from esscher.show.numbers import between
from esscher.show.scales import Axis, Series
from esscher.show.theme import limits
from esscher.studies.probe.result import Probe

#: Quantities of heads that are compared: column, name, whether as a ratio.
COMPARED = (
    ("tokens_10", "tokens for 10% error", True),
    ("mean", "exponent of the mean", False),
    ("map", "exponent of the map", False),
    ("H", "horizon H", True),
    ("khat", "k-hat", False),
    ("ess", "effective tokens of a query", True),
)


def side_by_side(probes: Mapping[str, Probe]) -> Compared:
    """Compare probes head by head, where they are of the same heads of the same weights."""
    groups = of_same_heads(probes)
    sentences: list[str] = []
    parts: list[Part] = []
    for group in groups:
        if len(group) > 1:
            table, sentence = _agreement(group)
            sentences.append(sentence)
            parts += [
                Drawn(
                    f"The same heads: {', '.join(group)}",
                    heads(group),
                    "One point per head, with 95% intervals where there are any; on the dotted "
                    "line the probes agree. Heads without a number in one of them are left out.",
                ),
                table,
            ]
    if len(groups) > 1:
        sentences.append("Probes of other weights or other heads are not compared head by head.")
    return Compared(sentences, parts)


def of_same_heads(probes: Mapping[str, Probe]) -> list[dict[str, Probe]]:
    """Return the probes in groups of the same heads, in the order of their first ones.

    Weights are told by their hash: two models may share a name, and one model may have several.
    """
    groups: dict[object, dict[str, Probe]] = {}
    for name, probe in probes.items():
        units = tuple((head.layer, head.head) for head in probe.heads)
        weights = probe.study.model_record.weight_hash or name
        groups.setdefault((weights, units), {})[name] = probe
    return list(groups.values())


def heads(probes: Mapping[str, Probe]) -> ChartType:
    """Draw every head in the first probe against the others."""
    first, *others = probes
    frames = {name: probe.table() for name, probe in probes.items()}
    runs = Series("run", tuple(others))
    against = others[0] if len(others) == 1 else "other probes"
    panels = []
    for column, title, ratio in _compared(probes):
        rows = [row for name in others for row in _pairs(frames[first], frames[name], column, name)]
        rows = [
            row for row in rows if None not in (finite(row["x"], ratio), finite(row["y"], ratio))
        ]
        ends = limits((row[axis] for row in rows for axis in "xy"), log=ratio)
        x = Axis("x", first, log=ratio, limits=ends)
        y = Axis("y", against, log=ratio, limits=ends)
        wide = [row | {"low": row["x_low"], "high": row["x_high"]} for row in rows]
        blocks = [diagonal(x, y)]
        if rows:
            blocks += [points(wide, x, y, runs, across=True), points(rows, x, y, runs)]
        panels.append(panel(*blocks, title=title))
    return figure(panels)


def _compared(probes: Mapping[str, Probe]) -> list[tuple[str, str, bool]]:
    """The quantities; predicted exponents if one of the probes has no measured ones."""
    if not any(probe.study.predict for probe in probes.values()):
        return list(COMPARED)
    return [
        (f"predicted_{column}", f"predicted {name}", ratio)
        if column in METRICS
        else (column, name, ratio)
        for column, name, ratio in COMPARED
    ]


def _pairs(
    first: pd.DataFrame, other: pd.DataFrame, column: str, name: str
) -> list[dict[str, Any]]:
    both = zip(first.to_dict("records"), other.to_dict("records"), strict=True)
    return [
        {
            "run": name, "name": f"layer {a['layer']}, head {a['head']}", "x": a[column],
            "y": b[column], "x_low": a.get(f"{column}_low"), "x_high": a.get(f"{column}_high"),
            "low": b.get(f"{column}_low"), "high": b.get(f"{column}_high"),
        }
        for a, b in both
    ]  # fmt: skip


def _agreement(probes: Mapping[str, Probe]) -> tuple[Table, str]:
    """Rank correlations and typical differences of every probe to the first one."""
    labels, frames = list(probes), [probe.table() for probe in probes.values()]
    rows: list[dict[str, Any]] = []
    for label, frame in zip(labels[1:], frames[1:], strict=True):
        for column, name, ratio in _compared(probes):
            a, b = (f[column].astype(float).to_numpy() for f in (frames[0], frame))
            known = np.isfinite(a) & np.isfinite(b) & (not ratio or (a > 0) & (b > 0))
            a, b = a[known], b[known]
            row: dict[str, Any] = {
                "run": label, "quantity": name, "heads": len(a),
                "kind": "ratio" if ratio else "difference", "rank": None,
                "rank_low": None, "rank_high": None, "change": None, "low": None, "high": None,
            }  # fmt: skip
            if len(a) > 3:
                row |= _ranks(a, b) | _typical(b / a if ratio else b - a)
            rows.append(row)
    table = Table(
        title=f"How far they agree with {labels[0]}",
        name="agreement",
        columns=[
            Column("run", "probe"),
            Column("quantity", "quantity"),
            Column("heads", "heads", "n0"),
            Column("rank", "rank correlation", "d2", "rank_low", "rank_high", help="Spearman"),
            Column("change", "median change", "s3", "low", "high",
                   help="ratio to the first probe, or difference from it"),
            Column("kind", "as"),
        ],
        data={name: [row[name] for row in rows] for name in rows[0]},
        caption="Over heads, with 95% intervals: of the rank correlation by Fisher's transform, of "
        "the median by order statistics.",
    )  # fmt: skip
    return table, _sentence(labels, rows[0])


def _sentence(labels: Sequence[str], row: dict[str, Any]) -> str:
    """The first row of the table of agreement in words."""
    if row["rank"] is None:
        return f"{labels[0]} and {labels[1]} have too few heads in common to compare."
    rank = between(row["rank"], (row["rank_low"], row["rank_high"]), "d2")
    change = between(row["change"], (row["low"], row["high"]), "s3")
    return (
        f"Between {labels[0]} and {labels[1]}, heads rank by the tokens they need with a "
        f"correlation of {rank}; the median head needs {change} times as many in {labels[1]}."
    )


def _ranks(a: Any, b: Any) -> dict[str, float | None]:
    """Spearman's correlation; the interval by Fisher's transform, variance 1.06 / (n - 3)."""
    if np.ptp(a) == 0 or np.ptp(b) == 0:
        return {}
    rank = float(scipy.stats.spearmanr(a, b).statistic)
    middle = np.arctanh(np.clip(rank, -0.999999, 0.999999))
    half = 1.96 * np.sqrt(1.06 / (len(a) - 3))
    return {
        "rank": rank,
        "rank_low": float(np.tanh(middle - half)),
        "rank_high": float(np.tanh(middle + half)),
    }


def _typical(change: Any) -> dict[str, float | None]:
    """The median; its interval between order statistics, which assumes no law."""
    ordered, count = np.sort(change), len(change)
    k = int(scipy.stats.binom.ppf(0.025, count, 0.5))
    ends = (None, None) if k < 1 else (float(ordered[k - 1]), float(ordered[count - k]))
    return {"change": float(np.median(ordered)), "low": ends[0], "high": ends[1]}
