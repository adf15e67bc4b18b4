"""How good are predictors and flags of a probe? Tables from stored probes of real models.

    python -m benchmarks.predictors runs/minilm-wikipedia runs/smollm2-wikipedia ...

Prints Markdown tables (docs/predictions.md has them) and writes
``benchmarks/results/predictors.json``:

* mean absolute error of every predicted exponent, per run and over all heads, beside "always 1/2",
  with the skill over all heads and its interval;
* how far the predicted curves are from the measured ones;
* what noise there is in that comparison: a perfect prediction would miss the measured exponents and
  curves by as much as these miss their own expectation;
* for each flag, how often it is raised at heads whose exponent was measured below 1/2 (sensitivity)
  and not raised at those measured at 1/2 (specificity); undecided heads are left out.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Callable
from dataclasses import replace
from itertools import chain
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

import esscher
from esscher.core.streams import random_stream
from esscher.math.statistics.intervals import rate_class
from esscher.studies.probe.assemble import (
    PREDICTED,
    PREDICTED_SLOW,
    predicted_exponents,
    significant,
    with_flags,
)
from esscher.studies.probe.result import ProbeHead

RESULTS = Path(__file__).parent / "results" / "predictors.json"
METRICS = {"mean": "mean", "cov": "covariance", "map": "map"}
#: Errors of a curve beyond which its prediction is called off.
OFF = 0.15
#: Effective tokens below which it was expected to be.
FEW = 8.0
#: Times that the samples of a head are resampled.
RESAMPLES = 40
#: What was a flag before, and what is one now, from one pass alone.
FLAGS: dict[str, Callable[[ProbeHead, float], bool]] = {
    "H > 1 (was: horizon)": lambda head, top: head.horizon > 1,
    "burn-in above n_max (was: burn-in)": lambda head, top: head.log_burn_in > np.log(top),
    "over 10% of queries frozen (was: frozen)": lambda head, top: head.frozen_share > 0.1,
    "median query below 4 tokens (was: hardmax)": lambda head, top: head.ess["median"] < 4,
    "over 30% in sinks (was: sinks)": lambda head, top: (
        head.sink_share + head.delimiter_share > 0.3
    ),
    "k-hat above 1/2 (was: slow tail)": lambda head, top: head.khat.k > 0.5,
}

#: Rows of the table of noise.
NOISE: dict[str, Callable[[dict[str, Any]], str]] = {
    "exponent, perfect prediction": lambda x: f"{x['perfect']:.3f}",
    "exponent, by both stated errors": lambda x: f"{x['stated']:.3f}",
    "exponent, root mean square of z": lambda x: f"{x['z']:.2f}",
    "curve, perfect prediction": lambda x: "{:.0%}, {:.0%}".format(*x["perfect curve"]),
    "curve, predicted over measured": lambda x: ", ".join(
        f"{x['predicted over measured'][i]:.2f}" for i in (0, 2, -1)
    ),
    "curve, heads off by more than 15%": lambda x: f"{x['off']}",
}


#: The trivial predictor of an exponent.
CONSTANT = "always 1/2"
#: Predictors of an exponent: column of the table of heads and name, by metric.
PREDICTORS = {
    "mean": {
        "predicted_mean": "predicted on the range",
        "constant": CONSTANT,
        "sharp": "Gaussian, conjectured",
        "paper_reference": "published reference",
        "paper_bound": "published bound",
    },
    "cov": {
        "predicted_cov": "predicted on the range",
        "constant": CONSTANT,
        "sharp": "Gaussian, conjectured",
    },
    "map": {
        "predicted_map": "predicted on the range",
        "constant": CONSTANT,
        "paper_reference": "published reference",
        "paper_bound": "published bound",
    },
}
#: Resamples of the heads, and fewest of which an interval is made.
HEAD_RESAMPLES, FEWEST_HEADS = 1000, 4


def predictor_table(heads: pd.DataFrame) -> pd.DataFrame:
    """Mean absolute error and skill of each predictor, smallest error first, by metric.

    Skill is ``1 - MAE / MAE(always 1/2)``, both over the same heads: 0 is as good as the constant,
    1 is perfect. Its 95% interval resamples heads in pairs of errors. The measured exponents have
    noise of their own, which no predictor can know: it keeps every skill below 1.

    Parameters
    ----------
    heads
        Measured and predicted exponents, one row per head.
    """
    rows = []
    for metric, predictors in PREDICTORS.items():
        measured = heads[metric].to_numpy(dtype=float)
        some: list[dict[str, Any]] = []
        for column, name in predictors.items():
            constant = column == "constant"
            predicted = np.full(len(heads), 0.5) if constant else heads[column].to_numpy(float)
            known = np.isfinite(measured) & np.isfinite(predicted)
            if not known.any():
                continue
            error, trivial = np.abs(predicted - measured)[known], np.abs(0.5 - measured)[known]
            low = high = None
            if not constant and len(error) >= FEWEST_HEADS and trivial.any():
                rng = random_stream(0, "skill")
                picks = rng.integers(len(error), size=(HEAD_RESAMPLES, len(error)))
                below = trivial[picks].mean(axis=1)
                ratio = error[picks].mean(axis=1)[below > 0] / below[below > 0]
                low, high = np.quantile(1 - ratio, [0.025, 0.975]).tolist()
            skill = float(1 - error.mean() / trivial.mean()) if trivial.mean() > 0 else None
            some.append(
                {
                    "metric": metric,
                    "predictor": name,
                    "mean absolute error": float(error.mean()),
                    "skill": skill,
                    "skill_low": low,
                    "skill_high": high,
                }
            )
        rows += sorted(some, key=lambda row: row["mean absolute error"])
    return pd.DataFrame(rows)


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
    assert head.fit is not None
    ratio = np.array(head.predicted_error[metric].error) / np.array(head.fit[metric].mean)
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


def samples(folder: Path) -> dict[tuple[int, int, str], np.ndarray]:
    """Errors [sample, size] of every head of a run, by layer, head and metric."""
    parts = [pd.read_parquet(file) for file in sorted((folder / "parts").glob("*.parquet"))]
    for number, part in enumerate(parts):  # passages are replicates too
        part["replicate"] += number * 10**6
    table = pd.concat(parts, ignore_index=True)
    table = table[table["metric"].isin(METRICS) & (table["unit"] != "layer")]
    return {
        (int(layer), int(unit), metric): one.pivot(
            index="replicate", columns="n", values="error"
        ).to_numpy()
        for (layer, unit, metric), one in table.groupby(["layer", "unit", "metric"])
    }


def noise_of_curve(errors: np.ndarray, seed: int) -> np.ndarray:
    """Largest distances, over the sizes, of resampled curves from the curve itself."""
    count = len(errors)
    picks = random_stream(seed, "curve").integers(count, size=(RESAMPLES, count))
    ratio = errors[picks].mean(axis=1) / errors.mean(axis=0)
    return np.asarray(np.abs(np.log(ratio)).max(axis=1))


def noise(runs: dict[str, Any], folders: dict[str, Path]) -> list[dict[str, Any]]:
    """What a perfect prediction would miss, and how large the misses are in standard errors.

    An exponent with standard error s misses its expectation by ``sqrt(2 / pi) s`` on average.
    """
    drawn = {name: samples(folder) for name, folder in folders.items()}
    rows = []
    for metric, words in METRICS.items():
        heads = {name: [_misses(head, metric) for head in p.heads] for name, p in runs.items()}
        curve = {
            name: [
                noise_of_curve(drawn[name][head.layer, head.head, metric], seed)
                for seed, head in enumerate(probe.heads)
            ]
            for name, probe in runs.items()
        }
        heads["all"] = list(chain.from_iterable(heads.values()))
        curve["all"] = list(chain.from_iterable(curve.values()))
        found: dict[str, Any] = {"of": words}
        for name in heads:
            measured, predicted, miss, *ratio = np.array(heads[name]).T
            found[name] = {
                "perfect": float(np.sqrt(2 / np.pi) * measured.mean()),
                "stated": float(np.sqrt(2 / np.pi) * np.hypot(measured, predicted).mean()),
                "z": float(np.sqrt(np.mean((miss / np.hypot(measured, predicted)) ** 2))),
                "perfect curve": [
                    float(np.expm1(np.quantile(np.concatenate(curve[name]), q)))
                    for q in (0.5, 0.95)
                ],
                "predicted over measured": np.median(ratio, axis=1).tolist(),
                "off": int((np.abs(np.log(ratio)).max(axis=0) > np.log1p(OFF)).sum()),
            }
        rows.append(found)
    return rows


def _misses(head: ProbeHead, metric: str) -> list[float]:
    """Standard errors of the two exponents, their difference, and the ratios of the curves."""
    assert head.fit is not None
    predicted, fit = head.predicted_error[metric], head.fit[metric]
    ratios = np.array(predicted.error) / np.array(fit.mean)
    return [
        float(fit.standard_error or np.nan),
        float(predicted.exponent_error or np.nan),
        float(head.predicted_exponent(metric)[0] or np.nan) - fit.exponent,
        *ratios.tolist(),
    ]


def flags(runs: dict[str, Any]) -> list[dict[str, Any]]:
    """Sensitivity and specificity of each flag against what was measured."""
    rows = []
    for metric, words in METRICS.items():
        name = f"slow {words} (predicted)"
        if metric not in PREDICTED:
            name = f"predicted below {PREDICTED_SLOW} (was: {name})"
        # by identity: heads of two runs may be equal
        slow_ones = {
            id(probe.heads[i])
            for probe in runs.values()
            for i in significant(
                predicted_exponents(probe.heads, metric), PREDICTED_SLOW, below=True
            )
        }
        raised = {name: lambda head, top, slow=slow_ones: id(head) in slow}
        for name, flag in {**raised, **FLAGS}.items():
            each = {run: _hits(probe, metric, flag) for run, probe in runs.items()}
            slow, fine = (np.sum([hits[i] for hits in each.values()], axis=0) for i in (0, 1))
            rows.append(
                {
                    "of": words,
                    "flag": name,
                    "raised at slow heads": slow.tolist(),
                    "not raised at heads at 1/2": fine.tolist(),
                    "by run": each,
                }
            )
    hits_off, hits_fine = [0, 0], [0, 0]
    for probe in runs.values():
        for head in probe.heads:
            off = bool(worst_ratio(head, "mean") > np.log1p(OFF))
            into = hits_off if off else hits_fine
            into[0] += int((head.ess["median"] < FEW) == off)
            into[1] += 1
    rows.append(
        {
            "of": f"mean, predicted curve off by more than {OFF:.0%}",
            "flag": f"median query below {FEW:.0f} tokens",
            "raised at slow heads": hits_off,
            "not raised at heads at 1/2": hits_fine,
        }
    )
    return rows


def _hits(probe: Any, metric: str, flag: Callable[[ProbeHead, float], bool]) -> list[list[int]]:
    """How often a flag is raised at slow heads, and not raised at those at 1/2, of how many."""
    slow, fine = [0, 0], [0, 0]
    for head in probe.heads:
        raised, kind = flag(head, probe.sizes[-1]), rate_class(head.fit[metric].interval)
        for counts, wanted, right in ((slow, "below", raised), (fine, "at 1/2", not raised)):
            if kind == wanted:
                counts[0] += int(right)
                counts[1] += 1
    return [slow, fine]


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
    found = {
        "predictors": predictors(tables),
        "curves": curves(runs),
        "noise": noise(runs, {folder.name: folder for folder in folders}),
        "flags": flags(runs),
    }
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
    print("\n| of | noise | " + " | ".join(names) + " | all |")
    print("|" + "---|" * (len(names) + 3))
    for row in found["noise"]:
        for words, shown in NOISE.items():
            numbers = " | ".join(shown(row[name]) for name in [*names, "all"])
            print(f"| {row['of']} | {words} | {numbers} |")
    print(
        "\n| exponent of the | flag | raised where measured below 1/2 | not raised where at "
        "1/2 |\n|---|---|---|---|"
    )
    for row in found["flags"]:
        print(
            f"| {row['of']} | {row['flag']} | {_share(row['raised at slow heads'])} "
            f"| {_share(row['not raised at heads at 1/2'])} |"
        )
    settings = {
        name: {
            "heads": len(probe.heads),
            "sizes": list(probe.sizes),
            "replicates": probe.study.replicates,
            "mode": probe.study.mode,
        }
        for name, probe in runs.items()
    }
    RESULTS.write_text(json.dumps({"runs": settings, **found}, indent=1) + "\n")


if __name__ == "__main__":
    assert set(PREDICTORS) == set(METRICS)
    main()
