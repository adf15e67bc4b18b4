"""How good are predictors and flags of a probe? Tables from stored probes of real models.

    python -m benchmarks.predictors runs/minilm-wikipedia runs/smollm2-wikipedia ...

Prints three Markdown tables (docs/probe.md has them) and writes
``benchmarks/results/predictors.json``:

* mean absolute error of every predicted exponent, per run and over all heads, beside "always 1/2",
  with the skill over all heads and its interval;
* how far the predicted curves are from the measured ones;
* for each flag, how often it is raised at heads whose exponent was measured below 1/2 (sensitivity)
  and not raised at those measured at 1/2 (specificity); undecided heads are left out.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

import esscher
from esscher.math.statistics.classes import rate_class
from esscher.studies.probe.flags import PREDICTED, with_flags
from esscher.studies.probe.predictors import PREDICTORS, predictor_table
from esscher.studies.probe.records import ProbeHead

RESULTS = Path(__file__).parent / "results" / "predictors.json"
METRICS = {"mean": "mean", "cov": "covariance", "map": "map"}
#: Errors of a curve beyond which its prediction is called off.
OFF = 0.15
#: Effective tokens below which it was expected to be.
FEW = 8.0
#: What was a flag before, and what is one now, from one pass alone.
FLAGS: dict[str, Callable[[ProbeHead, float], bool]] = {
    "H > 1 (was: horizon)": lambda head, top: head.horizon > 1,
    "burn-in above n_max (was: burn-in)": lambda head, top: head.log_burn_in > np.log(top),
    "over 10% of queries frozen (was: frozen)": lambda head, top: head.frozen_share > 0.1,
    "median query below 4 tokens (was: hardmax)": lambda head, top: head.ess.median < 4,
    "over 30% in sinks (was: sinks)": lambda head, top: (
        head.sinks.share + head.delimiter_share > 0.3
    ),
    "k-hat above 1/2 (was: slow tail)": lambda head, top: head.khat.k > 0.5,
}


def predictors(tables: dict[str, pd.DataFrame]) -> list[dict[str, Any]]:
    """Errors of all predictors, by run and over all heads."""
    together = predictor_table(pd.concat(tables.values(), ignore_index=True))
    each = {name: predictor_table(table) for name, table in tables.items()}
    rows = []
    for row in together.to_dict("records"):
        found: dict[str, Any] = {"of": METRICS[row["metric"]], "predictor": row["predictor"]}
        for name, table in each.items():
            same = (table["metric"] == row["metric"]) & (table["predictor"] == row["predictor"])
            found[name] = float(table[same]["mean absolute error"].iloc[0])
        found["all"] = row["mean absolute error"]
        known = row["skill_low"] is not None and np.isfinite(row["skill_low"])
        found["skill"] = [row[k] for k in ("skill", "skill_low", "skill_high")] if known else None
        rows.append(found)
    return rows


def worst_ratio(head: ProbeHead, metric: str) -> float:
    """Largest distance, over the sizes, of the predicted from the measured curve."""
    assert head.curve is not None
    ratio = np.array(head.predicted_error[metric].error) / np.array(head.curve[metric].mean)
    with np.errstate(divide="ignore"):
        return float(np.abs(np.log(ratio)).max())


def curves(runs: dict[str, Any]) -> list[dict[str, Any]]:
    """Distances of predicted curves: median head, and what 95% of the heads stay within."""
    rows = []
    for metric, words in METRICS.items():
        found: dict[str, Any] = {"of": words}
        everything: list[float] = []
        for name, probe in runs.items():
            off = [worst_ratio(head, metric) for head in probe.heads]
            everything += off
            found[name] = [float(np.expm1(np.quantile(off, q))) for q in (0.5, 0.95)]
        found["all"] = [float(np.expm1(np.quantile(everything, q))) for q in (0.5, 0.95)]
        rows.append(found)
    return rows


def flags(runs: dict[str, Any]) -> list[dict[str, Any]]:
    """Sensitivity and specificity of each flag against what was measured."""
    rows = []
    for metric, words in METRICS.items():
        name = f"slow {words}, predicted"
        named = {name: _raised(name)} if metric in PREDICTED else {}
        for name, flag in {**named, **FLAGS}.items():
            hits = {"below": [0, 0], "at 1/2": [0, 0]}
            for probe in runs.values():
                for head in probe.heads:
                    kind = rate_class(head.fit[metric].interval)
                    if kind in hits:
                        hits[kind][0] += int(flag(head, probe.sizes[-1]))
                        hits[kind][1] += 1
            (true, slow), (false, fine) = hits["below"], hits["at 1/2"]
            rows.append(
                {"of": words, "flag": name, "raised at slow heads": [true, slow],
                 "not raised at heads at 1/2": [fine - false, fine]}
            )  # fmt: skip
    hits_off, hits_fine = [0, 0], [0, 0]
    for probe in runs.values():
        for head in probe.heads:
            off = bool(worst_ratio(head, "mean") > np.log1p(OFF))
            into = hits_off if off else hits_fine
            into[0] += int((head.ess.median < FEW) == off)
            into[1] += 1
    rows.append(
        {"of": f"mean, predicted curve off by more than {OFF:.0%}",
         "flag": f"median query below {FEW:.0f} tokens", "raised at slow heads": hits_off,
         "not raised at heads at 1/2": hits_fine}
    )  # fmt: skip
    return rows


def _raised(name: str) -> Callable[[ProbeHead, float], bool]:
    return lambda head, top: any(flag.flag == name for flag in head.flags)


def _share(counts: list[int]) -> str:
    return f"{counts[0]} of {counts[1]}"


def main() -> None:
    """Print the tables and keep the numbers."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("runs", nargs="+", type=Path)
    folders = parser.parse_args().runs
    runs = {folder.name: esscher.load(folder) for folder in folders}
    # runs keep the flags of the revision that made them
    heads = {name: with_flags(probe.heads) for name, probe in runs.items()}
    runs = {name: replace(probe, heads=tuple(heads[name])) for name, probe in runs.items()}
    tables = {name: probe.table() for name, probe in runs.items()}
    found = {"predictors": predictors(tables), "curves": curves(runs), "flags": flags(runs)}
    names = list(runs)
    print("| of | predictor | " + " | ".join(names) + " | all | skill |")
    print("|" + "---|" * (len(names) + 4))
    for row in found["predictors"]:
        skill = row["skill"]
        text = "" if skill is None else f"{skill[0]:.2f} ({skill[1]:.2f} to {skill[2]:.2f})"
        numbers = " | ".join(f"{row[name]:.3f}" for name in [*names, "all"])
        print(f"| {row['of']} | {row['predictor']} | {numbers} | {text} |")
    print("\n| curve of the | " + " | ".join(names) + " | all |")
    print("|" + "---|" * (len(names) + 2))
    for row in found["curves"]:
        numbers = " | ".join("{:.0%}, {:.0%}".format(*row[name]) for name in [*names, "all"])
        print(f"| {row['of']} | {numbers} |")
    print("\n| exponent of the | flag | raised where measured below 1/2 | not raised where at "
          "1/2 |\n|---|---|---|---|")  # fmt: skip
    for row in found["flags"]:
        print(f"| {row['of']} | {row['flag']} | {_share(row['raised at slow heads'])} "
              f"| {_share(row['not raised at heads at 1/2'])} |")  # fmt: skip
    settings = {
        name: {"heads": len(probe.heads), "sizes": list(probe.sizes),
               "replicates": probe.study.replicates, "mode": probe.study.mode}
        for name, probe in runs.items()
    }  # fmt: skip
    RESULTS.write_text(json.dumps({"runs": settings, **found}, indent=1) + "\n")


if __name__ == "__main__":
    assert set(PREDICTORS) == set(METRICS)
    main()
