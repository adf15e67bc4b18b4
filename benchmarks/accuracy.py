"""How good are the predicted curves? Prediction against direct simulation over a grid of heads.

Prints two Markdown tables and writes ``benchmarks/results/accuracy.json``:

* errors of map, mean and covariance over H x d, tokens attending to each other: root mean squares,
  as the relative gap between prediction and simulation that is largest over n, beside the
  simulation's own standard error; for population queries, map and mean (the mean's prediction
  includes the noise of the finite number of queries, map error squared over that number);
* exponents of mean and covariance in one dimension fitted on n = 300 to 100,000, predicted and
  simulated, with intervals from resampled replicates.
"""

from __future__ import annotations

import argparse
import json
import time
from pathlib import Path

import numpy as np

import esscher
from benchmarks.direct import direct_errors
from benchmarks.line import line_errors
from esscher.core.validation import Array

HORIZONS = (0.3, 0.5, 0.7, 1.0, 1.5, 2.0, 3.0)
DIMS = (1, 8, 50)
#: Population queries per replicate.
POPULATION = 1000
#: Replicates by dimension: the norm of a vector of high dimension fluctuates less.
REPLICATES = {1: 400, 8: 160, 50: 40}
RESULTS = Path(__file__).parent / "results" / "accuracy.json"


def rms(samples: Array) -> tuple[Array, Array]:
    """Root mean square over replicates (first axis) and its standard error."""
    square = samples.mean(axis=0)
    error = samples.std(axis=0, ddof=1) / np.sqrt(len(samples))
    return np.sqrt(square), error / (2 * np.sqrt(square))


def cell(h: float, d: int, sizes: list[int], replicates: int, queries: str) -> dict[str, object]:
    head = esscher.gaussian_head(h, d)
    limit = esscher.limit_moments(head)
    assert isinstance(limit, esscher.theory.OutputMoments)
    start = time.perf_counter()
    prediction = esscher.predict(head, sizes, queries=queries)
    seconds = time.perf_counter() - start
    run = direct_errors(
        head,
        sizes,
        replicates=replicates,
        seed=20,
        queries=queries,
        limit=(limit.mean, limit.covariance),
        query_count=None if queries == "tokens" else POPULATION,
    )
    out: dict[str, object] = {"H": h, "d": d, "queries": queries, "seconds": seconds}
    metrics = {
        "map": run.map_square,
        "mean_rms": np.sum(run.mean**2, axis=2),
        "cov_rms": np.sum(run.cov**2, axis=(2, 3)),
    }
    if queries == "population":
        del metrics["cov_rms"]
    for name, samples in metrics.items():
        measured, error = rms(samples)
        predicted = prediction.curves[name].error
        if queries == "population" and name == "mean_rms":
            share = 1 / POPULATION
            noise = prediction.curves["map"].error ** 2 * share
            predicted = np.sqrt(predicted**2 * (1 - share) + noise)
        out[name] = {
            "predicted": predicted.tolist(),
            "simulated": measured.tolist(),
            "standard_error": error.tolist(),
        }
    return out


def grid_table(cells: list[dict[str, object]]) -> str:
    names = [name for name in ("map", "mean_rms", "cov_rms") if name in cells[0]]
    heads = [f" {name.removesuffix('_rms')}: gap (s.e.) |" for name in names]
    lines = ["| d | H |" + "".join(heads), "|---|---|" + "---|" * len(names)]
    for row in cells:
        columns = []
        for name in names:
            item = row[name]
            assert isinstance(item, dict)
            measured = np.array(item["simulated"])
            gap = np.array(item["predicted"]) / measured - 1
            noise = np.array(item["standard_error"]) / measured
            worst = int(np.argmax(np.abs(gap)))
            # an error carried by samples too rare to be drawn cannot be checked this way
            seen = noise[worst] < 0.2
            columns.append(f"{gap[worst]:+.1%} ({noise[worst]:.1%})" if seen else "not seen")
        lines.append(f"| {row['d']} | {row['H']:g} | " + " | ".join(columns) + " |")
    return "\n".join(lines)


def fitted(log_n: Array, values: Array) -> float:
    x = log_n - log_n.mean()
    return float(-np.dot(x, np.log(values)) / np.dot(x, x))


def slopes(replicates: int) -> list[dict[str, object]]:
    sizes = np.round(np.geomspace(300, 100_000, 8))
    rng = np.random.default_rng(np.random.SeedSequence(0, spawn_key=(99,)))
    rows = []
    for h in (0.5, 0.7, 1.0, 1.5, 2.0, 3.0):
        run = line_errors(h, sizes, replicates=replicates, seed=9)
        predicted = esscher.theory.moment_curves(esscher.gaussian_head(h), sizes, "tokens")
        outside = esscher.theory.moment_curves(esscher.gaussian_head(h), sizes, "population")
        row: dict[str, object] = {"H": h, "asymptotic": esscher.exponents(h).mean}
        for name, samples, curve in (
            ("mean", run.mean, predicted["mean"]),
            ("cov", run.cov, predicted["cov"]),
            ("mean_population", run.population, outside["mean"]),
        ):
            size = np.abs(samples)
            log_n = np.log(sizes)
            draws = [
                fitted(log_n, size[rng.integers(replicates, size=replicates)].mean(axis=0))
                for _ in range(400)
            ]
            row[name] = {
                "simulated": fitted(log_n, size.mean(axis=0)),
                "interval": np.percentile(draws, [2.5, 97.5]).tolist(),
                "predicted": curve.slope(),
            }
        rows.append(row)
    return rows


def slope_table(rows: list[dict[str, object]]) -> str:
    lines = [
        "| H | mean, tokens | predicted | covariance | predicted | mean, population | predicted "
        "| conjectured |",
        "|---|---|---|---|---|---|---|---|",
    ]
    for row in rows:
        columns = []
        for name in ("mean", "cov", "mean_population"):
            item = row[name]
            assert isinstance(item, dict)
            low, high = item["interval"]
            columns.append(f"{item['simulated']:.3f} [{low:.3f}, {high:.3f}]")
            columns.append(f"{item['predicted']:.3f}")
        lines.append(f"| {row['H']:g} | " + " | ".join(columns) + f" | {row['asymptotic']:.3f} |")
    return "\n".join(lines)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--share", type=float, default=1.0, help="of the default replicates")
    parser.add_argument("--line-replicates", type=int, default=200)
    parser.add_argument("--sizes", type=int, nargs="+", default=[100, 500, 2500])
    options = parser.parse_args()
    tables = {}
    cells = []
    for queries in ("tokens", "population"):
        part = [
            cell(h, d, options.sizes, max(8, int(options.share * REPLICATES[d])), queries)
            for d in DIMS
            for h in HORIZONS
        ]
        tables[queries] = grid_table(part)
        cells += part
        print(f"\nQueries: {queries}; n = {options.sizes}; largest gap over n\n")
        print(tables[queries], flush=True)
    rows = slopes(options.line_replicates)
    print("\nExponents in one dimension, n = 300 to 100,000 (95% intervals)\n")
    print(slope_table(rows))
    RESULTS.parent.mkdir(exist_ok=True)
    RESULTS.write_text(json.dumps({"cells": cells, "slopes": rows}, indent=1) + "\n")


if __name__ == "__main__":
    main()
