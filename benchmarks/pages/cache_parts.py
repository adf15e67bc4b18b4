"""Numbers of the page on caches: means, paired ratios and differences, with intervals."""

from __future__ import annotations

from typing import Any

import numpy as np
import pandas as pd

from esscher.core.validation import Array
from esscher.math.statistics.means import mean_and_interval, wilson
from esscher.studies.plan.compare import ROUNDING, paired_ratio

#: The passages of all texts together.
ALL = "all"
#: Score of the dense model below which a task says nothing about caches.
LEAST = 0.5
#: Columns of the totals over tasks.
TOTALS = (
    "prefix", "budget", "configuration", "n", "tasks", "score", "difference", "difference_low",
    "difference_high",
)  # fmt: skip


def curve_table(rows: pd.DataFrame) -> pd.DataFrame:
    """Mean KL of every configuration, and its ratio to the plan, by text and over all texts."""
    out = []
    for text in (*dict.fromkeys(rows["text"]), ALL):
        own = rows if text == ALL else rows[rows["text"] == text]
        for budget in sorted(set(own["budget"])):
            wide = _wide(own[own["budget"] == budget])
            top1 = _wide(own[own["budget"] == budget], "top1")
            for name in wide:
                out.append(
                    {"text": text, "budget": budget, "configuration": name, "passages": len(wide)}
                    | _mean(wide[name].to_numpy(), "kl", 0.0)
                    | _over(wide, name)
                    | {"top1": float(top1[name].mean())}
                )
    return pd.DataFrame(out)


def ablation_table(rows: pd.DataFrame) -> pd.DataFrame:
    """Ratio of the KL of every variant to that of the plan, over all passages."""
    out = []
    for budget in sorted(set(rows["budget"]), reverse=True):
        wide = _wide(rows[rows["budget"] == budget])
        seeds = [name for name in wide if name.startswith("seed")]
        spread = np.log(wide[["planned", *seeds]].to_numpy()).std(axis=1, ddof=1).mean()
        for name in wide:
            if name != "planned":
                variant = {"planned:last": "score last", "planned:repeat": "score repeat"}
                out.append(
                    {
                        "variant": variant.get(name, name),
                        "configuration": name,
                        "budget": budget,
                        "passages": len(wide),
                    }
                    | _mean(wide[name].to_numpy(), "kl", 0.0)
                    | _over(wide, name)
                    | {"spread": float(np.exp(spread)) if name in seeds else np.nan}
                )
    return pd.DataFrame(out)


def topk_table(rows: pd.DataFrame, curves: pd.DataFrame) -> pd.DataFrame:
    """Published rules that keep the largest scores over a plan for that, where both are known."""
    out = []
    planned = rows[rows["configuration"] == "planned for largest scores"]
    for budget in sorted(set(planned["budget"]) & set(curves.get("budget", ())), reverse=True):
        own = planned[planned["budget"] == budget]
        for name in ("snapkv", "adakv", "criticalkv", "lukv"):
            other = curves[(curves["budget"] == budget) & (curves["configuration"] == name)]
            both = own.merge(other, on=["text", "passage"], suffixes=("", "_other"))
            if len(both):
                ratio = paired_ratio(*(both[x].to_numpy(dtype=float) for x in ("kl_other", "kl")))
                low, high = ratio.interval or (np.nan, np.nan)
                out.append(
                    {"budget": budget, "configuration": name, "passages": len(both),
                     "over_planned": ratio.mean, "over_planned_low": low,
                     "over_planned_high": high}
                )  # fmt: skip
    return pd.DataFrame(out)


def task_table(rows: pd.DataFrame) -> pd.DataFrame:
    """Exact match and log-probability by length, budget, task and configuration.

    Beside them the difference in log-probability from the plan, paired by items that have both.
    """
    out = []
    for (prefix, budget), both in _by_length_and_budget(rows):
        for task in dict.fromkeys(both["task"]):
            logs, score = (
                _by_item(both[both["task"] == task], x) for x in ("log_probability", "score")
            )
            for name in score:
                low, high = wilson(float(score[name].sum()), len(score))
                out.append(
                    {
                        "prefix": prefix,
                        "task": task,
                        "budget": budget,
                        "configuration": name,
                        "n": len(score),
                        "score": float(score[name].mean()),
                        "low": low,
                        "high": high,
                        "log_probability": float(logs[name].mean()),
                    }
                    | _mean((logs[name] - logs["planned"]).to_numpy(), "difference")
                )
    return pd.DataFrame(out)


