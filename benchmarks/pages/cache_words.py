"""Words and cells of the page on caches: what is not ahead is said first."""

from __future__ import annotations

from typing import Any

import numpy as np
import pandas as pd
from scipy import stats

from benchmarks.cache import CALIBRATION, TEXTS
from benchmarks.pages.cache_parts import ALL, LEAST, between_texts
from esscher.engine.cache.published import RULES
from esscher.studies.plan.words import name_of

#: How the parts of plans are called.
CALLED = {
    "planned": "planned",
    "planned:last": "planned, score last",
    "planned:repeat": "planned, score repeat",
    "dense": "dense",
}
#: Rules that stored results hold and Esscher had once.
FORMER = {
    "tova": "TOVA",
    "pyramid": "PyramidKV",
    "criticalkv": "CriticalKV",
    "lukv": "LU-KV style",
    "duo": "DuoAttention style",
}


def called(configuration: str) -> str:
    """What a configuration is called."""
    return (CALLED | FORMER).get(configuration) or name_of(configuration)


def passages(rows: pd.DataFrame) -> str:
    """How many passages of each text."""
    counts = rows.groupby("text", sort=False)["passage"].nunique()
    return ", ".join(f"{n} passage{'s' * (n > 1)} of {text}" for text, n in counts.items())


def count(table: pd.DataFrame, text: str) -> str:
    counts = sorted(set(table[table["text"] == text]["passages"]))
    return " to ".join(str(n) for n in dict.fromkeys((counts[0], counts[-1])))


def not_ahead(table: pd.DataFrame) -> str:
    """Where the plan is not ahead beyond the interval: said before anything else."""
    others = table[(table["configuration"] != "planned") & (table["text"] == ALL)]
    # rules that keep the same tokens are one
    others = others.drop_duplicates(["budget", "kl", "over_planned"])
    ahead = others[others["over_planned_high"] < 1]
    tied = others[(others["over_planned_low"] <= 1) & (others["over_planned_high"] >= 1)]
    single = table[(table["text"] != ALL) & (table["over_planned"] <= 1)]
    said = [
        f"**{words}**: {places(own)}."
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
        f"Over {units(others)}, the plan is closer to dense beyond the interval in {behind} of "
        f"{len(others)} comparisons (rules that keep the same tokens count once)."
    )
    return " ".join(said)


def units(table: pd.DataFrame) -> str:
    """What intervals are over: texts, or the passages of one."""
    texts, passages = int(table["texts"].iloc[0]), int(table["passages"].iloc[0])
    return f"{texts} texts" if texts > 1 else f"{passages} passage{'s' * (passages > 1)}"


def unlike(rows: pd.DataFrame, budget: float) -> str:
    """How far texts differ in what the plan gains, which passages of one text do not tell."""
    ratios, chance = between_texts(rows, "uniform", budget)
    if not ratios:
        return ""
    listed = ", ".join(f"{ratio:.2g} ({text})" for text, ratio in ratios.items())
    return (
        f"At {100 * budget:g}% uniform budgets are {listed} times as far from dense as the plan; "
        f"that texts do not differ has p = {chance:.1g} (analysis of variance over passages). So "
        "texts are the units, and not their passages. With "
        f"{len(ratios)} of them Student's factor is {stats.t.ppf(0.975, len(ratios) - 1):.1f}, and "
        "intervals are wide: more texts are needed to say how many times closer the plan is on "
        "others."
    )


def best_of_others(table: pd.DataFrame) -> str:
    """What is closest of all others over all texts, by ratio and by mean KL, budget by budget."""
    said: dict[str, list[str]] = {}
    for budget, own in table[table["text"] == ALL].groupby("budget"):
        others = own.set_index("configuration").drop(index="planned")
        names = [called(str(others[by].idxmin())) for by in ("over_planned", "kl")]
        words = names[0] if names[0] == names[1] else f"{names[0]} by ratio, {names[1]} by mean KL"
        said.setdefault(words, []).append(f"{100 * float(str(budget)):g}%")
    listed = "; ".join(f"at {', '.join(where)}: {words}" for words, where in said.items())
    return f"Closest to dense of all others, uniform budgets included: {listed}."


