"""Figures of the page on caches."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import pandas as pd

from benchmarks.pages.cache_parts import ALL
from benchmarks.pages.cache_words import called, items
from esscher.show.cells import ROW
from esscher.show.chart import Axis, Series, figure, guides, lines, panel, points
from esscher.show.content import Plot
from esscher.show.theme import PALETTE, limits

#: Points that a panel with names must have to stand beside another.
WIDE = 230.0


def draw_curves(table: pd.DataFrame, prefix: int) -> Plot:
    """Draw KL against the share of tokens kept, text by text."""
    every = table[table["text"] == ALL]
    shown = _closest(every)
    counts = table.groupby("text")["passages"].max()
    rows = table[table["configuration"].isin(shown)]
    rows = rows.assign(
        kept=100 * rows["budget"],
        panel=[f"{t}, {counts[t]} passage{'s' if counts[t] > 1 else ''}" for t in rows["text"]],
    )
    return Plot(
        figure(
            _panels(rows, shown, _over(rows, "kept", "tokens kept (%)"), _kl(rows)),
            f"Prompts of {prefix:,} tokens: distance from dense on held-out text",
            note="means over passages" + _left_out(every, shown),
        )
    )


def draw_lengths(table: pd.DataFrame, budget: float) -> Plot:
    """Draw KL against the length of the prompt, text by text."""
    every = table[table["text"] == ALL]
    shown = _closest(every)
    rows = table[table["configuration"].isin(shown)].assign(panel=lambda own: own["text"])
    return Plot(
        figure(
            _panels(rows, shown, _over(rows, "prefix", "tokens of the prompt"), _kl(rows)),
            f"{100 * budget:g}% of the tokens: distance from dense on held-out text",
            note="means over passages" + _left_out(every, shown),
        )
    )


def draw_shares(table: pd.DataFrame, totals: pd.DataFrame) -> Plot:
    """Draw exact match against the share of tokens kept: every task, and all of them."""
    order = totals.groupby("configuration")["score"].mean().sort_values(ascending=False).index
    first = [name for name in ("dense", "planned", "planned:repeat", "uniform") if name in order]
    shown = [*first, *(str(name) for name in order if name not in first)][: len(PALETTE)]
    both = pd.concat([totals.assign(task="all tasks"), table], ignore_index=True)
    both = both[both["configuration"].isin(shown)]
    rows = both.assign(panel=both["task"], kept=100 * both["budget"], right=100 * both["score"])
    y = Axis("right", "exact match (%)", limits=(-3.0, 103.0))
    return Plot(
        figure(
            _panels(rows, shown, _over(rows, "kept", "tokens kept (%)"), y),
            f"Contexts of {int(table['prefix'].iloc[0]):,} tokens: answers after reduction",
            note=f"{items(int(totals['n'].max()))} in all" + _left_out(totals, shown),
        )
    )


def _panels(rows: pd.DataFrame, shown: Sequence[str], x: Axis, y: Axis) -> list[Any]:
    """A panel for every value of the column ``panel``, a line for every configuration shown."""
    series = Series("configuration", [called(name) for name in shown])
    data = [
        {"configuration": called(row["configuration"]), x.field: row[x.field],
         y.field: row[y.field], "panel": row["panel"]}
        for _, row in rows.iterrows()
    ]  # fmt: skip
    return [
        panel(lines(own, x, y, series), points(own, x, y, series), title=str(title))
        for title in dict.fromkeys(row["panel"] for row in data)
        if (own := [row for row in data if row["panel"] == title])
    ]


def _over(rows: pd.DataFrame, field: str, title: str) -> Axis:
    return Axis(field, title, log=True, limits=limits(rows[field].tolist(), log=True))


def _kl(rows: pd.DataFrame) -> Axis:
    return _over(rows, "kl", "KL (nats per token)")


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
            note="right of the dotted line: farther from dense; lines: 95% intervals over texts",
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
