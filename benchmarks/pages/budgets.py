"""The page on budgets: what plans cost and gain on unseen text, made from stored plans."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
from matplotlib.figure import Figure

from esscher.core.errors import InputError
from esscher.runs.registry import load
from esscher.show.plans import COLOURS, MARKERS, NAMES
from esscher.show.style import (
    DOUBLE,
    columns,
    error_bars,
    escape,
    finish,
    logarithmic,
    new_figure,
    panels,
    styled,
)
from esscher.studies.reproduce.finding import Finding, markdown_table

#: Configurations at the same budget are drawn side by side, each this factor to the right.
APART = 1.04


def budgets_finding(runs: Sequence[Path]) -> Finding:
    """Make the page.

    Parameters
    ----------
    runs
        Folders of :func:`benchmarks.budgets.make_plans`, one per model.
    """
    if not runs:
        raise InputError("there are no runs to make a page of; give folders of benchmarks.budgets")
    sections: list[str] = []
    tables: dict[str, pd.DataFrame] = {}
    figures: dict[str, Figure] = {}
    for folder in runs:
        plans, name = _plans(folder), folder.name
        sections.append(_section(plans))
        tables[name] = _table(plans)
        figures[name] = draw_budget_costs(plans)
    return Finding(
        "budgets",
        "Budgets: what plans cost, and what they gain over uniform ones",
        "\n\n".join([_legend(), *sections]),
        tables,
        figures,
    )


def _plans(folder: Path) -> list[dict[str, Any]]:
    """Every plan of a folder, with the name of the text that it was checked on."""
    places = sorted(path.parent for path in folder.glob("*/*/plan.json"))
    if not places:
        raise InputError(f"there are no plans in {folder}; make them with benchmarks.budgets")
    return [load(place).to_dict() | {"checked_on": place.parent.name} for place in places]


def _legend() -> str:
    return (
        "Plans calibrated on one text and checked on others ([how](../../plan.md)). All "
        "configurations keep the same number of tokens in all. *Planned* and *uniform* choose "
        "tokens inside a head by the same rule; *heavy hitters* keeps those that the last queries "
        "attend (as SnapKV does), *sinks + recent* the first and the last ones (as StreamingLLM "
        "does). In brackets: 95% intervals over passages. Ratios are of the distance from dense to "
        "that of the plan, paired passage by passage: above 1 the plan is closer."
    )


def _section(plans: list[dict[str, Any]]) -> str:
    configuration = plans[0]["configuration"]
    decoder = _decoder(plans)
    keys = configuration["prefix"]
    kept = {plan["configuration"]["budget"]: np.array(plan["budgets"]) for plan in plans}
    budgets = "; ".join(
        f"{100 * share:g}%: {tokens.min():,} to {tokens.max():,} tokens a key head"
        for share, tokens in kept.items()
    )
    parts = [
        f"## {configuration['model']['name']}",
        f"{configuration['passages']} calibration passages, {configuration['check_passages']} "
        f"unseen passages of each text, {keys:,} tokens"
        + (f" and {configuration['query_count']} queries after them" if decoder else "")
        + f", seed {configuration['seed']}. Planned budgets: {budgets}.",
        f"**Distance from dense: {'KL in nats per token' if decoder else '1 - cosine'}**",
        markdown_table(_costs(plans, decoder)),
        "**How many times closer the plan is, and how good its predictions were**",
        markdown_table(_gains(plans)),
    ]
    if decoder:
        parts += [
            "**Agreement of the most likely token, and perplexity over that of dense**",
            markdown_table(_agreement(plans)),
        ]
    else:
        parts += [
            "**Passages that keep their nearest neighbour**",
            markdown_table(_neighbours(plans)),
        ]
    return "\n\n".join(parts)


def _costs(plans: list[dict[str, Any]], decoder: bool) -> pd.DataFrame:
    rows = []
    for plan in plans:
        row = _place(plan)
        for name, title in _present(plan):
            value, low, high = _distance(plan["check"][name], decoder)
            row[title] = _with_ends(value, (low, high))
        rows.append(row | {"predicted": f"{plan['predicted']['effect']:.2g}"})
    return pd.DataFrame(rows)


def _gains(plans: list[dict[str, Any]]) -> pd.DataFrame:
    rows = []
    for plan in plans:
        check, row = plan["check"], _place(plan)
        for name, title in _present(plan):
            if name != "planned":
                ratio = check["ratios"][name]
                row[f"over {title}"] = _with_ends(ratio["mean"], ratio["interval"])
        row["earned"] = "yes" if check["earned"] else "no"
        row["heads within a factor of 1.5"] = f"{100 * check['heads']['within_factor']:.0f}%"
        rows.append(row)
    return pd.DataFrame(rows)


def _agreement(plans: list[dict[str, Any]]) -> pd.DataFrame:
    rows = []
    for plan in plans:
        row = _place(plan)
        for name, title in _present(plan):
            top, ratio = (plan["check"][name][k]["mean"] for k in ("top1", "perplexity_ratio"))
            row[title] = f"{100 * top:.1f}%, {ratio:.3f}"
        rows.append(row)
    return pd.DataFrame(rows)


def _neighbours(plans: list[dict[str, Any]]) -> pd.DataFrame:
    rows = []
    for plan in plans:
        row = _place(plan)
        for name, title in _present(plan):
            row[title] = f"{100 * plan['check'][name]['nearest']['mean']:.0f}%"
        rows.append(row)
    return pd.DataFrame(rows)


def _table(plans: list[dict[str, Any]]) -> pd.DataFrame:
    """Every number, one row per text, budget and configuration."""
    rows = []
    for plan in plans:
        check = plan["check"]
        decoder = "kl" in check["planned"]
        for name, _ in _present(plan):
            value, low, high = _distance(check[name], decoder)
            ratio = check["ratios"].get(name)
            ends = (None, None) if ratio is None else ratio["interval"] or (None, None)
            rows.append(
                {
                    "text": plan["checked_on"],
                    "budget": plan["configuration"]["budget"],
                    "configuration": name,
                    "distance": value,
                    "low": low,
                    "high": high,
                    "over_planned": None if ratio is None else ratio["mean"],
                    "over_planned_low": ends[0],
                    "over_planned_high": ends[1],
                    "output_error": check[name]["error"]["mean"],
                    "top1" if decoder else "nearest": check[name]["top1" if decoder else "nearest"][
                        "mean"
                    ],
                    "predicted": {
                        "planned": plan["predicted"]["effect"],
                        "uniform": plan["predicted"]["uniform_effect"],
                    }.get(name),
                }
            )
    return pd.DataFrame(rows)


def _place(plan: dict[str, Any]) -> dict[str, str]:
    return {"text": plan["checked_on"], "kept": f"{100 * plan['configuration']['budget']:g}%"}


def _present(plan: dict[str, Any]) -> list[tuple[str, str]]:
    return [(name, title) for name, title in NAMES.items() if name in plan["check"]]


def _with_ends(value: float, ends: Sequence[float] | None) -> str:
    if ends is None:
        return f"{value:.3g}"
    return f"{value:.3g} ({ends[0]:.3g} to {ends[1]:.3g})"


def _decoder(plans: list[dict[str, Any]]) -> bool:
    return "kl" in plans[0]["check"]["planned"]


@styled
def draw_budget_costs(plans: list[dict[str, Any]], *, width: float = DOUBLE) -> Figure:
    """Draw what every configuration costs against the share of tokens kept, text by text."""
    texts = list(dict.fromkeys(plan["checked_on"] for plan in plans))
    decoder = _decoder(plans)
    across = columns(width, len(texts), 2.2)
    height = 0.3 + 2.5 * -(-len(texts) // across)
    model, keys = (plans[0]["configuration"][key] for key in ("model", "prefix"))
    prefix = f", prefix of {keys:,} tokens" if keys else ""
    figure = new_figure(
        width, height, f"{model['name']}{prefix}: distance from dense on unseen text"
    )
    for axis, text in zip(panels(figure, len(texts), across, sharey=True), texts, strict=True):
        rows = [plan for plan in plans if plan["checked_on"] == text]
        budgets = np.array([100 * row["configuration"]["budget"] for row in rows])
        for i, name in enumerate(name for name in NAMES if name in rows[0]["check"]):
            points = np.array([_distance(row["check"][name], decoder) for row in rows])
            error_bars(
                axis, budgets * APART**i, points[:, 0], (points[:, 1], points[:, 2]),
                color=COLOURS[name], marker=MARKERS[name], label=NAMES[name],
            )  # fmt: skip
        unit = "KL (nats per token)" if decoder else "1 - cosine"
        finish(axis, "tokens kept (%)", unit if axis is figure.axes[0] else "", escape(text))
        logarithmic(axis, "y")
        axis.set_xscale("log")
        axis.set_xticks(budgets, [f"{budget:g}" for budget in budgets])
        axis.minorticks_off()
    figure.axes[0].legend()
    return figure


def _distance(found: dict[str, Any], decoder: bool) -> tuple[float, float, float]:
    """Distance of a configuration from dense, with the ends of its interval."""
    measure = found["kl" if decoder else "cosine"]
    value, (low, high) = measure["mean"], measure["interval"] or (measure["mean"],) * 2
    return (value, low, high) if decoder else (1 - value, 1 - high, 1 - low)
