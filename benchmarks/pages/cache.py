"""The page on caches of equal size: plans, uniform budgets and published rules."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

from benchmarks.cache import CALIBRATION, RESULTS, TEXTS
from benchmarks.pages.cache_parts import (
    ALL,
    ablation_table,
    curve_table,
    small_table,
    task_table,
)
from esscher.core.errors import InputError
from esscher.core.untrusted.documents import read_json
from esscher.engine.cache.published import RULES
from esscher.show.cells import ROW
from esscher.show.chart import figure, guides, lines, panel, points
from esscher.show.drawing import Plot
from esscher.show.scales import Axis, Series
from esscher.show.theme import PALETTE, limits
from esscher.studies.plan.words import name_of
from esscher.studies.reproduce.finding import Finding, markdown_table

#: Points that a panel with names must have to stand beside another.
WIDE = 230.0
#: How the parts of plans are called.
CALLED = {
    "planned": "planned",
    "planned:last": "planned, score last",
    "planned:repeat": "planned, score repeat",
    "dense": "dense",
}


def cache_finding(runs: Sequence[Path]) -> Finding:
    """Make the page.

    Parameters
    ----------
    runs
        Folders of :mod:`benchmarks.cache`, one per model.
    """
    if not runs:
        raise InputError("there are no runs to make a page of; give folders of benchmarks.cache")
    sections: list[str] = [_legend()]
    tables: dict[str, pd.DataFrame] = {}
    figures: dict[str, Plot] = {}
    for folder in runs:
        rows = stored_rows(folder)
        for part, write in SECTIONS.items():
            own = rows[rows["part"] == part].dropna(axis="columns", how="all")
            if len(own):
                text, table, plot = write(own)
                sections.append(text)
                tables[f"{folder.name}-{part}"] = table
                if plot is not None:
                    figures[f"{folder.name}-{part}"] = plot
    title = "Caches of equal size: plans, uniform budgets and published rules"
    return Finding("cache", title, "\n\n".join(sections), tables, figures)


def stored_rows(folder: Path) -> pd.DataFrame:
    """All results of a folder, one row per passage or item, budget and configuration."""
    rows: list[dict[str, Any]] = []
    for path in sorted(folder.rglob(RESULTS)):
        found = read_json(path)
        dense = found.pop("dense", None)
        own = found.pop("rows")
        if dense is not None:
            budgets = sorted({row["budget"] for row in own})
            own += [{"configuration": "dense", "budget": budget, **dense} for budget in budgets]
        rows += [{**found, **row} for row in own]
    if not rows:
        raise InputError(f"there are no results in {folder}; make them with benchmarks.cache")
    return pd.DataFrame(rows)


def called(configuration: str) -> str:
    """What a configuration is called."""
    return CALLED.get(configuration) or name_of(configuration)


def _legend() -> str:
    return (
        "How close to dense a model stays when its cache keeps part of a prompt: "
        "[plans](../../plan.md), uniform budgets with the same selection, and published rules "
        "([our versions](../kvpress/kvpress.md)), all with the same number of tokens (counted, "
        "and refused if it differs). KL is that of the next-token laws of the 128 tokens after "
        "the prompt, in nats per token. Ratios are of a KL to that of the plan, paired passage "
        "by passage: above 1 the plan is closer. In brackets: Student's 95% intervals, of "
        "ratios on logarithms; without brackets there is one passage. *All* is over the "
        "passages of all texts, which are taken for independent. Plans and the two rules that "
        "are calibrated (LU-KV and DuoAttention style) saw "
        f"`{CALIBRATION}` alone. Weakest points: one small model; few passages, from one source of "
        "each kind; the published rules are our own versions of them; many comparisons stand here, "
        "and no interval is corrected for that."
    )


def _curves(rows: pd.DataFrame) -> tuple[str, pd.DataFrame, Plot | None]:
    table = curve_table(rows)
    prefix = int(rows["prefix"].iloc[0])
    few = _passages(rows)
    parts = [
        f"## {rows['model'].iloc[0]}: KL against the share of tokens kept",
        f"Prompts of {prefix:,} tokens, {few}. " + _not_ahead(table),
        f"**How many times farther from dense than the plan, {_count(table, ALL)} passages**",
        markdown_table(_wide(table[table["text"] == ALL], _ratio)),
        "**KL to dense, the same passages**",
        markdown_table(_wide(table[table["text"] == ALL], _kl)),
        "**Share of positions with the same most likely token**",
        markdown_table(_wide(table[table["text"] == ALL], lambda row: f"{100 * row['top1']:.1f}%")),
        "**Text by text: the published rule that comes closest**",
        markdown_table(_closest(table)),
        _pyramid(table),
        _unmeasured(table),
        _command("0.25", prefix, int(rows["passage"].max()) + 1),
        "With `--json` it prints the row of one text: `check.<configuration>.kl`, and "
        "`check.ratios` to the plan. These are the same numbers: a test holds the script of this "
        "page to those of the command.",
    ]
    return "\n\n".join(part for part in parts if part), table, draw_curves(table, prefix)


def _lengths(rows: pd.DataFrame) -> tuple[str, pd.DataFrame, Plot | None]:
    tables = {
        int(prefix): curve_table(own).assign(prefix=prefix)
        for prefix, own in rows.groupby("prefix")
    }
    table = pd.concat(tables.values(), ignore_index=True)
    every = table[table["text"] == ALL]
    wide = pd.DataFrame(
        [
            {"configuration": called(str(name))}
            | {f"{int(row['prefix']):,}": _ratio(row) for _, row in own.iterrows()}
            for name, own in every.groupby("configuration", sort=False)
            if name != "planned"
        ]
    )
    shortest = min(tables)
    parts = [
        f"## {rows['model'].iloc[0]}: other lengths of the prompt",
        f"{100 * rows['budget'].iloc[0]:g}% of the tokens; plans from three calibration passages. "
        + " ".join(
            f"{prefix:,} tokens, {_passages(rows[rows['prefix'] == prefix])}: {_not_ahead(own)}"
            for prefix, own in tables.items()
        ),
        "**How many times farther from dense than the plan, by length of the prompt**",
        markdown_table(wide),
        _command("0.25", shortest, int(rows["passage"].max()) + 1, "--passages 3"),
    ]
    return "\n\n".join(parts), table, None


def _tasks(rows: pd.DataFrame) -> tuple[str, pd.DataFrame, Plot | None]:
    table = task_table(rows)
    budgets = sorted(set(table["budget"]), reverse=True)
    prefix = int(rows["prefix"].iloc[0])
    parts = [
        f"## {rows['model'].iloc[0]}: questions about texts",
        f"Contexts of {prefix:,} tokens, sentences hidden in repeated noise and in the text of the "
        f"novel, in turn; the question comes after the context was reduced ([tasks](../../plan.md)"
        "). Exact match is the share of the expected answers that occur, with Wilson's interval; "
        "below it stands the mean difference in the log-probability of the right answer from the "
        "plan's (nats per token, paired by item; above 0 the other is better than the plan).",
    ]
    for budget in budgets:
        own = table[table["budget"] == budget]
        parts += [
            f"**{100 * budget:g}% of the tokens: exact match**",
            " ".join(part for part in (_right(own), _cannot(own)) if part),
            markdown_table(_task_wide(own, _score)),
            f"**{100 * budget:g}%: log-probability of the right answer, less that of the plan**",
            _task_verdict(own),
            markdown_table(_task_wide(own[own["configuration"] != "planned"], _difference)),
        ]
    task = rows.groupby("task")["item"].nunique().idxmax()
    count = int(rows[rows["task"] == task]["item"].max()) + 1
    asked = [
        f"{task} {', '.join(str(int(number)) for number in sorted(set(own['item'])))}"
        for task, own in rows.groupby("task")
    ]
    unmeasured = _unmeasured(table)
    parts.append(
        "One column of both tables:\n\n```sh\nesscher plan demo:smollm2 "
        f"--text {CALIBRATION} --check {TEXTS['novel']} --budget {budgets[0]:g} --prefix {prefix} "
        f"--passages 3 --check-passages 4 --tasks {task} --task-items {max(2, count)} "
        "--against all\n```\n\n"
        "With `--score last` or `--score repeat` it is that of the plan with other scores. Items "
        f"that were asked (even numbers in noise, odd ones in text): {'; '.join(asked)}. "
        + unmeasured
    )
    return "\n\n".join(part for part in parts if part), table, draw_tasks(table)


def _ablation(rows: pd.DataFrame) -> tuple[str, pd.DataFrame, Plot | None]:
    table = ablation_table(rows)
    prefix = int(rows["prefix"].iloc[0])
    budgets = sorted(set(table["budget"]), reverse=True)
    wide = pd.DataFrame(
        [
            {"instead of the plan": name}
            | {
                f"{100 * row['budget']:g}%": _ratio(row)
                for _, row in own.sort_values("budget", ascending=False).iterrows()
            }
            for name, own in table.groupby("variant", sort=False)
        ]
    )
    parts = [
        f"## {rows['model'].iloc[0]}: what the parts of the plan are worth",
        f"Prompts of {prefix:,} tokens, {_passages(rows)}. The plan has budgets by Fisher effects, "
        "a weighted sample with the best power of every head, scores by all queries, and four "
        "passages of prose and two of retrieval as its calibration. "
        + " ".join(_no_loss(table, budget) for budget in budgets),
        "**KL over that of the plan**",
        markdown_table(wide),
        _seeds(table),
        "*Sparing three heads*: the three key heads to which the plan gives most keep everything, "
        "the others share the rest equally. *By output error*: budgets that minimise the summed "
        "squared errors of the heads' outputs, unweighted, with the powers that are best there. "
        "Rows with other scores, selections and calibrations can be had from the command: the "
        "first is the plan, the others are what takes its place.",
        f"```sh\nesscher plan demo:smollm2 --text {CALIBRATION} --check {TEXTS['novel']} "
        f"--budget 0.25 --prefix {prefix} --check-passages {int(rows['passage'].max()) + 1}\n"
        "# the same with --score last, --selection topk, or --calibrate prose --passages 4\n```",
    ]
    return "\n\n".join(part for part in parts if part), table, draw_ablation(table)


def _small(rows: pd.DataFrame) -> tuple[str, pd.DataFrame, Plot | None]:
    table = small_table(rows)
    prefix = int(rows["prefix"].iloc[0])
    shown = pd.DataFrame(
        {
            "kept": [f"{100 * budget:g}%" for budget in table["budget"]],
            "configuration": [called(name) for name in table["configuration"]],
            "text": table["text"],
            "passages": table["passages"],
            "predicted KL": [
                _ends(r["predicted"], r["predicted_low"], r["predicted_high"])
                for _, r in table.iterrows()
            ],
            "realised KL": [_ends(r["kl"], r["kl_low"], r["kl_high"]) for _, r in table.iterrows()],
            "realised / predicted": [
                _ends(r["over_predicted"], r["over_predicted_low"], r["over_predicted_high"])
                for _, r in table.iterrows()
            ],
        }
    )
    parts = [
        f"## {rows['model'].iloc[0]}: predictions at small budgets",
        f"Prompts of {prefix:,} tokens, {_passages(rows)}. Predictions are cross-validated over "
        "the calibration passages of prose; the interval of the last column is about the unseen "
        "passages alone, and takes the prediction as it is.",
        markdown_table(shown),
        _command("0.125", prefix, int(rows["passage"].max()) + 1, against="snapkv"),
    ]
    return "\n\n".join(parts), table, None


SECTIONS = {
    "curves": _curves,
    "lengths": _lengths,
    "tasks": _tasks,
    "ablation": _ablation,
    "small": _small,
}


def _passages(rows: pd.DataFrame) -> str:
    """How many passages of each text."""
    counts = rows.groupby("text", sort=False)["passage"].nunique()
    return ", ".join(f"{n} passage{'s' * (n > 1)} of {text}" for text, n in counts.items())


def _count(table: pd.DataFrame, text: str) -> str:
    counts = sorted(set(table[table["text"] == text]["passages"]))
    return " to ".join(str(n) for n in dict.fromkeys((counts[0], counts[-1])))


def _not_ahead(table: pd.DataFrame) -> str:
    """Where the plan is not ahead beyond the interval: said before anything else."""
    others = table[(table["configuration"] != "planned") & (table["text"] == ALL)]
    ahead = others[others["over_planned_high"] < 1]
    tied = others[(others["over_planned_low"] <= 1) & (others["over_planned_high"] >= 1)]
    single = table[(table["text"] != ALL) & (table["over_planned"] <= 1)]
    said = [
        f"**{words}**: {_places(own)}."
        for words, own in (
            ("Closer to dense than the plan", ahead),
            ("Not told apart from the plan", tied),
            ("Closer than the plan in the mean over the passages of one text", single),
        )
        if len(own)
    ]
    if not said:
        said.append("Nothing was closer to dense than the plan, or not told apart from it.")
    behind = len(others) - len(ahead) - len(tied)
    said.append(
        f"Over the passages of all texts, the plan is closer to dense beyond the interval in "
        f"{behind} of {len(others)} comparisons."
    )
    return " ".join(said)


def _places(table: pd.DataFrame) -> str:
    """Configurations with their ratios, budget by budget."""
    said = []
    for budget, own in table.groupby("budget"):
        names = [
            called(row["configuration"])
            + (f" on {row['text']}" if row["text"] != ALL else "")
            + f" {_ratio(row)}"
            for _, row in own.iterrows()
        ]
        said.append(f"at {100 * float(str(budget)):g}% {', '.join(names)}")
    return "; ".join(said)


def _no_loss(table: pd.DataFrame, budget: float) -> str:
    """Parts without which nothing is lost, as far as these passages tell."""
    own = table[(table["budget"] == budget) & ~table["variant"].str.startswith("seed")]
    tied = own[(own["over_planned_low"] <= 1) & (own["over_planned_high"] >= 1)]
    ahead = own[own["over_planned_high"] < 1]
    lost = own[own["over_planned_low"] > 1]
    said = [
        f"{words}: {'; '.join(f'{r.variant} ({_ratio(r._asdict())})' for r in found.itertuples())}."
        for words, found in (
            ("Closer to dense than the plan", ahead),
            ("Not told apart from it", tied),
            ("Farther", lost),
        )
        if len(found)
    ]
    return f"At {100 * budget:g}%: " + " ".join(said)


def _seeds(table: pd.DataFrame) -> str:
    own = table[table["variant"].str.startswith("seed") & table["spread"].notna()]
    if not len(own):
        return ""
    said = [
        f"{100 * row['budget']:g}%: {row['spread']:.2f}"
        for _, row in own.drop_duplicates("budget").iterrows()
    ]
    return (
        "Another seed of the samples changes the KL of a passage by a factor (exponential of the "
        "standard deviation of its logarithm over 4 seeds, mean over passages) of "
        + "; ".join(said)
        + "."
    )


def _right(table: pd.DataFrame) -> str:
    """Which others have as many right answers as the plan, or more."""
    said = []
    for words, better in (("More right answers than the plan", True), ("As many", False)):
        tasks = []
        for task, own in table.groupby("task", sort=False):
            others = own[~own["configuration"].isin(["planned", "dense"])]
            plan = float(own[own["configuration"] == "planned"]["score"].iloc[0])
            found = others[others["score"] > plan if better else others["score"] == plan]
            if len(found) and (better or plan > 0):
                tasks.append(f"{task}: {', '.join(called(n) for n in found['configuration'])}")
        if tasks:
            said.append(f"**{words}**: {'; '.join(tasks)}.")
    return " ".join(said)


def _cannot(table: pd.DataFrame) -> str:
    dense = table[table["configuration"] == "dense"]
    bad = dense[dense["score"] < 0.5]
    if not len(bad):
        return ""
    names = ", ".join(str(task) for task in bad["task"])
    return f"Dense cannot: {names} (below one half; such columns say nothing about caches)."


def _task_verdict(table: pd.DataFrame) -> str:
    """Where another is not behind the plan, said first."""
    others = table[~table["configuration"].isin(["planned", "dense"])]
    known = others[others["difference_low"].notna()]
    ahead = known[known["difference_low"] > 0]
    tied = known[(known["difference_low"] <= 0) & (known["difference_high"] >= 0)]
    behind = known[known["difference_high"] < 0]
    said = []
    for words, own in (("Ahead of the plan", ahead), ("Not told apart from it", tied)):
        if len(own):
            where = [f"{called(r.configuration)} on {r.task}" for r in own.itertuples()]
            said.append(f"**{words}**: {', '.join(where)}.")
    said.append(f"Behind the plan in {len(behind)} of {len(known)} comparisons with an interval.")
    return " ".join(said)


def _task_wide(table: pd.DataFrame, shown: Any) -> pd.DataFrame:
    heads = table.drop_duplicates("task")
    names = {row.task: f"{row.task} ({_items(row.n)})" for row in heads.itertuples()}
    return pd.DataFrame(
        [
            {"configuration": called(str(name))}
            | {names[row["task"]]: shown(row) for _, row in own.iterrows()}
            for name, own in table.groupby("configuration", sort=False)
        ]
    )


def _items(count: int) -> str:
    return f"{count} item{'s' * (count != 1)}"


def _wide(table: pd.DataFrame, shown: Any) -> pd.DataFrame:
    rows = []
    for name, own in table.groupby("configuration", sort=False):
        cells = {f"{100 * row['budget']:g}%": shown(row) for _, row in own.iterrows()}
        if any(cells.values()):
            rows.append({"configuration": called(str(name))} | cells)
    return pd.DataFrame(rows)


def _closest(table: pd.DataFrame) -> pd.DataFrame:
    rows = []
    for (text, budget), own in table.groupby(["text", "budget"], sort=False):
        by = own.set_index("configuration", drop=False)
        rules = by.drop(index=["planned", "uniform"])
        nearest = rules["over_planned"].idxmin()
        rows.append(
            {
                "text": text,
                "kept": f"{100 * float(str(budget)):g}%",
                "passages": int(by["passages"].iloc[0]),
                "planned": _kl(by.loc["planned"]),
                "closest rule": called(str(nearest)),
                "its KL": _kl(by.loc[nearest]),
                "over the plan's": _ratio(by.loc[nearest]),
                "uniform over the plan's": _ratio(by.loc["uniform"]),
            }
        )
    return pd.DataFrame(rows)


def _pyramid(table: pd.DataFrame) -> str:
    wide = table[table["text"] == ALL].pivot(index="budget", columns="configuration", values="kl")
    same = [f"{100 * budget:g}%" for budget in wide.index[wide["pyramid"] == wide["snapkv"]]]
    if not same:
        return ""
    return (
        f"PyramidKV keeps what SnapKV does at {', '.join(same)}: its smallest layer would have "
        "fewer tokens than SnapKV's window of 64, and it then falls back to equal budgets, as in "
        "kvpress."
    )


def _unmeasured(table: pd.DataFrame) -> str:
    names = [called(name) for name in RULES if name not in set(table["configuration"])]
    return f"Not measured here: {', '.join(names)}." if names else ""


def _command(budget: str, prefix: int, passages: int, more: str = "", against: str = "all") -> str:
    line = (
        f"esscher plan demo:smollm2 --text {CALIBRATION} --check {TEXTS['novel']} --budget "
        f"{budget} --prefix {prefix} --check-passages {passages} --against {against} {more}"
    )
    return f"One row again (texts as in the data folder):\n\n```sh\n{line.strip()}\n```"


def _ratio(row: Any) -> str:
    if row["configuration"] == "planned":
        return ""
    return _ends(row["over_planned"], row["over_planned_low"], row["over_planned_high"])


def _kl(row: Any) -> str:
    return _ends(row["kl"], row["kl_low"], row["kl_high"])


def _score(row: Any) -> str:
    return f"{100 * row['score']:.0f}% ({100 * row['low']:.0f} to {100 * row['high']:.0f})"


def _difference(row: Any) -> str:
    return _ends(row["difference"], row["difference_low"], row["difference_high"], ".2f")


def _ends(value: float, low: float, high: float, form: str = ".3g") -> str:
    def shown(x: float) -> str:
        return f"{float(f'{x:.3g}'):,.0f}" if form == ".3g" and abs(x) >= 1000 else f"{x:{form}}"

    return shown(value) + ("" if np.isnan(low) else f" ({shown(low)} to {shown(high)})")


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
            f"Prompts of {prefix:,} tokens: distance from dense on unseen text",
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
            panel(zero, drawn, title=f"{task}, {_items(int(rows['n'].max()))}", height=high)
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
