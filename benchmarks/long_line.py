"""Errors of the mean output in one dimension to n = 10^5: root mean square and expected norm.

Plain numpy, no formula of the predictors. On the line the output is a smooth function of the tilt:
one pass over a grid of tilts serves every horizon, and weights go from one tilt to the next by a
product, so that 10^5 tokens take a tenth of a second. Prints a Markdown table with the predicted
values and writes ``benchmarks/results/long_line.json``.
"""

from __future__ import annotations

import argparse
import json
from pathlib import Path

import numpy as np
from numpy.typing import NDArray
from scipy.interpolate import CubicSpline

import esscher

HORIZONS = (0.5, 1.0, 1.5, 2.0, 3.0)
SIZES = (100, 1000, 10_000, 100_000)
#: Step and half-width of the grid of tilts: 8.5 standard deviations at H = 3.
STEP, TOP = 0.25, 25.5
RESULTS = Path(__file__).parent / "results" / "long_line.json"
Array = NDArray[np.float64]


def one_side(tokens: Array, count: int) -> Array:
    """Softmax attention at tilts 0, STEP, 2 STEP, ... over scalar tokens."""
    shifted = tokens - tokens.max()
    factor = np.exp(STEP * shifted)
    weight = np.ones_like(tokens)
    out = np.empty(count)
    for k in range(count):
        out[k] = weight @ tokens / weight.sum()
        weight *= factor
    return out


def errors(replicates: int, seed: int) -> dict[str, Array]:
    """Errors of the mean, tokens and population queries: (replicate, horizon, size)."""
    count = int(TOP / STEP) + 1
    grid = STEP * np.arange(-count + 1, count)
    shape = (replicates, len(HORIZONS), len(SIZES))
    results = {"tokens": np.empty(shape), "population": np.empty(shape)}
    for r in range(replicates):
        sample = np.random.default_rng([seed, r]).standard_normal(SIZES[-1])
        for i, n in enumerate(SIZES):
            tokens = sample[:n]
            left, right = -one_side(-tokens, count), one_side(tokens, count)
            output = np.concatenate([left[:0:-1], right])
            spline = CubicSpline(grid, output)
            for j, h in enumerate(HORIZONS):
                mass = np.exp(-0.5 * (grid / h) ** 2)
                results["population"][r, j, i] = mass @ output / mass.sum()
                results["tokens"][r, j, i] = spline(np.clip(h * tokens, -TOP, TOP)).mean()
    return results


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--replicates", type=int, default=1200)
    options = parser.parse_args()
    result = errors(options.replicates, 31)
    rows = []
    print("| queries | H | n | rms: simulated | gap | expected: simulated | gap |")
    print("|---|---|---|---|---|---|---|")
    for queries, samples in result.items():
        for j, h in enumerate(HORIZONS):
            curves = esscher.theory.moment_curves(esscher.gaussian_head(h), SIZES, queries)
            for i, n in enumerate(SIZES):
                size = np.abs(samples[:, j, i])
                square = size**2
                rms = float(np.sqrt(square.mean()))
                row = {
                    "queries": queries,
                    "H": h,
                    "n": n,
                    "rms": rms,
                    "rms_error": float(square.std() / np.sqrt(len(size)) / (2 * rms)),
                    "expected": float(size.mean()),
                    "expected_error": float(size.std() / np.sqrt(len(size))),
                    "rms_predicted": float(curves["mean_rms"].error[i]),
                    "expected_predicted": float(curves["mean"].error[i]),
                }
                rows.append(row)
                cells = [
                    f"{row[k]:.4g} ({row[f'{k}_error']:.2g}) | "
                    f"{row[f'{k}_predicted'] / row[k] - 1:+.1%}"
                    for k in ("rms", "expected")
                ]
                print(f"| {queries} | {h:g} | {n} | " + " | ".join(cells) + " |", flush=True)
    RESULTS.parent.mkdir(exist_ok=True)
    written = {"replicates": options.replicates, "rows": rows}
    RESULTS.write_text(json.dumps(written, indent=1) + "\n")


if __name__ == "__main__":
    main()
