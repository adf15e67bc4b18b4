"""Numbers of the page on caches: means, paired ratios and differences, with intervals.

Passages of one text are alike: over several texts the texts are the independent units, each with
the mean of its passages. Within one text they are its passages, and what is said is about that
text.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import pandas as pd
from scipy import stats

from esscher.core.validation import Array
from esscher.math.statistics.intervals import mean_and_interval, wilson
from esscher.studies.plan.compare import ROUNDING, paired_ratio

#: All texts together.
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
                    {"text": text, "budget": budget, "configuration": name, "passages": len(wide),
                     "texts": _texts(wide)}
                    | _mean(_units(wide[name]), "kl", 0.0)
                    | _over(wide, name)
                    | {"top1": float(_units(top1[name]).mean())}
                )  # fmt: skip
    return pd.DataFrame(out)


def ablation_table(rows: pd.DataFrame) -> pd.DataFrame:
    """Ratio of the KL of every variant to that of the plan, over all texts."""
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
                        "texts": _texts(wide),
                    }
                    | _mean(_units(wide[name]), "kl", 0.0)
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
        for name in ("snapkv", "adakv"):
            other = curves[(curves["budget"] == budget) & (curves["configuration"] == name)]
            both = own.merge(other, on=["text", "passage"], suffixes=("", "_other"))
            if len(both):
                wide = both.set_index(["text", "passage"])
                out.append(
                    {"budget": budget, "configuration": name, "passages": len(both)}
                    | _ratio(wide["kl_other"], wide["kl"], "over_planned")
                )
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

    Predicted from a trial: KL on the calibration passages, times what budgets cost more elsewhere;
    or as a page that was made from it says.
    """
    out = []
    for (budget, name), both in rows.groupby(["budget", "configuration"], sort=False):
        tried = trial[(trial["budget"] == budget) & (trial["configuration"] == name)]
        if "predicted" in tried:
            predicted = tried[["predicted", "predicted_low", "predicted_high"]].iloc[0].to_dict()
        else:
            raised = tried["kl"].to_numpy(dtype=float) * tried["optimism"].to_numpy(dtype=float)
            predicted = _mean(raised, "predicted", 0.0)
        for text in (*dict.fromkeys(both["text"]), ALL):
            own = both if text == ALL else both[both["text"] == text]
            realised = own.set_index(["text", "passage"])["kl"]
            out.append(
                {
                    "budget": budget,
                    "configuration": name,
                    "text": text,
                    "passages": len(own),
                    "texts": _texts(realised),
                }
                | predicted
                | _mean(_units(realised), "kl", 0.0)
                | _ratio(realised, predicted["predicted"] + 0 * realised, "over_predicted")
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
    return _ratio(wide[name], wide["planned"], "over_planned")


def _ratio(over: pd.Series, under: pd.Series, name: str) -> dict[str, float]:
    """Geometric mean of paired ratios over the independent units, with Student's interval."""
    logs = (np.log(one.clip(lower=ROUNDING)) for one in (over, under))
    ratio = paired_ratio(*(np.exp(_units(one)) for one in logs))
    low, high = ratio.interval or (np.nan, np.nan)
    return {name: ratio.mean, f"{name}_low": low, f"{name}_high": high}


def _units(values: pd.Series) -> Array:
    """Values of the independent units: means of texts, or the passages of a single one."""
    means = values.groupby(level="text", sort=False).mean()
    return (means if len(means) > 1 else values).to_numpy(dtype=float)


def _texts(values: pd.DataFrame | pd.Series) -> int:
    return values.index.get_level_values("text").nunique()


def between_texts(rows: pd.DataFrame, name: str, budget: float) -> tuple[dict[str, float], float]:
    """Ratios of a configuration to the plan by text, and the p-value that texts do not differ.

    The p-value is that of an analysis of variance of the logarithms over passages.
    """
    wide = _wide(rows[rows["budget"] == budget])
    logs = np.log(wide[name].clip(lower=ROUNDING) / wide["planned"].clip(lower=ROUNDING))
    parts = {str(text): own.to_numpy() for text, own in logs.groupby(level="text", sort=False)}
    if len(parts) < 2 or min(map(len, parts.values())) < 2:
        return {}, np.nan
    ratios = {text: float(np.exp(own.mean())) for text, own in parts.items()}
    return ratios, float(stats.f_oneway(*parts.values()).pvalue)
