"""Tables of caches of equal size, from the results of :mod:`benchmarks.cache`.

    python -m benchmarks.cache_tables FOLDER...

Each folder's results become CSV files in benchmarks/results, named after the folder and the part.
Passages of one text are alike: over several texts the texts are the independent units, each with
the mean of its passages. Within one text they are its passages, and what is said is about that
text.
"""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

from benchmarks.cache import RESULTS
from esscher.core.errors import InputError
from esscher.core.untrusted import read_json
from esscher.core.validation import Array
from esscher.math.statistics.intervals import mean_bounds, wilson
from esscher.studies.plan.check import ROUNDING, paired_ratio

STORED = Path(__file__).parent / "results"
#: Columns of the results that are stored; answers are left out.
KEPT = (
    "model",
    "prefix",
    "text",
    "passage",
    "task",
    "haystack",
    "item",
    "budget",
    "configuration",
    "kept",
    "bytes",
    "kl",
    "top1",
    "nll",
    "score",
    "log_probability",
)
#: All texts together.
ALL = "all"
#: Score of the dense model below which a task says nothing about caches.
LEAST = 0.5
#: Columns of the totals over tasks.
TOTALS = (
    "prefix",
    "budget",
    "configuration",
    "n",
    "tasks",
    "score",
    "difference",
    "difference_low",
    "difference_high",
)


def in_best_bits(rows: pd.DataFrame, measure: str = "kl") -> pd.DataFrame:
    """Published rules with the bits with which they are best, for each budget over all texts.

    By the geometric mean of KL, or by the mean of another measure, the larger the better. Their
    names lose the bits, which become a column.
    """
    values = rows[measure]
    values = np.log(values.clip(lower=ROUNDING)) if measure == "kl" else -values
    parts = rows["configuration"].str.partition(" ")
    # names of other configurations have spaces too
    bits = parts[2].where(parts[2].isin(("8", "4")), "")
    name = parts[0].where(bits != "", rows["configuration"])
    rows = rows.assign(value=values, name=name, bits=bits)
    mean = rows.groupby(["budget", "name", "bits"], sort=False)["value"].mean().reset_index()
    best = mean.loc[mean.groupby(["budget", "name"], sort=False)["value"].idxmin()]
    kept = rows.merge(best[["budget", "name", "bits"]], on=["budget", "name", "bits"])
    return kept.assign(configuration=kept["name"]).drop(columns=["value", "name"])


def curve_table(rows: pd.DataFrame) -> pd.DataFrame:
    """Mean KL of every configuration, and its ratio to the plan, by text and over all texts."""
    out, rows = [], in_best_bits(rows)
    known = rows.groupby(["budget", "configuration"])["bits"].first()
    for text in (*dict.fromkeys(rows["text"]), ALL):
        own = rows if text == ALL else rows[rows["text"] == text]
        for budget in sorted(set(own["budget"])):
            wide = wide_table(own[own["budget"] == budget])
            top1 = wide_table(own[own["budget"] == budget], "top1")
            for name in wide:
                out.append(
                    {
                        "text": text,
                        "budget": budget,
                        "configuration": name,
                        "bits": known[budget, name],
                        "passages": len(wide),
                        "texts": _texts(wide),
                    }
                    | _mean(_units(wide[name]), "kl", 0.0)
                    | paired_over(wide, name)
                    | {"top1": float(_units(top1[name]).mean())}
                )
    return pd.DataFrame(out)


def ablation_table(rows: pd.DataFrame) -> pd.DataFrame:
    """Ratio of the KL of every variant to that of the plan, over all texts."""
    out = []
    for budget in sorted(set(rows["budget"]), reverse=True):
        wide = wide_table(rows[rows["budget"] == budget])
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
                    | paired_over(wide, name)
                    | {"spread": float(np.exp(spread)) if name in seeds else np.nan}
                )
    return pd.DataFrame(out)


def task_table(rows: pd.DataFrame) -> pd.DataFrame:
    """Exact match and log-probability by length, budget, task and configuration.

    Beside them the difference in log-probability from the plan, paired by items that have both.
    """
    out = []
    rows = in_best_bits(rows, "log_probability")
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
    out, rows = [], in_best_bits(rows, "log_probability")
    for (prefix, budget), both in _by_length_and_budget(rows):
        dense = both[both["configuration"] == "dense"].groupby("task")["score"].mean()
        can = sorted(dense[dense >= least].index)
        if not can:
            continue
        score = _by_item(both[both["task"].isin(can)], "score")
        for name in score:
            out.append(
                {
                    "prefix": prefix,
                    "budget": budget,
                    "configuration": name,
                    "n": len(score),
                    "tasks": " ".join(can),
                    "score": float(score[name].mean()),
                }
                | _mean((score[name] - score["planned"]).to_numpy(), "difference")
            )
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