def total_table(rows: pd.DataFrame, least: float = LEAST) -> pd.DataFrame:
    """Exact match over all items of tasks that the dense model can do, less that of the plan.

    Lengths and budgets without such a task have no rows.
    """
    out = []
    for (prefix, budget), both in _by_length_and_budget(rows):
        dense = both[both["configuration"] == "dense"].groupby("task")["score"].mean()
        can = sorted(dense[dense >= least].index)
        if not can:
            continue
        score = _by_item(both[both["task"].isin(can)], "score")
        for name in score:
            out.append(
                {"prefix": prefix, "budget": budget, "configuration": name, "n": len(score),
                 "tasks": " ".join(can), "score": float(score[name].mean())}
                | _mean((score[name] - score["planned"]).to_numpy(), "difference")
            )  # fmt: skip
    return pd.DataFrame(out, columns=TOTALS)


def _by_length_and_budget(rows: pd.DataFrame) -> Any:
    """Groups of rows, short lengths and large budgets first."""
    return sorted(rows.groupby(["prefix", "budget"]), key=lambda one: (one[0][0], -one[0][1]))


def _by_item(rows: pd.DataFrame, measure: str) -> pd.DataFrame:
    """A measure by item and configuration, dense first, of items that have all of them."""
    wide = rows.pivot(index=["task", "item"], columns="configuration", values=measure)
    return wide[list(dict.fromkeys(("dense", *rows["configuration"])))].dropna()


def small_table(rows: pd.DataFrame, trial: pd.DataFrame) -> pd.DataFrame:
    """Predicted and realised KL, by budget, configuration and text.

    Predicted from a trial: KL on the calibration passages, times what budgets cost more elsewhere.
    """
    out = []
    for (budget, name), both in rows.groupby(["budget", "configuration"], sort=False):
        tried = trial[(trial["budget"] == budget) & (trial["configuration"] == name)]
        raised = tried["kl"].to_numpy(dtype=float) * tried["optimism"].to_numpy(dtype=float)
        predicted = _mean(raised, "predicted", 0.0)
        for text in (*dict.fromkeys(both["text"]), ALL):
            own = both if text == ALL else both[both["text"] == text]
            realised = own["kl"].to_numpy(dtype=float)
            ratio = paired_ratio(realised, np.full(len(realised), predicted["predicted"]))
            ends = ratio.interval or (np.nan, np.nan)
            out.append(
                {
                    "budget": budget,
                    "configuration": name,
                    "text": text,
                    "passages": len(own),
                }
                | predicted
                | _mean(realised, "kl", 0.0)
                | {
                    "over_predicted": ratio.mean,
                    "over_predicted_low": ends[0],
                    "over_predicted_high": ends[1],
                }
            )
    return pd.DataFrame(out)


def _wide(rows: pd.DataFrame, measure: str = "kl") -> pd.DataFrame:
    """A measure by passage and configuration, of passages that have all configurations."""
    wide = rows.pivot(index=["text", "passage"], columns="configuration", values=measure)
    return wide[list(dict.fromkeys(rows["configuration"]))].dropna()


def _mean(values: Array, name: str, lowest: float = -np.inf) -> dict[str, float]:
    found = mean_and_interval(np.asarray(values, dtype=float)[:, None], lowest)
    low, high = found["interval"][0] or (np.nan, np.nan)
    return {name: found["mean"][0], f"{name}_low": low, f"{name}_high": high}


def _over(wide: pd.DataFrame, name: str) -> dict[str, Any]:
    if name == "planned":
        return dict.fromkeys(("over_planned", "over_planned_low", "over_planned_high"), np.nan)
    over, under = (np.maximum(wide[n].to_numpy(dtype=float), ROUNDING) for n in (name, "planned"))
    ratio = paired_ratio(over, under)
    low, high = ratio.interval or (np.nan, np.nan)
    return {"over_planned": ratio.mean, "over_planned_low": low, "over_planned_high": high}
