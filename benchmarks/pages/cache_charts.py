"""Figures of the page on caches."""

from __future__ import annotations

import numpy as np
import pandas as pd

from benchmarks.pages.cache_parts import ALL
from benchmarks.pages.cache_words import called, items
from esscher.show.cells import ROW
from esscher.show.chart import figure, guides, lines, panel, points
from esscher.show.drawing import Plot
from esscher.show.scales import Axis, Series
from esscher.show.theme import PALETTE, limits

#: Points that a panel with names must have to stand beside another.
WIDE = 230.0


def draw_curves(table: pd.DataFrame, prefix: int) -> Plot:
    """Draw KL against the share of tokens kept, text by text."""
    every = table[table["text"] == ALL]
    order = every.groupby("configuration")["kl"].apply(lambda own: float(np.log(own).mean()))
    others = [str(name) for name in order.sort_values().index if name not in ("planned", "uniform")]
    shown = ["planned", "uniform", *others][: len(PALETTE)]
    rows = [
        {"configuration": called(row["configuration"]), "kept": 100 * row["budget"],
         "kl": row["kl"], "text": row["text"]}
        for _, row in table.iterrows() if row["configuration"] in shown
    ]  # fmt: skip
    x = Axis(
        "kept", "tokens kept (%)", log=True, limits=limits([r["kept"] for r in rows], log=True)
    )
    y = Axis(
        "kl", "KL (nats per token)", log=True, limits=limits([r["kl"] for r in rows], log=True)
    )
    series = Series("configuration", [called(name) for name in shown])
    panels = []
    for text in dict.fromkeys(row["text"] for row in rows):
        own = [row for row in rows if row["text"] == text]
        count = int(table[table["text"] == text]["passages"].max())
        title = f"{text}, {count} passage{'s' * (count > 1)}"
        panels.append(panel(lines(own, x, y, series), points(own, x, y, series), title=title))
    left = [called(name) for name in others if name not in shown]
    return Plot(
        figure(
            panels,
            f"Prompts of {prefix:,} tokens: distance from dense on held-out text",
            note="means over passages; not shown, farther from dense: " + ", ".join(left),
        )
    )


def draw_tasks(table: pd.DataFrame) -> Plot:
    """Draw differences in the log-probability of the right answer, task by task."""
    budget = table["budget"].max()
    own = table[(table["budget"] == budget) & (table["configuration"] != "planned")]
    names = [called(str(name)) for name in dict.fromkeys(own["configuration"])]
    y, high = Axis("configuration", names=names), 1.4 * ROW * len(names)
    ends = own[["difference", "difference_low", "difference_high"]].to_numpy(dtype=float)
    x = Axis("difference", "nats per token, less the plan's", limits=limits(ends[~np.isnan(ends)]))
    panels = []
    for task, rows in own.groupby("task", sort=False):
        data = [
            {"configuration": called(row["configuration"]), "difference": row["difference"],
             "low": _or_none(row["difference_low"]), "high": _or_none(row["difference_high"])}
            for _, row in rows.iterrows()
        ]  # fmt: skip
        drawn = points(data, x, y, across=True)
        zero = guides([{"at": 0.0}], x, y, upright=True)
        panels.append(
            panel(zero, drawn, title=f"{task}, {items(int(rows['n'].max()))}", height=high)
        )
    return Plot(
        figure(
            panels,
            f"Log-probability of the right answer, {100 * budget:g}% of the tokens",
            note="right of the dotted line: better than the plan; lines: 95% intervals over items",
            least=WIDE,
        )
    )


def draw_ablation(table: pd.DataFrame) -> Plot:
    """Draw the KL of what takes the place of the plan."""
    names = [str(name) for name in dict.fromkeys(table["variant"])]
    y, high = Axis("variant", names=names), 1.4 * ROW * len(names)
    ends = table[["over_planned", "over_planned_low", "over_planned_high"]].to_numpy(dtype=float)
    x = Axis("ratio", "KL over that of the plan", log=True, limits=limits(ends[ends > 0], log=True))
    panels = []
    for budget, own in table.groupby("budget", sort=False):
        data = [
            {"variant": row["variant"], "ratio": row["over_planned"],
             "low": _or_none(row["over_planned_low"]), "high": _or_none(row["over_planned_high"])}
            for _, row in own.iterrows()
        ]  # fmt: skip
        one = guides([{"at": 1.0}], x, y, upright=True)
        title = f"{100 * float(str(budget)):g}% of the tokens"
        panels.append(panel(one, points(data, x, y, across=True), title=title, height=high))
    return Plot(
        figure(
            panels,
            "What takes the place of the plan",
            note="right of the dotted line: farther from dense; lines: 95% intervals over passages",
            least=WIDE,
        )
    )


def _or_none(value: float) -> float | None:
    return None if np.isnan(value) else float(value)
