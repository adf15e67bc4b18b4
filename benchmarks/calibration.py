"""Do the intervals of fitted rates hold what they promise? Coverage over simulated curves.

Prints Markdown tables and writes ``benchmarks/results/calibration.json``:

* coverage and mean width of nominal 95% intervals of the exponent. Curves are drawn, without
  overlap within a cell, from a pool of replicates of Gaussian heads (one pool for d = 1, one for
  8; H below and above 1): a cell has a binomial standard error, but cells of a pool share its
  tokens, so that over cells only the coverage of each pool is given. The truth is the slope, with
  the curve's own weights, of the mean curve of the whole pool. Then the same for
  synthetic curves whose expected error is exactly a power law, with light to heavy tails: the
  truth is their exponent;
* how often a true power law is called something else, from the synthetic curves;
* k-hat of received attention and the exponent it gives, beside the swept one;
* how often tokens of heads without sinks are taken for sinks, and how often sinks are found;
* what the selection of laws can see, which law is called what, and k-hat on dependent tokens
  (``benchmarks/detection.py``).

About half an hour on one core. ``--only laws,dependent`` runs some parts and leaves the numbers of
the others as they are.
"""

from __future__ import annotations

import argparse
import json
import time
from pathlib import Path
from typing import Any

import numpy as np
import torch
from scipy import stats

import esscher
from benchmarks.detection import (
    called_cells,
    dependent_cells,
    head_law_cells,
    law_cells,
)
from esscher.core.streams import random_stream
from esscher.core.validation import Array
from esscher.engine.attention.outputs import streamed_attention
from esscher.math.statistics import Rate, find_sinks, fit_rate, received_khat

DIMS = (1, 8)
HORIZONS = (0.5, 0.9, 1.5, 2.5)
SIZES = (32, 64, 128, 256, 512, 1024)
#: Replicates of a curve, and how many curves of each a cell has.
CURVES = {8: 80, 16: 80, 64: 40, 200: 20}
METRICS = {1: ("mean", "cov"), 8: ("mean", "map")}
#: Synthetic errors: name, and how a standard normal variable z becomes one of mean 1.
NOISE = {
    "half-normal": lambda z: np.abs(z) * np.sqrt(np.pi / 2),
    "lognormal": lambda z: np.exp(1.2 * z - 0.72),
    "Pareto 1.6": lambda z: stats.norm.sf(z) ** (-1 / 1.6) * 0.6 / 1.6,
    "Pareto 1.3": lambda z: stats.norm.sf(z) ** (-1 / 1.3) * 0.3 / 1.3,
}
BETA = 0.4
ONE_PASS_HORIZONS = (0.3, 0.5, 0.7, 1.0, 1.5, 2.0, 3.0)
ONE_PASS_SIZES = (256, 512, 1024, 2048, 4096)
#: Replicates of the sweep that one pass is compared with.
SWEPT = 120
#: Parts of the study by name.
PARTS = ("coverage", "one_pass", "sinks", "laws", "called", "head_laws", "dependent")
RESULTS = Path(__file__).parent / "results" / "calibration.json"

Row = dict[str, Any]


def covered(rates: list[Rate], truths: list[float]) -> Row:
    hits = [r.interval[0] <= t <= r.interval[1] for r, t in zip(rates, truths, strict=True)]
    share = float(np.mean(hits))
    return {
        "curves": len(hits),
        "coverage": share,
        "coverage_error": float(np.sqrt(max(share * (1 - share), 0.0475) / len(hits))),
        "width": float(np.mean([r.interval[1] - r.interval[0] for r in rates])),
        "bias": float(np.mean([r.exponent - t for r, t in zip(rates, truths, strict=True)])),
    }


def pool(dim: int, replicates: int) -> dict[tuple[float, str], Array]:
    curve = esscher.sweep(
        esscher.gaussian_head(1.0, dim),
        SIZES,
        replicates,
        seed=dim,
        alpha=HORIZONS,
        progress=False,
    )
    return {
        (h, m): curve["replicate_error"].sel(metric=m, alpha=h).values
        for h in HORIZONS
        for m in METRICS[dim]
    }


