"""The page on caches of equal size: KL against the share kept, parts of the plan, predictions."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import pandas as pd

from benchmarks.cache import CALIBRATION, TEXTS
from benchmarks.finding import Finding, markdown_table
from benchmarks.pages.cache_charts import draw_ablation, draw_curves
from benchmarks.pages.cache_parts import (
    ALL,
    ablation_table,
    curve_table,
    small_table,
    topk_table,
)
from benchmarks.pages.cache_rows import kept_rows, rows_of
from benchmarks.pages.cache_words import (
    best_of_others,
    called,
    closest,
    command,
    count,
    ends,
    kl,
    no_loss,
    not_ahead,
    other_runtimes,
    passages,
    ratio,
    seeds,
    units,
    unlike,
    unmeasured,
    wide,
)
from esscher.show.content import Plot

#: The budget at which texts are compared.
SHOWN = 0.25
#: First passages of every text that were in view when constants of plans were chosen.
IN_VIEW = 2


def cache_finding(runs: Sequence[Path], name: str = "cache") -> Finding:
    """Make the page.

    Parameters
    ----------
    runs
        Folders of :mod:`benchmarks.cache`, one per model.
    name
        Of the page.
    """
    sections: list[str] = [_legend()]
    tables: dict[str, pd.DataFrame] = {}
    figures: dict[str, Plot] = {}
    for folder, rows in rows_of(runs).items():
        for part, write in SECTIONS.items():
            if part in set(rows["part"]):
                own = rows[rows["part"].isin([part, *WITH.get(part, ())])]
                text, table, plot = write(own.dropna(axis="columns", how="all"))
                sections.append(text)
                tables[f"{folder}-{part}"] = table
                tables[f"{folder}-{part}-rows"] = kept_rows(rows[rows["part"] == part])
                if plot is not None:
                    figures[f"{folder}-{part}"] = plot
    title = "Caches of equal size: plans, uniform budgets and published rules"
    return Finding(name, title, "\n\n".join(sections), tables, figures)


def _legend() -> str:
    return (
        "How close to dense a model stays when its cache keeps part of a prompt: "
        "[plans](../../plan.md), uniform budgets with the same selection, and published rules "
        "([our versions](../kvpress/kvpress.md)), all with the same number of tokens (counted, "
        "and refused if it differs). KL is that of the next-token laws of the 128 tokens after "
        "the prompt, in nats per token; *mean KL* is its arithmetic mean over passages. *Ratios* "
        "are geometric means of a KL over that of the plan, paired passage by passage: above 1 the "
        "plan is closer. In brackets: Student's 95% intervals, of ratios on logarithms; without "
        "brackets there is one passage. For a single text they are over its passages, and speak "
        "about that text alone. *All* is over texts, each with the mean of its passages: these are "
        "the independent units. Plans "
        f"saw `{CALIBRATION}` alone. Weakest points: one small model; few "
        "texts, one of each kind, and few passages of each; the power of the sample and the ridge "
        "of its fit were chosen with the first two passages of each of these texts and three of "
        "the quotes in view, which flatters the plan there; the published rules are our own "
        "versions of them; many comparisons stand here, and no interval is "
        "corrected for that. Other lengths of the prompt have [a page of their own]"
        "(../cache-lengths/cache-lengths.md), and so have [questions about texts]"
        "(../cache-tasks/cache-tasks.md)."
    )


def _curves(rows: pd.DataFrame) -> tuple[str, pd.DataFrame, Plot | None]:
    table = curve_table(rows)
    prefix = int(rows["prefix"].iloc[0])
    few = passages(rows)
    over = f"{units(table[table['text'] == ALL])}, {count(table, ALL)} passages"
    parts = [
        f"## {rows['model'].iloc[0]}: KL against the share of tokens kept",
        f"Prompts of {prefix:,} tokens, {few}. " + not_ahead(table) + " " + best_of_others(table),
        unlike(rows, SHOWN),
        f"**How many times farther from dense than the plan (geometric mean), {over}**",
        markdown_table(wide(table[table["text"] == ALL], ratio)),
        f"**Mean KL to dense, {over}**",
        markdown_table(wide(table[table["text"] == ALL], kl)),
        "**Share of positions with the same most likely token**",
        markdown_table(wide(table[table["text"] == ALL], lambda row: f"{100 * row['top1']:.1f}%")),
        "**Text by text: uniform budgets, and the published rules that come closest**",
        markdown_table(closest(table)),
        *_later(rows),
        unmeasured(table),
        command(rows, "0.25"),
        "With `--json` it prints the row of one text: `check.<configuration>.kl`, and "
        "`check.ratios` to the plan. These are the same numbers: a test holds the script of this "
        "page to those of the command.",
    ]
    return "\n\n".join(part for part in parts if part), table, draw_curves(table, prefix)


def _later(rows: pd.DataFrame) -> list[str]:
    """The same for passages that were not in view when constants were chosen."""
    later = rows[rows["passage"] >= IN_VIEW]
    if later.empty:
        return []
    table = curve_table(later)
    return [
        "**All texts, passages that were not in view when constants were chosen**",
        markdown_table(closest(table[table["text"] == ALL])),
    ]


def _ablation(rows: pd.DataFrame) -> tuple[str, pd.DataFrame, Plot | None]:
    rows, curves = rows[rows["part"] == "ablation"], rows[rows["part"] == "curves"]
    table = ablation_table(rows)
    prefix = int(rows["prefix"].iloc[0])
    budgets = sorted(set(table["budget"]), reverse=True)
    wide = pd.DataFrame(
        [
            {"instead of the plan": name}
            | {
                f"{100 * row['budget']:g}%": ratio(row)
                for _, row in own.sort_values("budget", ascending=False).iterrows()
            }
            for name, own in table.groupby("variant", sort=False)
        ]
    )
    parts = [
        f"## {rows['model'].iloc[0]}: what the parts of the plan are worth",
        f"Prompts of {prefix:,} tokens, {passages(rows)}. The plan has budgets by Fisher effects, "
        "a weighted sample with power 1, fitted to what queries of the prompt get from all of "
        "it, scores by all queries, and four passages of prose and two of retrieval as its "
        "calibration. " + " ".join(no_loss(table, budget) for budget in budgets),
        f"**KL over that of the plan (geometric mean over {units(table)})**",
        markdown_table(wide),
        seeds(table),
        other_runtimes(topk_table(rows, curves)),
        "*Sparing three heads*: the three key heads to which the plan gives most keep everything, "
        "the others share the rest equally. *By output error*: budgets that minimise the summed "
        "squared errors of the heads' outputs, unweighted. *Planned for samples*: nothing is "
        "fitted, and budgets and the power of every head are planned for that. "
        "Rows with other scores, selections and calibrations can be had from the command: the "
        "first is the plan, the others are what takes its place.",
        f"```sh\nesscher plan demo:smollm2 --text {CALIBRATION} --check {TEXTS['novel']} "
        f"--budget 0.25 --prefix {prefix} --check-passages {int(rows['passage'].max()) + 1}\n"
        "# the same with --score last, --selection sample, --selection topk, or with "
        "--calibrate prose --passages 4\n```",
    ]
    return "\n\n".join(part for part in parts if part), table, draw_ablation(table)


def _small(rows: pd.DataFrame) -> tuple[str, pd.DataFrame, Plot | None]:
    rows, trial = rows[rows["part"] == "small"], rows[rows["part"].isin(WITH["small"])]
    table = small_table(rows, trial)
    prefix = int(rows["prefix"].iloc[0])
    shown = pd.DataFrame(
        {
            "kept": [f"{100 * budget:g}%" for budget in table["budget"]],
            "configuration": [called(name) for name in table["configuration"]],
            "text": table["text"],
            "passages": table["passages"],
            "predicted KL": [
                ends(r["predicted"], r["predicted_low"], r["predicted_high"])
                for _, r in table.iterrows()
            ],
            "realised KL": [ends(r["kl"], r["kl_low"], r["kl_high"]) for _, r in table.iterrows()],
            "realised / predicted": [
                ends(r["over_predicted"], r["over_predicted_low"], r["over_predicted_high"])
                for _, r in table.iterrows()
            ],
        }
    )
    parts = [
        f"## {rows['model'].iloc[0]}: predictions at small budgets",
        f"Prompts of {prefix:,} tokens, {passages(rows)}. Predictions are the KL of the "
        "plan on its calibration passages of prose, raised by what budgets cost more on passages "
        "that they were not made from; the interval of the last column is about the unseen "
        "passages of a text, or about texts, alone, and takes the prediction as it is.",
        markdown_table(shown),
        command(rows, "0.125", against="snapkv"),
    ]
    return "\n\n".join(parts), table, None


#: Parts of which sections need the results as well.
WITH = {"small": ("trial", "predicted"), "ablation": ("curves",)}
SECTIONS = {
    "curves": _curves,
    "ablation": _ablation,
    "small": _small,
}
