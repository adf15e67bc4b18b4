"""Extremes-only simulation against direct simulation, exact moments and predictions.

    python -m benchmarks.extremes [--only queries,heads,mean,large,regimes]

Prints Markdown tables and writes ``benchmarks/results/extremes.json``; parts that are not asked for
stay as they were:

* queries: the error at one query of fixed strength, n = 10^3 to 10^6, with all n keys drawn and
  from the extremes: mean squares with standard errors, two-sample Kolmogorov-Smirnov tests;
* heads: the root-mean-square map error of heads in one dimension, the same two ways;
* mean: the error of the mean output in one dimension, the same two ways;
* large: n = 10^6 to 10^12, simulated from extremes and predicted, and the local exponent of the
  expected map error, for which there is no predicted curve;
* regimes: local exponents of one query's expected error, and the position's ``1 - x``.

The direct simulation shares no code with the other. About six minutes on one core.
"""

from __future__ import annotations

import argparse
import json
import time
from pathlib import Path
from typing import Any

import numpy as np
from scipy.stats import ks_2samp

from esscher import gaussian_head
from esscher.core.streams import random_stream
from esscher.core.validation import Array
from esscher.math.simulation import simulate_map, simulate_mean, simulate_query
from esscher.math.theory import map_curve, moment_curves, regime, softmax_moments

STRENGTHS = (0.5, 1.0, 1.5, 2.0, 3.0, 4.0)
#: Direct replicates by n.
DIRECT = {1_000: 4000, 10_000: 4000, 100_000: 2000, 1_000_000: 400}
REPLICATES = 4000
MEAN_HORIZONS = (0.5, 1.0, 1.5, 3.0)
MEAN_DIRECT = {1_000: 1000, 10_000: 400, 100_000: 240}
LARGE = (1e6, 1e8, 1e10, 1e12)
RESULTS = Path(__file__).parent / "results" / "extremes.json"

Row = dict[str, Any]


def mean_and_error(values: Array) -> list[float]:
    return [float(values.mean()), float(values.std(ddof=1) / np.sqrt(len(values)))]


def attend(x: Array, tilt: float) -> tuple[float, float]:
    """Error along the tilt and ``sum p^2`` over keys x, directly."""
    logits = tilt * x
    weights = np.exp(logits - logits.max())
    weights /= weights.sum()
    return float(weights @ x) - tilt, float(weights @ weights)


def direct_errors(n: int, replicates: int) -> tuple[Array, Array]:
    """Fixed strengths: [strength, replicate, 2]; random queries of heads: [head, replicate]."""
    fixed = np.empty((len(STRENGTHS), replicates, 2))
    heads = np.empty((len(STRENGTHS), replicates))
    for r in range(replicates):
        rng = random_stream(1, "extremes benchmark", n, r)
        x, query = rng.standard_normal(n), rng.standard_normal()
        for i, s in enumerate(STRENGTHS):
            fixed[i, r] = attend(x, s)
            heads[i, r] = attend(x, s * query)[0]
    return fixed, heads


def query_and_head_cells() -> tuple[list[Row], list[Row]]:
    queries, heads = [], []
    for n, replicates in DIRECT.items():
        fixed, random = direct_errors(n, replicates)
        for i, s in enumerate(STRENGTHS):
            found = simulate_query(n, s, REPLICATES, seed=2)
            exact = softmax_moments(np.array([float(n)]), np.array([s]))
            queries.append(
                {
                    "n": n,
                    "s": s,
                    "direct_replicates": replicates,
                    "extremes_replicates": REPLICATES,
                    "square": {
                        "exact": float(exact.squared_error[0, 0]),
                        "direct": mean_and_error(fixed[i, :, 0] ** 2),
                        "extremes": mean_and_error(found.along**2),
                    },
                    "collision": {
                        "exact": float(exact.collision[0, 0]),
                        "direct": mean_and_error(fixed[i, :, 1]),
                        "extremes": mean_and_error(found.collision),
                    },
                    "ks_along": float(ks_2samp(fixed[i, :, 0], found.along).pvalue),
                    "ks_collision": float(ks_2samp(fixed[i, :, 1], found.collision).pvalue),
                }
            )
            head = gaussian_head(horizon=s, dim=1)
            simulated = simulate_map(head, [n], REPLICATES, seed=2)
            square, error = mean_and_error(random[i] ** 2)
            norm, norm_error = mean_and_error(np.abs(random[i]))
            heads.append(
                {
                    "n": n,
                    "H": s,
                    "direct_replicates": replicates,
                    "drawn": float(simulated.extremes[0]),
                    "non_normality": float(simulated.non_normality[0]),
                    "predicted": float(map_curve(head, [n]).error[0]),
                    "direct": [np.sqrt(square), error / (2 * np.sqrt(square))],
                    "extremes": [float(simulated.rms[0]), float(simulated.rms_error[0])],
                    "direct_norm": [norm, norm_error],
                    "extremes_norm": [float(simulated.mean[0]), float(simulated.mean_error[0])],
                }
            )
    return queries, heads


