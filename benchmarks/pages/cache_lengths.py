"""The page on caches of equal size at several lengths of the prompt."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import pandas as pd

from benchmarks.cache import CALIBRATION
from benchmarks.finding import Finding, markdown_table
from benchmarks.pages.cache_charts import draw_lengths
from benchmarks.pages.cache_parts import ALL, curve_table
from benchmarks.pages.cache_rows import kept_rows, part_rows
from benchmarks.pages.cache_words import (
    best_of_others,
    command,
    kl,
    not_ahead,
    passages,
    ratio,
    wide,
)


def lengths_finding(runs: Sequence[Path]) -> Finding:
    """Make the page.

    Parameters
    ----------
    runs
        Folders of :mod:`benchmarks.cache`, one per model.
    """
    sections, tables, figures = [_legend()], {}, {}
    for name, rows in part_rows(runs, "lengths").items():
        table = pd.concat(
            [
                curve_table(own).assign(prefix=prefix)
                for prefix, own in rows.groupby("prefix", sort=True)
            ],
            ignore_index=True,
        )
        sections.append(_section(rows, table))
        tables |= {f"{name}-lengths": table, f"{name}-lengths-rows": kept_rows(rows)}
        figures[f"{name}-lengths"] = draw_lengths(table, float(rows["budget"].iloc[0]))
    title = "Caches of equal size at several lengths of the prompt"
    return Finding("cache-lengths", title, "\n\n".join(sections), tables, figures)


def _legend() -> str:
    return (
        "Does a plan stay close to dense as prompts grow? As [caches of equal size]"
        "(../cache/cache.md), at one budget: the same texts, rules and measures. Plans and the two "
        f"rules that are calibrated saw three passages of each length, from `{CALIBRATION}`. "
        "KVzip repeats a prompt, and has no numbers where the model has no positions for that. "
        "Over several texts the texts are the units, each with the mean of its passages. Weakest "
        "points: one small model, three texts, and fewer passages the longer they are."
    )


def _section(rows: pd.DataFrame, table: pd.DataFrame) -> str:
    every = table[table["text"] == ALL]
    lengths = sorted(set(table["prefix"]))
    said = [
        f"- {prefix:,} tokens, {passages(rows[rows['prefix'] == prefix])}: "
        + f"{not_ahead(own)} {best_of_others(own)}"
        for prefix in lengths
        for own in (table[table["prefix"] == prefix],)
    ]
    budget = f"{rows['budget'].iloc[0]:g}"
    parts = [
        f"## {rows['model'].iloc[0]}, {100 * float(budget):g}% of the tokens",
        "\n".join(said),
        "**How many times farther from dense than the plan (geometric mean over texts), by length "
        "of the prompt**",
        markdown_table(wide(every[every["configuration"] != "planned"], ratio, "prefix")),
        "**Mean KL to dense, the same passages**",
        markdown_table(wide(every, kl, "prefix")),
        command(rows[rows["prefix"] == lengths[0]], budget, "--passages 3"),
    ]
    return "\n\n".join(parts)
