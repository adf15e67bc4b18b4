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
    shown = _closest(every)
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
    return Plot(
        figure(
            panels,
            f"Prompts of {prefix:,} tokens: distance from dense on held-out text",
            note="means over passages" + _left_out(every, shown),
        )
    )


def draw_lengths(table: pd.DataFrame, budget: float) -> Plot:
    """Draw KL against the length of the prompt, text by text."""
    every = table[table["text"] == ALL]
    shown = _closest(every)
    rows = [
        {"configuration": called(row["configuration"]), "tokens": row["prefix"],
         "kl": row["kl"], "text": row["text"]}
        for _, row in table.iterrows() if row["configuration"] in shown
    ]  # fmt: skip
    x = Axis("tokens", "tokens of the prompt", log=True,
             limits=limits([r["tokens"] for r in rows], log=True))  # fmt: skip
    y = Axis(
        "kl", "KL (nats per token)", log=True, limits=limits([r["kl"] for r in rows], log=True)
    )
    series = Series("configuration", [called(name) for name in shown])
    panels = [
        panel(lines(own, x, y, series), points(own, x, y, series), title=str(text))
        for text in dict.fromkeys(row["text"] for row in rows)
        if (own := [row for row in rows if row["text"] == text])
    ]
    return Plot(
        figure(
            panels,
            f"{100 * budget:g}% of the tokens: distance from dense on held-out text",
            note="means over passages" + _left_out(every, shown),
        )
    )


def draw_shares(table: pd.DataFrame, totals: pd.DataFrame) -> Plot:
    """Draw exact match against the share of tokens kept: every task, and all of them."""
    whole = totals.assign(task="all tasks")
    both = pd.concat([whole, table], ignore_index=True)
    order = whole.groupby("configuration")["score"].mean().sort_values(ascending=False).index
    first = [name for name in ("dense", "planned", "planned:repeat", "uniform") if name in order]
    shown = [*first, *(str(name) for name in order if name not in first)][: len(PALETTE)]
    rows = [
        {"configuration": called(row["configuration"]), "kept": 100 * row["budget"],
         "score": 100 * row["score"], "task": row["task"]}
        for _, row in both.iterrows() if row["configuration"] in shown
    ]  # fmt: skip
    x = Axis("kept", "tokens kept (%)", log=True,
             limits=limits([r["kept"] for r in rows], log=True))  # fmt: skip
    y = Axis("score", "exact match (%)", limits=(-3.0, 103.0))
    series = Series("configuration", [called(name) for name in shown])
    panels = [
        panel(lines(own, x, y, series), points(own, x, y, series), title=str(task))
        for task in dict.fromkeys(row["task"] for row in rows)
        if (own := [row for row in rows if row["task"] == task])
    ]
    return Plot(
        figure(
            panels,
            f"Contexts of {int(table['prefix'].iloc[0]):,} tokens: answers after reduction",
            note=f"{items(int(whole['n'].max()))} in all" + _left_out(whole, shown),
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


def _closest(table: pd.DataFrame) -> list[str]:
    """Plan, equal budgets, and of the others those closest to dense: as many as have colours."""
    order = table.groupby("configuration")["kl"].apply(lambda own: float(np.log(own).mean()))
    others = [str(name) for name in order.sort_values().index if name not in ("planned", "uniform")]
    return ["planned", "uniform", *others][: len(PALETTE)]


def _left_out(table: pd.DataFrame, shown: list[str]) -> str:
    left = [called(str(n)) for n in dict.fromkeys(table["configuration"]) if n not in shown]
    return f"; not shown, worse: {', '.join(left)}" if left else ""


def _or_none(value: float) -> float | None:
    return None if np.isnan(value) else float(value)