def places(table: pd.DataFrame) -> str:
    """Configurations with their ratios, budget by budget."""
    said = []
    for budget, own in table.groupby("budget"):
        names = [
            called(row["configuration"])
            + (f" on {row['text']}" if row["text"] != ALL else "")
            + f" {ratio(row)}"
            for _, row in own.iterrows()
        ]
        said.append(f"at {100 * float(str(budget)):g}% {', '.join(names)}")
    return "; ".join(said)


def no_loss(table: pd.DataFrame, budget: float) -> str:
    """Parts without which nothing is lost, as far as these passages tell."""
    own = table[(table["budget"] == budget) & ~table["variant"].str.startswith("seed")]
    tied = own[(own["over_planned_low"] <= 1) & (own["over_planned_high"] >= 1)]
    ahead = own[own["over_planned_high"] < 1]
    lost = own[own["over_planned_low"] > 1]
    said = [
        f"{words}: {'; '.join(f'{r.variant} ({ratio(r._asdict())})' for r in found.itertuples())}."
        for words, found in (
            ("Closer to dense than the plan", ahead),
            ("Not told apart from it", tied),
            ("Farther", lost),
        )
        if len(found)
    ]
    return f"At {100 * budget:g}%: " + " ".join(said)


def seeds(table: pd.DataFrame) -> str:
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


def other_runtimes(table: pd.DataFrame) -> str:
    """What a plan for the largest scores gains over published rules that keep these."""
    said = [
        f"at {100 * float(str(budget)):g}% "
        + ", ".join(f"{called(r['configuration'])} {ratio(r)}" for _, r in own.iterrows())
        for budget, own in (table.groupby("budget", sort=False) if len(table) else ())
    ]
    if not said:
        return ""
    return (
        "For runtimes that know no weights: how many times farther from dense published rules are "
        f"than a plan made for the largest scores (`--selection topk`): {'; '.join(said)}."
    )


def right(table: pd.DataFrame) -> str:
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


def cannot(table: pd.DataFrame) -> str:
    dense = table[table["configuration"] == "dense"]
    bad = dense[dense["score"] < LEAST]
    if not len(bad):
        return ""
    names = ", ".join(str(task) for task in bad["task"])
    return f"Dense cannot: {names} (below one half; such columns say nothing about caches)."


def task_verdict(table: pd.DataFrame) -> str:
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


def total(row: Any) -> str:
    """Exact match over all items, with the difference from the plan's."""
    said = f"{100 * row['score']:.0f}%"
    if row["configuration"] == "planned":
        return said
    names = ("difference", "difference_low", "difference_high")
    return said + f": {ends(*(100 * row[name] for name in names), '+.0f')}"


def where(by: str, value: Any) -> str:
    """A share of the tokens, or a length of the context, in words."""
    return f"{100 * float(value):g}%" if by == "budget" else f"{int(value):,} tokens"


def total_verdict(totals: pd.DataFrame, by: str = "budget") -> str:
    """Where another has more right answers than the plan, or is not told apart: said first.

    Parameters
    ----------
    totals
        At several budgets and one length, or at several lengths and one budget.
    by
        The column that tells them apart, ``"budget"`` or ``"prefix"``.
    """
    others = totals[~totals["configuration"].isin(["planned", "dense"])]
    ahead = others[others["difference_low"] > 0]
    tied = others[(others["difference_low"] <= 0) & (others["difference_high"] >= 0)]
    behind = others[others["difference_high"] < 0]
    said = []
    for words, own in (("More than the plan", ahead), ("Not told apart from it", tied)):
        places = [
            f"at {where(by, value)} {', '.join(called(n) for n in one['configuration'])}"
            for value, one in own.groupby(by, sort=False)
        ]
        if places:
            said.append(f"**{words}**: {'; '.join(places)}.")
    said.append(f"Fewer in {len(behind)} of {len(others)} comparisons with an interval.")
    said.append(
        f"{counts(totals, by)}. After the colon: points of difference from the plan, with "
        "Student's 95% interval over items."
    )
    return " ".join(said)