def direct_means(horizon: float, n: int, replicates: int) -> Array:
    """Errors of the mean output over a grid of tilts, all n keys held."""
    tilts = np.linspace(-6.5 * horizon, 6.5 * horizon, 61 + int(40 * horizon))
    shares = np.exp(-0.5 * (tilts / horizon) ** 2)
    shares /= shares.sum()
    errors = np.empty(replicates)
    for r in range(replicates):
        x = random_stream(1, "extremes benchmark mean", n, r).standard_normal(n)
        errors[r] = sum(p * attend(x, t)[0] for p, t in zip(shares, tilts, strict=True))
    return errors


def mean_cells() -> list[Row]:
    rows = []
    for h in MEAN_HORIZONS:
        head = gaussian_head(horizon=h, dim=1)
        for n, replicates in MEAN_DIRECT.items():
            errors = direct_means(h, n, replicates)
            found = simulate_mean(head, [n], 1000, seed=2)
            curves = moment_curves(head, [n])
            square, spread = mean_and_error(errors**2)
            rows.append(
                {
                    "H": h,
                    "n": n,
                    "direct_replicates": replicates,
                    "predicted": float(curves["mean"].error[0]),
                    "direct": mean_and_error(np.abs(errors)),
                    "extremes": [float(found.mean[0]), float(found.mean_error[0])],
                    "predicted_rms": float(curves["mean_rms"].error[0]),
                    "direct_rms": [np.sqrt(square), spread / (2 * np.sqrt(square))],
                    "extremes_rms": [float(found.rms[0]), float(found.rms_error[0])],
                }
            )
    return rows


def large_cells() -> list[Row]:
    rows = []
    n = np.array(LARGE)
    for h in STRENGTHS:
        for d in (1, 8):
            head = gaussian_head(horizon=h, dim=d)
            seed = 100 + len(rows)  # so that cells are independent
            found = simulate_map(head, n, REPLICATES, seed=seed)
            row = {
                "H": h,
                "d": d,
                "n": n.tolist(),
                "predicted": map_curve(head, n).error.tolist(),
                "extremes": found.rms.tolist(),
                "extremes_error": found.rms_error.tolist(),
                "norm": found.mean.tolist(),
                "norm_error": found.mean_error.tolist(),
                "largest_weight": found.largest_weight.tolist(),
                "largest_share": found.largest_share.tolist(),
                "asymptotic": min(0.5, 1 / (1 + h * h)),
                "regime": [regime(h, h * np.sqrt(d), size).name for size in n],
            }
            low, high = found.mean[-2:]
            gap = np.log(n[-1] / n[-2])
            relative = found.mean_error[-2:] / found.mean[-2:]
            row["norm_slope"] = [np.log(low / high) / gap, float(np.hypot(*relative)) / gap]
            if d == 1 and h in MEAN_HORIZONS:
                curves = moment_curves(head, n)
                mean = simulate_mean(head, n, 1000, seed=seed)
                row |= {
                    "mean_predicted": curves["mean"].error.tolist(),
                    "mean": mean.mean.tolist(),
                    "mean_error": mean.mean_error.tolist(),
                    "mean_rms_predicted": curves["mean_rms"].error.tolist(),
                    "mean_rms": mean.rms.tolist(),
                    "mean_rms_error": mean.rms_error.tolist(),
                }
            rows.append(row)
    return rows


def regime_cells() -> list[Row]:
    rows = []
    grid = np.array([10.0**k for k in range(2, 25, 2)])
    for s in (1.0, 2.0, 4.0, 6.0):
        norms, tops = [], []
        for n in grid:
            found = simulate_query(n, s, REPLICATES, seed=4)
            norms.append(mean_and_error(np.abs(found.along)))
            tops.append(mean_and_error(found.largest))
        values, errors = np.array(norms).T
        for i in range(len(grid) - 1):
            gap = np.log(grid[i + 1] / grid[i])
            relative = np.hypot(errors[i] / values[i], errors[i + 1] / values[i + 1])
            middle = float(np.sqrt(grid[i] * grid[i + 1]))
            at = regime(0.0, s, middle)
            rows.append(
                {
                    "s": s,
                    "n": middle,
                    "regime": at.name,
                    "position": at.position,
                    "leading_order": at.exponent,
                    "slope": [np.log(values[i] / values[i + 1]) / gap, relative / gap],
                    "largest_weight": tops[i],
                }
            )
    return rows


