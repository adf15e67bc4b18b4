"""The page on budgets: what plans cost and gain on unseen text, made from stored plans."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
from scipy import special

from benchmarks.finding import Finding, markdown_table
from esscher.core.errors import InputError
from esscher.math.statistics import LEVEL
from esscher.math.statistics.intervals import family_wise
from esscher.runs.registry import load
from esscher.show.chart import figure, panel, points
from esscher.show.drawing import Plot
from esscher.show.scales import Axis
from esscher.show.theme import limits
from esscher.studies.plan.charts import series
from esscher.studies.plan.compare import verdict_of
from esscher.studies.plan.records import Check, Mean
from esscher.studies.plan.result import Plan
from esscher.studies.plan.study import PlanStudy
from esscher.studies.plan.words import name_of


@dataclass(frozen=True)
class CheckedPlan:
    """A plan, its check, and the name of the text that it was checked on."""

    text: str
    plan: Plan
    check: Check

    @property
    def study(self) -> PlanStudy:
        """How it was made."""
        return self.plan.study

    @property
    def kept(self) -> float:
        """Share of the tokens that it keeps."""
        assert self.study.budget is not None
        return self.study.budget


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
    figures: dict[str, Plot] = {}
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


def _plans(folder: Path) -> list[CheckedPlan]:
    """Every plan of a folder."""
    places = sorted(path.parent for path in folder.glob("*/*/plan.json"))
    if not places:
        raise InputError(f"there are no plans in {folder}; make them with benchmarks.budgets")
    found = [(place.parent.name, load(place)) for place in places]
    return [CheckedPlan(text, plan, plan.check) for text, plan in found]


def _legend() -> str:
    return (
        "Plans calibrated on one text and checked on others ([how](../../plan.md)). All "
        "configurations keep the same number of tokens in all. *Planned* and *uniform* choose "
        "tokens inside a head by the same rule; *SnapKV* keeps those that the last queries attend, "
        "*StreamingLLM* the first and the last ones. In brackets: 95% intervals over passages. "
        "Ratios are of the distance from dense to that of the plan, paired passage by passage: "
        "above 1 the plan is closer.\n\n"
        "The trivial alternatives, equal budgets and the two published rules, stand beside every "
        "number. *Against uniform* is better or worse only if the interval of the ratio excludes "
        "1, else undecided. Weakest points: few passages of each text, from one source each: "
        "intervals are about such passages, not about other sources; tokens inside a head are "
        "chosen by the same rule in *planned* and *uniform*, so that their ratio is about budgets "
        "alone; the published rules are our own versions of them, at these budgets; *predicted* "
        "is for text like that of the calibration."
    )


def _section(plans: list[CheckedPlan]) -> str:
    study = plans[0].study
    kept = {one.kept: one.plan.token_budgets.tokens for one in plans}
    budgets = "; ".join(
        f"{100 * share:g}%: {tokens.min():,} to {tokens.max():,} tokens a key head"
        for share, tokens in kept.items()
    )
    parts = [
        f"## {study.model_record.name}",
        f"{study.passages} calibration passages, {study.check_passages} "
        f"unseen passages of each text, {study.prefix:,} tokens and {study.query_count} queries "
        f"after them, seed {study.seed}. Planned budgets: {budgets}.",
        "**Distance from dense: KL in nats per token**",
        markdown_table(_costs(plans)),
        "**How many times closer the plan is, and how good its predictions were**",
        markdown_table(_gains(plans)),
        counted_verdicts([one.check.ratios["uniform"] for one in plans], study.check_passages),
    ]
    parts += [
        "**Agreement of the most likely token, and perplexity over that of dense**",
        markdown_table(_agreement(plans)),
    ]
    return "\n\n".join(parts)


def _costs(plans: list[CheckedPlan]) -> pd.DataFrame:
    rows = []
    for one in plans:
        row = _place(one)
        for name, found in one.check.configurations.items():
            row[name_of(name)] = _with_ends(found.kl)
        rows.append(row | {"predicted": f"{one.plan.predicted.effect:.2g}"})
    return pd.DataFrame(rows)


def _gains(plans: list[CheckedPlan]) -> pd.DataFrame:
    rows = []
    for one in plans:
        row = _place(one)
        for name in one.check.configurations:
            if name != "planned":
                row[f"over {name_of(name)}"] = _with_ends(one.check.ratios[name])
        within = one.check.heads.within_factor
        row["against uniform"] = one.check.verdict
        row["heads within a factor of 1.5"] = "" if within is None else f"{100 * within:.0f}%"
        rows.append(row)
    return pd.DataFrame(rows)


def counted_verdicts(ratios: Sequence[Mean], passages: int) -> str:
    """In how many checks the plan is better than uniform budgets, one by one and after Holm."""
    counts = Counter(verdict_of(ratio) for ratio in ratios)
    quantile = special.stdtrit(passages - 1, (1 + LEVEL) / 2)
    scores = []
    for ratio in ratios:
        low, high = np.log(ratio.interval or (np.nan, np.nan))
        scores.append(quantile * (high + low) / (high - low))
    p = 2 * special.stdtr(passages - 1, -np.abs(scores))
    sure = int(np.sum((family_wise(p) <= 1 - LEVEL) & (np.array(scores) > 0)))
    return (
        f"Of {len(ratios)} checks against uniform budgets the plan is better in "
        f"{counts['better']}, worse in {counts['worse']} and undecided in {counts['undecided']}, "
        f"each by its own interval; after Holm over all of them better in {sure}. Texts are the "
        "same at every budget, so that these are not independent."
    )


def _agreement(plans: list[CheckedPlan]) -> pd.DataFrame:
    rows = []
    for one in plans:
        row = _place(one)
        for name, found in one.check.configurations.items():
            assert found.top1 is not None
            assert found.perplexity_ratio is not None
            top, ratio = found.top1.mean, found.perplexity_ratio.mean
            row[name_of(name)] = f"{100 * top:.1f}%, {ratio:.3f}"
        rows.append(row)
    return pd.DataFrame(rows)


def _table(plans: list[CheckedPlan]) -> pd.DataFrame:
    """Every number, one row per text, budget and configuration."""
    rows = []
    for one in plans:
        predicted = one.plan.predicted
        for name, found in one.check.configurations.items():
            value, low, high = _ends(found.kl)
            ratio = one.check.ratios.get(name)
            ends = (None, None) if ratio is None else ratio.interval or (None, None)
            rows.append(
                {
                    "text": one.text,
                    "budget": one.kept,
                    "configuration": name,
                    "distance": value,
                    "low": low,
                    "high": high,
                    "over_planned": None if ratio is None else ratio.mean,
                    "over_planned_low": ends[0],
                    "over_planned_high": ends[1],
                    "output_error": found.error.mean,
                    "top1": found.top1.mean,
                    "predicted": {
                        "planned": predicted.effect,
                        "uniform": predicted.uniform_effect,
                    }.get(name),
                }
            )
    return pd.DataFrame(rows)


def _place(one: CheckedPlan) -> dict[str, str]:
    return {"text": one.text, "kept": f"{100 * one.kept:g}%"}


def _with_ends(found: Mean) -> str:
    if found.interval is None:
        return f"{found.mean:.3g}"
    return f"{found.mean:.3g} ({found.interval[0]:.3g} to {found.interval[1]:.3g})"


def draw_budget_costs(plans: list[CheckedPlan]) -> Plot:
    """Draw what every configuration costs against the share of tokens kept, text by text."""
    rows: dict[str, list[dict[str, Any]]] = {}
    for one in plans:
        for name, found in one.check.configurations.items():
            value, low, high = _ends(found.kl)
            rows.setdefault(one.text, []).append(
                {"configuration": name_of(name), "kept": f"{100 * one.kept:g}", "cost": value,
                 "low": low, "high": high}
            )  # fmt: skip
    every = [row for own in rows.values() for row in own]
    kept = [f"{100 * share:g}" for share in sorted({one.kept for one in plans})]
    x = Axis("kept", "tokens kept (%)", names=kept)
    ends = limits([row[key] for row in every for key in ("cost", "low", "high")], log=True)
    unit = "KL (nats per token)"
    y = Axis("cost", unit, log=True, limits=ends)
    colours = series(plans[0].check)
    study = plans[0].study
    chart = figure(
        [panel(points(own, x, y, colours, beside=True), title=text) for text, own in rows.items()],
        f"{study.model_record.name}, prefix of {study.prefix:,} tokens: distance from dense on "
        "unseen text",
        note="bars: 95% intervals over passages",
    )
    return Plot(chart)


def _ends(found: Mean) -> tuple[float, float, float]:
    """The mean with the ends of its interval; without one, the mean instead."""
    low, high = found.interval or (found.mean, found.mean)
    return found.mean, low, high
