"""The page on budgets: what plans cost and gain on unseen text, made from stored studies."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pandas as pd
from matplotlib.figure import Figure

from esscher.core.errors import InputError
from esscher.show.budgets import distance, draw_budget_costs
from esscher.show.plans import NAMES
from esscher.studies.reproduce.budgets import load_budget_study
from esscher.studies.reproduce.finding import Finding, markdown_table


def budgets_finding(runs: Sequence[Path]) -> Finding:
    """Make the page.

    Parameters
    ----------
    runs
        Directories of :func:`esscher.studies.reproduce.budgets.budget_study`, one per model.
    """
    if not runs:
        raise InputError("there are no runs to make a page of; give directories of budget studies")
    sections: list[str] = []
    tables: dict[str, pd.DataFrame] = {}
    figures: dict[str, Figure] = {}
    for folder in runs:
        results = load_budget_study(folder)
        name = folder.name
        sections.append(_section(results))
        tables[name] = _table(results)
        figures[name] = draw_budget_costs(results)
    return Finding(
        "budgets",
        "Budgets: what plans cost, and what they gain over uniform ones",
        "\n\n".join([_what(), *sections]),
        tables,
        figures,
    )


def _what() -> str:
    return (
        "Plans calibrated on one text and checked on others ([how](../../plan.md)). All "
        "configurations keep the same number of tokens in all. *Planned* and *uniform* choose "
        "tokens inside a head by the same rule; *heavy hitters* keeps those that the last queries "
        "attend (as SnapKV does), *sinks + recent* the first and the last ones (as StreamingLLM "
        "does). In brackets: 95% intervals over passages. Ratios are of the distance from dense to "
        "that of the plan, paired passage by passage: above 1 the plan is closer."
    )


def _section(results: dict[str, Any]) -> str:
    configuration = results["configuration"]
    decoder = "kl" in results["found"][0]["check"]["planned"]
    keys = configuration["prefix"] or configuration["length"]
    budgets = "; ".join(
        f"{100 * float(share):g}%: {found['smallest']:,} to {found['largest']:,} tokens a key head"
        for share, found in results["budgets"].items()
    )
    parts = [
        f"## {configuration['model']['name']}",
        f"{configuration['passages']} calibration passages, {configuration['check_passages']} "
        f"unseen passages of each text, {keys:,} tokens"
        + (f" and {configuration['length'] - keys} queries after them" if decoder else "")
        + f", seed {configuration['seed']}. Planned budgets: {budgets}.",
        f"**Distance from dense: {'KL in nats per token' if decoder else '1 - cosine'}**",
        markdown_table(_costs(results, decoder)),
        "**How many times closer the plan is, and how good its predictions were**",
        markdown_table(_gains(results)),
    ]
    if decoder:
        parts += [
            "**Agreement of the most likely token, and perplexity over that of dense**",
            markdown_table(_agreement(results)),
        ]
    else:
        parts += [
            "**Passages that keep their nearest neighbour**",
            markdown_table(_neighbours(results)),
        ]
    return "\n\n".join(parts)


def _costs(results: dict[str, Any], decoder: bool) -> pd.DataFrame:
    rows = []
    for found in results["found"]:
        row = _place(found)
        for name, title in _present(found):
            value, low, high = distance(found["check"][name], decoder)
            row[title] = _with_ends(value, (low, high))
        rows.append(row | {"predicted": f"{found['predicted']:.2g}"})
    return pd.DataFrame(rows)


def _gains(results: dict[str, Any]) -> pd.DataFrame:
    rows = []
    for found in results["found"]:
        check, row = found["check"], _place(found)
        for name, title in _present(found):
            if name != "planned":
                ratio = check["ratios"][name]
                row[f"over {title}"] = _with_ends(ratio["mean"], ratio["interval"])
        row["earned"] = "yes" if check["earned"] else "no"
        row["heads within a factor of 1.5"] = f"{100 * check['heads']['within_factor']:.0f}%"
        rows.append(row)
    return pd.DataFrame(rows)


def _agreement(results: dict[str, Any]) -> pd.DataFrame:
    rows = []
    for found in results["found"]:
        row = _place(found)
        for name, title in _present(found):
            top, ratio = (found["check"][name][k]["mean"] for k in ("top1", "perplexity_ratio"))
            row[title] = f"{100 * top:.1f}%, {ratio:.3f}"
        rows.append(row)
    return pd.DataFrame(rows)


def _neighbours(results: dict[str, Any]) -> pd.DataFrame:
    rows = []
    for found in results["found"]:
        row = _place(found)
        for name, title in _present(found):
            row[title] = f"{100 * found['check'][name]['nearest']['mean']:.0f}%"
        rows.append(row)
    return pd.DataFrame(rows)


def _table(results: dict[str, Any]) -> pd.DataFrame:
    """Every number, one row per text, budget and configuration."""
    rows = []
    for found in results["found"]:
        check = found["check"]
        decoder = "kl" in check["planned"]
        for name, _ in _present(found):
            value, low, high = distance(check[name], decoder)
            ratio = check["ratios"].get(name)
            ends = (None, None) if ratio is None else ratio["interval"] or (None, None)
            rows.append(
                {
                    "text": found["text"],
                    "budget": found["budget"],
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
                        "planned": found["predicted"],
                        "uniform": found["predicted_uniform"],
                    }.get(name),
                }
            )
    return pd.DataFrame(rows)


def _place(found: dict[str, Any]) -> dict[str, str]:
    return {"text": found["text"], "kept": f"{100 * found['budget']:g}%"}


def _present(found: dict[str, Any]) -> list[tuple[str, str]]:
    return [(name, title) for name, title in NAMES.items() if name in found["check"]]


def _with_ends(value: float, ends: Sequence[float] | None) -> str:
    if ends is None:
        return f"{value:.3g}"
    return f"{value:.3g} ({ends[0]:.3g} to {ends[1]:.3g})"