def table(rows: list[Row], columns: dict[str, str]) -> str:
    lines = ["| " + " | ".join(columns) + " |", "|" + "---|" * len(columns)]
    lines += ["| " + " | ".join(f.format(**row) for f in columns.values()) + " |" for row in rows]
    return "\n".join(lines)


def show(result: Row) -> None:
    pair = "{0[0]:.4g} ± {0[1]:.1g}"
    if "queries" in result:
        rows = result["queries"]
        columns = {"n": "{n:,}", "s": "{s:g}", "exact": "{square[exact]:.4g}"}
        columns |= {kind: pair.replace("0[", f"square[{kind}][") for kind in ("direct", "extremes")}
        print(table(rows, columns | {"KS p": "{ks_along:.2f}", "KS p, b": "{ks_collision:.2f}"}))
        ps = [row[k] for row in rows for k in ("ks_along", "ks_collision")]
        print(f"smallest of {len(ps)} p-values {min(ps):.3g}\n")
    if "heads" in result:
        columns = {
            "H": "{H:g}",
            "n": "{n:,}",
            "drawn": "{drawn:.0f}",
            "predicted": "{predicted:.4g}",
        }
        columns |= {kind: pair.replace("0[", f"{kind}[") for kind in ("direct", "extremes")}
        columns |= {k: pair.replace("0[", f"{k}[") for k in ("direct_norm", "extremes_norm")}
        print(table(result["heads"], columns) + "\n")
    if "mean" in result:
        columns = {"H": "{H:g}", "n": "{n:,}", "predicted": "{predicted:.4g}"}
        columns |= {kind: pair.replace("0[", f"{kind}[") for kind in ("direct", "extremes")}
        columns |= {"predicted rms": "{predicted_rms:.4g}"}
        columns |= {k: pair.replace("0[", f"{k}[") for k in ("direct_rms", "extremes_rms")}
        print(table(result["mean"], columns) + "\n")
    if "large" in result:
        columns = {"H": "{H:g}", "d": "{d}"}
        for i, n in enumerate(LARGE):
            columns[f"n = {n:.0e}"] = (
                f"{{predicted[{i}]:.4g}} / {{extremes[{i}]:.4g}} ± {{extremes_error[{i}]:.1g}}"
            )
        columns |= {"slope": pair.replace("0[", "norm_slope["), "1/(1+H^2)": "{asymptotic:.3f}"}
        print(table(result["large"], columns) + "\n")
        columns = {"H": "{H:g}"}
        for i, n in enumerate(LARGE):
            columns[f"n = {n:.0e}"] = (
                f"{{mean_predicted[{i}]:.4g}} / {{mean[{i}]:.4g}} ± {{mean_error[{i}]:.1g}}"
            )
        print(table([row for row in result["large"] if "mean" in row], columns) + "\n")
    if "regimes" in result:
        columns = {"s": "{s:g}", "n": "{n:.0e}", "regime": "{regime}", "x": "{position:.2f}"}
        columns |= {"1 - x": "{leading_order:.2f}", "slope": pair.replace("0[", "slope[")}
        columns |= {"top key": pair.replace("0[", "largest_weight[")}
        print(table(result["regimes"], columns))


def main() -> None:
    """Measure, print, store."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--only", help="parts, such as mean,large")
    options = parser.parse_args()
    chosen = options.only.split(",") if options.only else ["queries", "mean", "large", "regimes"]
    result: Row = json.loads(RESULTS.read_text()) if RESULTS.exists() else {}
    start = time.process_time()
    if {"queries", "heads"} & set(chosen):
        result["queries"], result["heads"] = query_and_head_cells()
    for name, measure in (("mean", mean_cells), ("large", large_cells), ("regimes", regime_cells)):
        if name in chosen:
            result[name] = measure()
    show(result)
    RESULTS.parent.mkdir(exist_ok=True)
    RESULTS.write_text(json.dumps(result, indent=1) + "\n")
    print(f"{time.process_time() - start:.0f} s; wrote {RESULTS}")


if __name__ == "__main__":
    main()
