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
from itertools import chain
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import xarray as xr

import esscher
from esscher.core.streams import random_stream
from esscher.math.statistics.intervals import rate_class
from esscher.math.theory.cloud import EFFORT
from esscher.studies.probe.combine import PREDICTED, PREDICTED_SLOW, significant

RESULTS = Path(__file__).parent / "results" / "predictors.json"
METRICS = {"mean": "mean", "cov": "covariance", "map": "map"}
#: Errors of a curve beyond which its prediction is called off.
OFF = 0.15
#: Effective tokens below which it was expected to be.
FEW = 8.0
#: Times that the samples of a head are resampled.
RESAMPLES = 40
#: What was a flag before, and what is one now, from one pass alone.
FLAGS: dict[str, Callable[[xr.Dataset], xr.DataArray]] = {
    "H > 1 (was: horizon)": lambda data: data["horizon"] > 1,
    "burn-in above n_max (was: burn-in)": lambda data: (
        data["log_burn_in"] > np.log(data["size"][-1])
    ),
    "median query below 4 tokens (was: hardmax)": lambda data: data["ess"] < 4,
    "over 30% in sinks (was: sinks)": lambda data: (
        data["sink_share"] + data["delimiter_share"] > 0.3
    ),
    "k-hat above 1/2 (was: slow tail)": lambda data: data["khat"].sel(bound="value") > 0.5,
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
        "predicted_exponent_mean": "predicted on the range",
        "constant": CONSTANT,
        "sharp_mean": "Gaussian, conjectured",
        "paper_reference": "published reference",
        "paper_bound": "published bound",
    },
    "cov": {
        "predicted_exponent_cov": "predicted on the range",
        "constant": CONSTANT,
        "sharp_mean": "Gaussian, conjectured",
    },
    "map": {
        "predicted_exponent_map": "predicted on the range",
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
        measured = heads[f"exponent_{metric}"].to_numpy(dtype=float)
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
        results: dict[str, Any] = {"of": METRICS[row["metric"]], "predictor": row["predictor"]}
        for name, table in each.items():
            same = (table["metric"] == row["metric"]) & (table["predictor"] == row["predictor"])
            results[name] = float(table[same]["mean absolute error"].iloc[0])
        results["all"] = row["mean absolute error"]
        known = row["skill_low"] is not None and np.isfinite(row["skill_low"])
        results["skill"] = [row[k] for k in ("skill", "skill_low", "skill_high")] if known else None
        rows.append(results)
    return rows


def ratios(data: xr.Dataset, metric: str) -> np.ndarray:
    """Predicted over measured errors of every head, [head, size]."""
    here = data.sel(metric=metric)
    ratio = here["predicted_error"] / here["error"].sel(bound="value")
    return ratio.transpose("layer", "head", "size").values.reshape(-1, data.sizes["size"])


def worst_ratios(data: xr.Dataset, metric: str) -> np.ndarray:
    """Largest distance, over the sizes, of the predicted from the measured curve of every head."""
    with np.errstate(divide="ignore"):
        return np.asarray(np.abs(np.log(ratios(data, metric))).max(axis=1))


def curves(runs: dict[str, xr.Dataset]) -> list[dict[str, Any]]:
    """Distances of predicted curves: median head, and what 95% of the heads stay within."""
    rows = []
    for metric, words in METRICS.items():
        off = {name: worst_ratios(data, metric) for name, data in runs.items()}
        off["all"] = np.concatenate(list(off.values()))
        rows.append(
            {"of": words}
            | {
                name: [float(np.expm1(np.quantile(values, q))) for q in (0.5, 0.95)]
                for name, values in off.items()
            }
        )
    return rows


def noise_of_curve(errors: np.ndarray, seed: int) -> np.ndarray:
    """Largest distances, over the sizes, of resampled curves from the curve itself."""
    count = len(errors)
    picks = random_stream(seed, "curve").integers(count, size=(RESAMPLES, count))
    ratio = errors[picks].mean(axis=1) / errors.mean(axis=0)
    return np.asarray(np.abs(np.log(ratio)).max(axis=1))


def noise(runs: dict[str, xr.Dataset]) -> list[dict[str, Any]]:
    """What a perfect prediction would miss, and how large the misses are in standard errors.

    An exponent with standard error s misses its expectation by ``sqrt(2 / pi) s`` on average.
    """
    rows = []
    for metric, words in METRICS.items():
        heads = {name: _misses(data, metric) for name, data in runs.items()}
        curve = {}
        for name, data in runs.items():
            errors = data["replicate_error"].sel(metric=metric)
            errors = errors.transpose("layer", "head", "replicate", "size").values
            each = errors.reshape(-1, *errors.shape[2:])
            curve[name] = [noise_of_curve(one, seed) for seed, one in enumerate(each)]
        heads["all"] = np.concatenate(list(heads.values()))
        curve["all"] = list(chain.from_iterable(curve.values()))
        results: dict[str, Any] = {"of": words}
        for name in heads:
            measured, predicted, miss, *ratio = heads[name].T
            results[name] = {
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
        rows.append(results)
    return rows


def _misses(data: xr.Dataset, metric: str) -> np.ndarray:
    """Standard errors of the two exponents, their difference, and the ratios of the curves."""
    here = data.sel(metric=metric)
    values = here[["exponent", "predicted_exponent"]].sel(bound="value")
    columns = [
        here["standard_error"],
        here["curve_exponent_error"],
        values["predicted_exponent"] - values["exponent"],
    ]
    first = np.stack([column.values.ravel() for column in columns], axis=1)
    return np.concatenate([first, ratios(data, metric)], axis=1)


def flags(runs: dict[str, xr.Dataset]) -> list[dict[str, Any]]:
    """Sensitivity and specificity of each flag against what was measured."""
    rows = []
    slow = _slow(runs)
    for metric, words in METRICS.items():
        name = f"slow {words} (predicted)"
        if metric not in PREDICTED:
            name = f"predicted below {PREDICTED_SLOW} (was: {name})"
        raised = {name: {run: slow[run][metric] for run in runs}} | {
            other: {run: flag(data).values.ravel() for run, data in runs.items()}
            for other, flag in FLAGS.items()
        }
        for flag, by_run in raised.items():
            each = {run: _hits(data, metric, by_run[run]) for run, data in runs.items()}
            at_slow, fine = (np.sum([hits[i] for hits in each.values()], axis=0) for i in (0, 1))
            rows.append(
                {
                    "of": words,
                    "flag": flag,
                    "raised at slow heads": at_slow.tolist(),
                    "not raised at heads at 1/2": fine.tolist(),
                    "by run": each,
                }
            )
    few = np.concatenate([data["ess"].values.ravel() < FEW for data in runs.values()])
    off = np.concatenate([worst_ratios(data, "mean") > np.log1p(OFF) for data in runs.values()])
    rows.append(
        {
            "of": f"mean, predicted curve off by more than {OFF:.0%}",
            "flag": f"median query below {FEW:.0f} tokens",
            "raised at slow heads": [int((few & off).sum()), int(off.sum())],
            "not raised at heads at 1/2": [int((~few & ~off).sum()), int((~off).sum())],
        }
    )
    return rows


def _slow(runs: dict[str, xr.Dataset]) -> dict[str, dict[str, np.ndarray]]:
    """By run and metric, which heads are predicted to be slow; all heads of a run are tested."""
    return {
        name: {
            metric: significant(
                here["curve_exponent"].values.ravel() - PREDICTED_SLOW,
                here["curve_exponent_error"].values.ravel(),
                EFFORT.groups - 1.0,
                below=True,
            )
            for metric, here in ((metric, data.sel(metric=metric)) for metric in METRICS)
        }
        for name, data in runs.items()
    }


def _hits(data: xr.Dataset, metric: str, raised: np.ndarray) -> list[list[int]]:
    """How often a flag is raised at slow heads, and not raised at those at 1/2, of how many."""
    ends = data["exponent"].sel(metric=metric, bound=["low", "high"]).transpose(..., "bound")
    kinds = np.array([rate_class((low, high)) for low, high in ends.values.reshape(-1, 2)])
    return [
        [int((right & (kinds == kind)).sum()), int((kinds == kind).sum())]
        for kind, right in (("below", raised), ("at 1/2", ~raised))
    ]


def _share(counts: list[int]) -> str:
    return f"{counts[0]} of {counts[1]}"


def main() -> None:
    """Print the tables and keep the numbers."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("runs", nargs="+", type=Path)
    folders = parser.parse_args().runs
    results = {folder.name: esscher.load(folder) for folder in folders}
    runs = {name: result.data for name, result in results.items()}
    measured = {
        "predictors": predictors({name: result.table() for name, result in results.items()}),
        "curves": curves(runs),
        "noise": noise(runs),
        "flags": flags(runs),
    }
    names = list(runs)
    print("| of | predictor | " + " | ".join(names) + " | all | skill |")
    print("|" + "---|" * (len(names) + 4))
    for row in measured["predictors"]:
        skill = row["skill"]
        text = "" if skill is None else f"{skill[0]:.2f} ({skill[1]:.2f} to {skill[2]:.2f})"
        numbers = " | ".join(f"{row[name]:.3f}" for name in [*names, "all"])
        print(f"| {row['of']} | {row['predictor']} | {numbers} | {text} |")
    print("\n| curve of the | " + " | ".join(names) + " | all |")
    print("|" + "---|" * (len(names) + 2))
    for row in measured["curves"]:
        numbers = " | ".join("{:.0%}, {:.0%}".format(*row[name]) for name in [*names, "all"])
        print(f"| {row['of']} | {numbers} |")
    print("\n| of | noise | " + " | ".join(names) + " | all |")
    print("|" + "---|" * (len(names) + 3))
    for row in measured["noise"]:
        for words, shown in NOISE.items():
            numbers = " | ".join(shown(row[name]) for name in [*names, "all"])
            print(f"| {row['of']} | {words} | {numbers} |")
    print(
        "\n| exponent of the | flag | raised where measured below 1/2 | not raised where at "
        "1/2 |\n|---|---|---|---|"
    )
    for row in measured["flags"]:
        print(
            f"| {row['of']} | {row['flag']} | {_share(row['raised at slow heads'])} "
            f"| {_share(row['not raised at heads at 1/2'])} |"
        )
    settings = {
        name: {
            "heads": result.data.sizes["layer"] * result.data.sizes["head"],
            "sizes": result.data["size"].values.tolist(),
            "replicates": result.setup.settings.replicates,
            "mode": result.setup.settings.mode,
        }
        for name, result in results.items()
    }
    RESULTS.write_text(json.dumps({"runs": settings, **measured}, indent=1) + "\n")


if __name__ == "__main__":
    assert set(PREDICTORS) == set(METRICS)
    main()
