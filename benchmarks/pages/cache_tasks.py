"""The page on questions about texts whose cache was reduced."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import pandas as pd

from benchmarks.cache import CALIBRATION, TEXTS
from benchmarks.finding import Finding, markdown_table
from benchmarks.pages.cache_charts import draw_shares, draw_tasks
from benchmarks.pages.cache_parts import LEAST, task_table, total_table
from benchmarks.pages.cache_rows import kept_rows, part_rows
from benchmarks.pages.cache_words import (
    called,
    cannot,
    difference,
    items,
    right,
    score,
    task_verdict,
    task_wide,
    total,
    total_verdict,
    unmeasured,
    where,
    wide,
)

#: The budget of which every task is shown.
SHOWN = 0.25
#: Share of dense answers that a plan is meant to keep.
GOAL = 0.95
#: What sentences are hidden in, and what it is called.
HAYSTACKS = {"noise": "repeated noise", "text": "the novel"}


def tasks_finding(runs: Sequence[Path], least: float = LEAST) -> Finding:
    """Make the page.

    Parameters
    ----------
    runs
        Folders of :mod:`benchmarks.cache`, one per model.
    least
        Score of the dense model from which a task counts.
    """
    sections, tables, figures = [_legend()], {}, {}
    for name, rows in part_rows(runs, "tasks").items():
        table, totals = task_table(rows), total_table(rows, least)
        shares = total_table(_at_all_shares(rows), least)
        sections += _lengths(rows, table, totals)
        for prefix in sorted(set(rows["prefix"])):
            own = [x[x["prefix"] == prefix] for x in (rows, table, shares)]
            sections.append(_section(*own, least))
        shortest = rows[rows["prefix"] == rows["prefix"].min()]
        tables |= {
            f"{name}-tasks": table,
            f"{name}-tasks-totals": totals,
            f"{name}-tasks-shares": shares,
            f"{name}-tasks-rows": kept_rows(rows),
        }
        whole = shares[shares["prefix"] == rows["prefix"].min()]
        if whole["budget"].nunique() > 1:
            by_task = task_table(_at_all_shares(shortest))
            figures[f"{name}-tasks-shares"] = draw_shares(by_task, whole)
        shown = shortest["budget"] == _shown(shortest)
        figures[f"{name}-tasks"] = draw_tasks(task_table(shortest[shown]))
    title = "Questions about texts whose cache was reduced"
    return Finding("cache-tasks", title, "\n\n".join(sections), tables, figures)


def _legend() -> str:
    return (
        "Does a smaller cache still hold what will be asked? Sentences are hidden in repeated "
        "noise and in the text of the novel, in turn; the context is reduced, and then the "
        "question comes ([tasks](../../plan.md#questions-about-texts)). Configurations as in "
        "[caches of equal size](../cache/cache.md), all with the same number of tokens. Exact "
        "match is the share of the expected answers that occur. The log-probability is that of "
        "the right answer, in nats per token. Differences are paired by item. Tasks that the dense "
        f"model fails are left out of totals. Plans saw three passages of `{CALIBRATION}`, one of "
        "them with hidden sentences of other words. Weakest points: one small model, few items, "
        "one book; quotes 3 to 5 were in view when the power of the sample was chosen, quotes and "
        "values from 8 on while other scores were tried, of which none was taken; no interval is "
        "corrected for the number of comparisons."
    )


def _at_all_shares(rows: pd.DataFrame) -> pd.DataFrame:
    """Items that were asked at every share of the tokens of their length."""
    wanted = rows.groupby("prefix")["budget"].transform("nunique")
    asked = rows.groupby(["prefix", "task", "item"])["budget"].transform("nunique")
    return rows[asked == wanted]


def _shown(table: pd.DataFrame) -> float:
    """The budget of which every task is shown: that of the page, or the largest there is."""
    budgets = set(table["budget"])
    return SHOWN if SHOWN in budgets else max(budgets)


def _lengths(rows: pd.DataFrame, table: pd.DataFrame, totals: pd.DataFrame) -> list[str]:
    """A section on all lengths of the context, if there are several."""
    shown = _shown(table)
    own = totals[totals["budget"] == shown]
    if own["prefix"].nunique() < 2:
        return []
    said = [
        f"- {where('prefix', prefix)}: {goal}"
        for prefix, one in table[table["budget"] == shown].groupby("prefix")
        if (goal := _goal(one))
    ]
    return [
        f"## {rows['model'].iloc[0]}, {where('budget', shown)} of the tokens: exact match by "
        "length of the context",
        total_verdict(own, "prefix"),
        "\n".join(said),
        markdown_table(wide(own, total, "prefix")),
    ]


def _section(rows: pd.DataFrame, table: pd.DataFrame, shares: pd.DataFrame, least: float) -> str:
    prefix, shown = int(rows["prefix"].iloc[0]), _shown(table)
    own = table[table["budget"] == shown]
    percent = where("budget", shown)
    asked = rows.groupby("task")["item"].nunique()
    counts = ", ".join(f"{n} of {task}" for task, n in asked.items())
    parts = [
        f"## {rows['model'].iloc[0]}, contexts of {prefix:,} tokens",
        f"Items: {counts}.",
        *_shares(shares),
        *_haystacks(rows, shown, least),
        f"**{percent} of the tokens: exact match, task by task**",
        " ".join(part for part in (_goal(own), right(own), cannot(own)) if part),
        markdown_table(task_wide(own, score)),
        f"**{percent}: log-probability of the right answer, less that of the plan** (above 0 the "
        "other is better)",
        task_verdict(own),
        markdown_table(task_wide(own[own["configuration"] != "planned"], difference)),
        unmeasured(table),
        _again(rows, shown, prefix),
    ]
    return "\n\n".join(part for part in parts if part)


def _shares(shares: pd.DataFrame) -> list[str]:
    if shares["budget"].nunique() < 2:
        return []
    return [
        "**Exact match by share of tokens kept, over the items that were asked at all of them**",
        total_verdict(shares),
        markdown_table(wide(shares, total)),
    ]


def _haystacks(rows: pd.DataFrame, shown: float, least: float) -> list[str]:
    """A table by what the sentences are hidden in."""
    own = rows[rows["budget"] == shown]
    tables = {
        f"in {words} ({items(int(found['n'].max()))})": found
        for kind, words in HAYSTACKS.items()
        if len(found := total_table(own[own["haystack"] == kind], least))
    }
    if len(tables) < 2:
        return []
    columns = [
        wide(found, total).set_index("configuration").iloc[:, 0].rename(name)
        for name, found in tables.items()
    ]
    return [
        f"**{where('budget', shown)} of the tokens: exact match by what the sentences are hidden "
        "in** (tasks that the dense model fails there are left out)",
        markdown_table(pd.concat(columns, axis=1).reset_index()),
    ]


def _goal(table: pd.DataFrame) -> str:
    """Where plans keep as much of the dense score as they should, and where not."""
    by = table.pivot(index="task", columns="configuration", values="score")
    by = by[by["dense"] >= LEAST]
    said = []
    for name in ("planned", "planned:repeat"):
        if name not in by:
            continue
        short = by[by[name] < GOAL * by["dense"]]
        kept = len(by) - len(short)
        missed = ", ".join(f"{task} {r[name] / r['dense']:.2f}" for task, r in short.iterrows())
        said.append(
            f"{called(name).capitalize()}: at least {GOAL:g} of the dense score in {kept} of "
            f"{len(by)} tasks" + (f"; less in {missed}." if missed else ".")
        )
    return " ".join(said) if len(by) else ""


def _again(rows: pd.DataFrame, budget: float, prefix: int) -> str:
    task = rows.groupby("task")["item"].nunique().idxmax()
    count = int(rows[rows["task"] == task]["item"].max()) + 1
    return (
        f"One column of both tables:\n\n```sh\nesscher plan {rows['model'].iloc[0]} "
        f"--text {CALIBRATION} --check {TEXTS['novel']} --budget {budget:g} --prefix {prefix} "
        f"--passages 3 --check-passages 4 --tasks {task} --task-items {max(2, count)} "
        "--against all\n```\n\n"
        "With `--score repeat` it is that of the plan with other scores."
    )