def head_cells(replicates: int) -> list[Row]:
    rows = []
    for dim in DIMS:
        for (h, metric), errors in pool(dim, replicates).items():
            centre = errors.mean(axis=0)
            for count, curves in CURVES.items():
                groups = errors[: count * min(curves, len(errors) // count)]
                rates = [
                    fit_rate(part, SIZES, seed=i)
                    for i, part in enumerate(groups.reshape(-1, count, len(SIZES)))
                ]
                where = {"d": dim, "H": h, "metric": metric, "replicates": count}
                rows.append(where | covered(rates, [rate.slope_of(centre) for rate in rates]))
    return rows


def synthetic_errors(noise: str, replicates: int, seed: int) -> Array:
    """Errors with mean ``n^-0.4`` exactly; neighbours are correlated as nested sizes are."""
    x = np.log(SIZES)
    root = np.linalg.cholesky(np.exp(-0.5 * np.abs(x[:, None] - x)))
    rng = random_stream(seed, "calibration", replicates, list(NOISE).index(noise))
    return np.asarray(NOISE[noise](rng.standard_normal((replicates, len(x))) @ root.T)) * np.exp(
        -BETA * x
    )


def synthetic_cells() -> list[Row]:
    rows = []
    for noise in NOISE:
        for count, curves in CURVES.items():
            rates = [
                fit_rate(synthetic_errors(noise, count, i), SIZES, seed=i) for i in range(curves)
            ]
            row = {"noise": noise, "replicates": count} | covered(rates, [BETA] * len(rates))
            row["bent"] = sum(rate.law != "power" for rate in rates)
            row["steepens"] = sum(rate.selection.steepens for rate in rates)
            rows.append(row)
    return rows


def received(dim: int, n: int, replicate: int, sink_logits: tuple[float, ...] = ()) -> Array:
    """Received attention at all horizons; sinks are extra keys of constant logit."""
    rng = random_stream(7, "received", dim, n, replicate, len(sink_logits))
    tokens = rng.standard_normal((n, dim))
    keys = np.zeros((n + len(sink_logits), dim + 1))
    keys[len(sink_logits) :, :dim] = tokens
    out = []
    for h in ONE_PASS_HORIZONS:
        # E exp of a Gaussian logit of variance h^2 |x|^2 is exp(h^2 d / 2) at a typical query.
        keys[: len(sink_logits), dim] = np.array(sink_logits) + np.log(n) + h * h * dim / 2
        queries = np.column_stack([h * tokens, np.ones(n)])
        q, k = torch.from_numpy(queries), torch.from_numpy(keys)
        out.append(streamed_attention(q, lambda k=k: [(k, k)], scaling=1.0)[2])
    return np.array(out)


def one_pass_cells(replicates: int) -> list[Row]:
    rows = []
    for dim in DIMS:
        curve = esscher.sweep(
            esscher.gaussian_head(1.0, dim),
            ONE_PASS_SIZES,
            SWEPT,
            seed=3,
            alpha=ONE_PASS_HORIZONS,
            progress=False,
        )
        passes = [received(dim, ONE_PASS_SIZES[-1], r) for r in range(replicates)]
        for s, h in enumerate(ONE_PASS_HORIZONS):
            swept = fit_rate(curve["replicate_error"].sel(metric="mean", alpha=h), ONE_PASS_SIZES)
            head = esscher.gaussian_head(h, dim)
            burn_in = float(np.exp(min(head.frobenius**2, 700.0)))
            k, low, high = np.array([received_khat(p[s], find_sinks(p[s])) for p in passes]).T
            beta = np.clip(1 - k, 0.0, 0.5)
            formula = esscher.exponents(h).khat
            rows.append(
                {
                    "d": dim,
                    "H": h,
                    "k_formula": formula,
                    "k": float(k.mean()),
                    "k_deviation": float(k.std(ddof=1)),
                    "k_covered": float(np.mean((low <= formula) & (formula <= high))),
                    "one_pass": float(beta.mean()),
                    "swept": swept.exponent,
                    "swept_interval": list(swept.interval),
                    "error": float(np.mean(np.abs(beta - swept.exponent))),
                    "sharp": esscher.exponents(h).mean,
                    "past_burn_in": ONE_PASS_SIZES[-1] >= burn_in,
                }
            )
    return rows


def sink_cells(replicates: int) -> list[Row]:
    """Sinks of about 3% (weak) and 10% (strong) of the attention each, 1, 2 and 5 of them."""
    rows = []
    for dim in DIMS:
        for n in (1000, 4000):
            some = max(2, replicates // (1 if n == 1000 else 4))
            for name, logits in {
                "none": (),
                "1 weak": (-3.5,),
                "1 strong": (-2.3,),
                "2 strong": (-2.3, -2.5),
                "5 strong": (-2.3,) * 2 + (-2.5,) * 3,
            }.items():
                if n == 4000 and name not in ("none", "1 strong"):
                    continue
                hits = np.zeros((2, len(ONE_PASS_HORIZONS)))
                for r in range(some):
                    for s, values in enumerate(received(dim, n, r, logits)):
                        result = set(find_sinks(values).tolist())
                        hits[0, s] += result >= set(range(len(logits)))
                        hits[1, s] += bool(result - set(range(len(logits))))
                rows.append(
                    {"d": dim, "n": n, "sinks": name, "heads": some}
                    | {"found": (hits[0] / some).tolist(), "others": (hits[1] / some).tolist()}
                )
    return rows


def table(rows: list[Row], columns: dict[str, str]) -> str:
    lines = ["| " + " | ".join(columns) + " |", "|" + "---|" * len(columns)]
    lines += [
        "| " + " | ".join(form.format(**row) for form in columns.values()) + " |" for row in rows
    ]
    return "\n".join(lines)


def overall(rows: list[Row], keys: tuple[str, ...]) -> list[Row]:
    """Coverage over the cells with the same keys, and that of each pool of tokens.

    Cells of a pool share its tokens, whatever their horizon, metric and replicates: two pools are
    two trials, and no standard error can be had from them. Synthetic curves are independent.
    """
    groups: dict[tuple[Any, ...], list[Row]] = {}
    for row in rows:
        groups.setdefault(tuple(row[key] for key in keys), []).append(row)
    out = []
    for values, members in groups.items():
        curves = sum(m["curves"] for m in members)
        share = sum(m["coverage"] * m["curves"] for m in members) / curves
        width = sum(m["width"] * m["curves"] for m in members) / curves
        results = {"curves": curves, "coverage": share, "width": width}
        if "d" in members[0]:
            pools = {d: [m for m in members if m["d"] == d] for d in DIMS}
            results |= {
                f"coverage_{d}": sum(m["coverage"] * m["curves"] for m in part)
                / sum(m["curves"] for m in part)
                for d, part in pools.items()
                if part
            }
        else:
            results["coverage_error"] = float(np.sqrt(share * (1 - share) / curves))
        out.append(dict(zip(keys, values, strict=True)) | results)
    return out


def coverage(pool_size: int) -> Row:
    """Coverage of the intervals of exponents, by head and over synthetic curves."""
    heads = head_cells(pool_size)
    both = {"coverage": "{coverage:.1%} ± {coverage_error:.1%}", "width": "{width:.3f}"}
    print(table(heads, {k: f"{{{k}}}" for k in ("d", "H", "metric", "replicates")} | both))
    exact = synthetic_cells()
    print(
        table(exact, {"noise": "{noise}", "replicates": "{replicates}"} | both | {"bent": "{bent}"})
    )
    bent = sum(row["bent"] for row in exact) / sum(row["curves"] for row in exact)
    print(f"\nTrue power laws called bent: {bent:.1%}\n")
    return {
        "nominal": 0.95,
        "sizes": SIZES,
        "bent_power_laws": bent,
        "heads": heads,
        "synthetic": exact,
    } | together(heads, exact)


def together(heads: list[Row], exact: list[Row]) -> Row:
    """Print and return coverage over cells."""
    by = {
        "all heads": overall(heads, ()),
        "replicates": overall(heads, ("replicates",)),
        "horizon": overall(heads, ("H",)),
        "all synthetic": overall(exact, ()),
        "synthetic": overall(exact, ("replicates",)),
    }
    for name, rows in by.items():
        forms = {
            key: f"{{{key}:.1%}}" if key.startswith("coverage") else f"{{{key}:.3g}}"
            for key in rows[0]
        } | {key: f"{{{key}}}" for key in ("curves",) if key in rows[0]}
        print(f"\nBy {name}\n" + table(rows, forms))
    return {"by": by}


def one_pass(passes: int) -> Row:
    """k-hat of received attention beside the swept exponent."""
    result = one_pass_cells(passes)
    columns = {"d": "{d}", "H": "{H:g}", "k formula": "{k_formula:.2f}"}
    columns |= {"k-hat": "{k:.2f} ± {k_deviation:.2f}", "covered": "{k_covered:.0%}"}
    columns |= {"one pass": "{one_pass:.3f}", "swept": "{swept:.3f}", "error": "{error:.3f}"}
    columns |= {"asymptotic": "{sharp:.3f}", "past burn-in": "{past_burn_in}"}
    print(table(result, columns) + "\n")
    return {"one_pass": result, "passes": passes}


def sinks(heads: int) -> Row:
    """Sinks that are found, and tokens that are taken for sinks."""
    result = sink_cells(heads)
    rows = [
        row
        | {"at": " ".join(f"{x:.2f}" for x in row["found"])}
        | {"more": " ".join(f"{x:.2f}" for x in row["others"])}
        for row in result
    ]
    columns = {k: f"{{{k}}}" for k in ("d", "n", "sinks", "heads")}
    print(table(rows, columns | {"all found, by H": "{at}", "others taken, by H": "{more}"}))
    return {"sinks": result}


def laws(curves: int) -> Row:
    """What the selection of laws sees."""
    rows = law_cells(curves)
    percent = ("bent", "power_floor", "power_logarithm", "limit", "limit_covers")
    percent += ("verdict_power", "verdict_undecided", "leaves_prediction", "predicted_limit")
    keys = ("noise", "replicates", "truth")
    shown = [
        {key: row[key] for key in keys}
        | {key: "" if row[key] is None else f"{row[key]:.0%}" for key in percent}
        for row in rows
    ]
    print(table(shown, {key: f"{{{key}}}" for key in (*keys, *percent)}) + "\n")
    return {"laws": rows}


def called(curves: int) -> Row:
    """Which law is called what, and whether the tokens needed beyond the sizes are covered."""
    rows = called_cells(curves)
    names = ("extrapolates", "exponent_covers", "tokens_cover", "tokens_decided")
    shares = (*names, "decided_and_wrong", "tokens_infinite")
    columns = {key: f"{{{key}}}" for key in ("truth", "scatter", "replicates")}
    columns |= {name: f"{{called[{name}]:.0%}}" for name in rows[0]["called"]}
    print(table(rows, columns | {name: f"{{{name}:.0%}}" for name in shares}) + "\n")
    return {"called_laws": rows}


def head_laws(curves: int) -> Row:
    """What the selection of laws sees on Gaussian heads."""
    rows = head_law_cells(curves)
    metrics = {metric: f"{{{metric}}}" for metric in ("mean", "cov", "map")}
    columns = {"d": "{d}", "H": "{H:g}", "floor": "{floor:.0%}"}
    print(table(rows, columns | metrics) + "\n")
    return {"head_laws": rows}


def dependent(passes: int) -> Row:
    """Coverage of k-hat on autoregressive tokens."""
    rows = dependent_cells(passes)
    columns = {"d": "{d}", "correlation": "{correlation:g}", "H": "{H:g}"}
    columns |= {"k": "{k_formula:.2f}", "k-hat": "{k:.2f} ± {k_deviation:.2f}"}
    columns |= {"covered": "{covered:.0%}", "half-width": "{half_width:.2f}"}
    print(table(rows, columns) + "\n")
    return {"dependent": rows}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--pool", type=int, default=4000, help="replicates of each head")
    parser.add_argument("--passes", type=int, default=120, help="passes behind a mean k-hat")
    parser.add_argument("--sinks", type=int, default=40, help="heads behind a rate of sinks")
    parser.add_argument("--curves", type=int, default=100, help="curves behind a rate of laws")
    parser.add_argument("--heads", type=int, default=40, help="sweeps behind a law of heads")
    parser.add_argument("--dependent", type=int, default=60, help="passes over dependent tokens")
    parser.add_argument("--only", default=",".join(PARTS), help="parts, separated by commas")
    options = parser.parse_args()
    chosen = options.only.split(",")
    if not set(chosen) <= set(PARTS):
        parser.error(f"--only is {options.only}; the parts are {', '.join(PARTS)}")
    every = set(chosen) == set(PARTS)
    result: Row = {} if every else json.loads(RESULTS.read_text())
    start = time.perf_counter()
    parts = {
        "coverage": lambda: coverage(options.pool),
        "one_pass": lambda: one_pass(options.passes),
        "sinks": lambda: sinks(options.sinks),
        "laws": lambda: laws(options.curves),
        "called": lambda: called(options.curves),
        "head_laws": lambda: head_laws(options.heads),
        "dependent": lambda: dependent(options.dependent),
    }
    for name in PARTS:
        if name in chosen:
            result |= parts[name]()
    seconds = time.perf_counter() - start
    if every:
        result["seconds"] = seconds
    RESULTS.parent.mkdir(exist_ok=True)
    RESULTS.write_text(json.dumps(result, indent=1) + "\n")
    print(f"{seconds:.0f} s; wrote {RESULTS}")


if __name__ == "__main__":
    main()