def wide_table(rows: pd.DataFrame, measure: str = "kl") -> pd.DataFrame:
    """A measure by passage and configuration, of passages that have all configurations."""
    wide = rows.pivot(index=["text", "passage"], columns="configuration", values=measure)
    return wide[list(dict.fromkeys(rows["configuration"]))].dropna()


def _mean(values: Array, name: str, lowest: float = -np.inf) -> dict[str, float]:
    mean, low, high = mean_bounds(np.asarray(values, dtype=float), lowest).tolist()
    return {name: mean, f"{name}_low": low, f"{name}_high": high}


def paired_over(wide: pd.DataFrame, name: str) -> dict[str, Any]:
    """Ratio of the KL of a configuration to that of the plan, with its interval."""
    if name == "planned":
        return dict.fromkeys(("over_planned", "over_planned_low", "over_planned_high"), np.nan)
    return _ratio(wide[name], wide["planned"], "over_planned")


def _ratio(over: pd.Series, under: pd.Series, name: str) -> dict[str, float]:
    """Geometric mean of paired ratios over the independent units, with Student's interval."""
    logs = (np.log(one.clip(lower=ROUNDING)) for one in (over, under))
    ratio, low, high = paired_ratio(*(np.exp(_units(one)) for one in logs)).tolist()
    return {name: ratio, f"{name}_low": low, f"{name}_high": high}


def _units(values: pd.Series) -> Array:
    """Values of the independent units: means of texts, or the passages of a single one."""
    means = values.groupby(level="text", sort=False).mean()
    return (means if len(means) > 1 else values).to_numpy(dtype=float)


def _texts(values: pd.DataFrame | pd.Series) -> int:
    return values.index.get_level_values("text").nunique()


def stored_rows(folder: Path) -> pd.DataFrame:
    """Return all results of a folder, one row per passage or item, budget and configuration."""
    rows: list[dict[str, Any]] = []
    for path in sorted(folder.rglob(RESULTS)):
        cell = read_json(path)
        dense = cell.pop("dense", None)
        measured = cell.pop("rows")
        if dense is not None:
            budgets = sorted({row["budget"] for row in measured})
            measured += [{"configuration": "dense", "budget": b, **dense} for b in budgets]
        cell["model"] = Path(cell["model"]).name
        rows += [{**cell, **row} for row in measured]
    if not rows:
        raise InputError(f"there are no results in {folder}; make them with benchmarks.cache")
    first = ("planned", "planned:last", "planned:repeat", "dense", "uniform")
    order = {name: i for i, name in enumerate(first)}
    rows.sort(key=lambda row: order.get(row["configuration"], len(order)))
    return pd.DataFrame(rows)


def tables(rows: pd.DataFrame) -> dict[str, pd.DataFrame]:
    """Return the tables of a folder's results and, under ``PART-rows``, the results themselves."""
    made: dict[str, pd.DataFrame] = {}
    for part in ("curves", "lengths", "ablation", "small", "tasks"):
        own = rows[rows["part"] == part].dropna(axis="columns", how="all")
        if own.empty:
            continue
        if part == "ablation":
            made[part] = ablation_table(own)
        elif part == "small":
            made[part] = small_table(own, rows[rows["part"] == "trial"])
        elif part == "tasks":
            made[part], made["tasks-totals"] = task_table(own), total_table(own)
            asked = own.groupby(["prefix", "task", "item"])["budget"].transform("nunique")
            everywhere = own[asked == own.groupby("prefix")["budget"].transform("nunique")]
            made["tasks-shares"] = total_table(everywhere)
        else:
            by_length = own.groupby("prefix", sort=True)
            made[part] = pd.concat([curve_table(x).assign(prefix=n) for n, x in by_length])
        made[f"{part}-rows"] = own[[name for name in KEPT if name in own]]
    return made


def main() -> None:
    """Write the tables of the folders on the command line."""
    for folder in map(Path, sys.argv[1:]):
        for name, table in tables(stored_rows(folder)).items():
            path = STORED / f"{folder.name}-{name}.csv"
            table.to_csv(path, index=False, lineterminator="\n", float_format="%.6g")
            print(path)


if __name__ == "__main__":
    main()