def counts(totals: pd.DataFrame, by: str) -> str:
    """How many items of which tasks there are, and where if that differs."""
    found: dict[str, list[str]] = {}
    for value, own in totals.groupby(by, sort=False):
        tasks = ", ".join(str(own["tasks"].iloc[0]).split())
        said = f"{items(int(own['n'].max()))} of {tasks}"
        found.setdefault(said, []).append(where(by, value))
    if len(found) == 1:
        return next(iter(found))
    return "; ".join(f"{said} at {', '.join(places)}" for said, places in found.items())


def task_wide(table: pd.DataFrame, shown: Any) -> pd.DataFrame:
    heads = table.drop_duplicates("task")
    names = {row.task: f"{row.task} ({items(row.n)})" for row in heads.itertuples()}
    return pd.DataFrame(
        [
            {"configuration": called(str(name))}
            | {names[row["task"]]: shown(row) for _, row in own.iterrows()}
            for name, own in table.groupby("configuration", sort=False)
        ]
    )


def items(count: int) -> str:
    return f"{count} item{'s' * (count != 1)}"


def wide(table: pd.DataFrame, shown: Any, by: str = "budget") -> pd.DataFrame:
    rows = []
    for name, own in table.groupby("configuration", sort=False):
        cells = {where(by, row[by]): shown(row) for _, row in own.iterrows()}
        if any(cells.values()):
            rows.append({"configuration": called(str(name))} | cells)
    return pd.DataFrame(rows)


def closest(table: pd.DataFrame) -> pd.DataFrame:
    """Uniform budgets, and the published rule that is closest by ratio and by mean KL."""
    rows = []
    for (text, budget), own in table.groupby(["text", "budget"], sort=False):
        by = own.set_index("configuration", drop=False)
        rules = by.drop(index=["planned", "uniform"])
        nearest, smallest = (by.loc[rules[name].idxmin()] for name in ("over_planned", "kl"))
        rows.append(
            {
                "text": text,
                "kept": f"{100 * float(str(budget)):g}%",
                "units": units(own),
                "planned, mean KL": kl(by.loc["planned"]),
                "uniform over the plan's": ratio(by.loc["uniform"]),
                "closest rule by ratio": f"{called(nearest['configuration'])}, {ratio(nearest)}",
                "closest rule by mean KL": f"{called(smallest['configuration'])}, {kl(smallest)}",
            }
        )
    return pd.DataFrame(rows)


def unmeasured(table: pd.DataFrame) -> str:
    names = [called(name) for name in RULES if name not in set(table["configuration"])]
    return f"Not measured here: {', '.join(names)}." if names else ""


def command(rows: pd.DataFrame, budget: str, more: str = "", against: str = "all") -> str:
    """The command that redoes one row, for the model and prompts of some results."""
    count = int(rows["passage"].max()) + 1
    line = (
        f"esscher plan {rows['model'].iloc[0]} --text {CALIBRATION} --check {TEXTS['novel']} "
        f"--budget {budget} --prefix {int(rows['prefix'].iloc[0])} --check-passages {count} "
        f"--against {against} {more}"
    )
    return f"One row again (texts as in the data folder):\n\n```sh\n{line.strip()}\n```"


def ratio(row: Any) -> str:
    if row["configuration"] == "planned":
        return ""
    return ends(row["over_planned"], row["over_planned_low"], row["over_planned_high"])


def kl(row: Any) -> str:
    return ends(row["kl"], row["kl_low"], row["kl_high"])


def score(row: Any) -> str:
    return f"{100 * row['score']:.0f}% ({100 * row['low']:.0f} to {100 * row['high']:.0f})"


def difference(row: Any) -> str:
    return ends(row["difference"], row["difference_low"], row["difference_high"], ".2f")


def ends(value: float, low: float, high: float, form: str = ".3g") -> str:
    def shown(x: float) -> str:
        return f"{float(f'{x:.3g}'):,.0f}" if form == ".3g" and abs(x) >= 1000 else f"{x:{form}}"

    return shown(value) + ("" if np.isnan(low) else f" ({shown(low)} to {shown(high)})")
