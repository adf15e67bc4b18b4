"""Claims against simulations that share no code with them: plain numpy, nothing of the project.

Every row is a claim of the project: the value it states with its standard error, the value of a
simulation written here with its own, and the z-score of their difference. Prints a Markdown table
(docs/accuracy.md has it) and writes ``benchmarks/results/truth.json``.

``--only NAME`` redoes some checks; ``--replicates`` scales their effort. About ten minutes on one
core, most of it for the line, k-hat and the laws of curves.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Callable, Iterator
from dataclasses import asdict
from pathlib import Path
from typing import Any

import numpy as np

import esscher
from benchmarks import truth_paper, truth_rates
from benchmarks.claims import Row

RESULTS = Path(__file__).parent / "results" / "truth.json"
#: Seed of every simulation.
SEED = 2026
#: What predictions are that are not sampled, by check.
ORDERS = {"map": "exact", "line": "second order", "covariance": "first order"}
#: Errors by the names of their curves.
WORDS = {
    "map": "map error",
    "mean_rms": "rms error of the mean",
    "cov_rms": "rms error of the covariance",
}


# The simulations: plain numpy.


def attention(tilts: Any, keys: Any, values: Any) -> Any:
    """Softmax attention, as in a textbook."""
    logits = tilts @ keys.T
    weights = np.exp(logits - logits.max(axis=1, keepdims=True))
    return (weights / weights.sum(axis=1, keepdims=True)) @ values


def errors_of(
    draw: Callable[[int], tuple[Any, Any, Any, Any]],
    n: int,
    replicates: int,
    mean: Any,
    covariance: Any,
) -> dict[str, tuple[float, float]]:
    """Root mean squares, with standard errors, of the errors of map, mean and covariance.

    ``draw(n)`` returns tilts, keys, values and the limit at each tilt.
    """
    rows = []
    for _ in range(replicates):
        tilts, keys, values, limit = draw(n)
        out = attention(tilts, keys, values)
        gap = np.cov(out.T, bias=True).reshape(covariance.shape) - covariance
        rows.append(
            [
                np.mean(np.sum((out - limit) ** 2, axis=1)),
                np.sum((out.mean(axis=0) - mean) ** 2),
                np.sum(gap**2),
                np.linalg.norm(out.mean(axis=0) - mean),
            ]
        )
    squares = np.array(rows)
    level = squares.mean(axis=0)
    noise = squares.std(axis=0, ddof=1) / np.sqrt(replicates)
    results = {
        name: (float(np.sqrt(level[k])), float(noise[k] / (2 * np.sqrt(level[k]))))
        for k, name in enumerate(("map", "mean_rms", "cov_rms"))
    }
    return results | {"mean": (float(level[3]), float(noise[3]))}


def gaussian_tokens(spectrum: Any, rng: np.random.Generator) -> Callable[[int], Any]:
    """Standard normal tokens with M = diag(spectrum), whose limit is M x."""
    m = np.asarray(spectrum, dtype=float)

    def draw(n: int) -> tuple[Any, Any, Any, Any]:
        x = rng.standard_normal((n, len(m)))
        return x * m, x, x, x * m

    return draw


def row(check: str, claim: str, curve: Any, i: int, simulated: tuple[float, float]) -> Row:
    """A point of a predicted curve against a simulation."""
    # approximations that are not sampled have no standard error, and z shows what they neglect
    noise = float(np.nan_to_num(curve.standard_error[i]))
    return Row(check, claim, float(curve.error[i]), noise, *simulated)


# The checks.


def map_of_anisotropic_heads(scale: float) -> Iterator[Row]:
    """Map error of heads without symmetry, tokens as queries."""
    rng = np.random.default_rng(SEED)
    for spectrum in ([1.5, 0.75], [3.0, 1.5], [1.0, 0.5, 0.25]):
        m = np.array(spectrum)
        head = esscher.gaussian_head(spectrum=spectrum)
        curves = esscher.predict(head, [100, 1000], "tokens", seed=0).curves
        for i, n in enumerate((100, 1000)):
            count = int(scale * (4000 if n == 100 else 300))
            result = errors_of(gaussian_tokens(m, rng), n, count, 0 * m, np.diag(m**2))
            claim = f"map error, spectrum {spectrum}, n = {n:,}"
            yield row("map", claim, curves["map"], i, result["map"])


def mean_on_the_line(scale: float) -> Iterator[Row]:
    """Error of the mean in one dimension: root mean square and expected norm."""
    rng = np.random.default_rng(SEED + 1)
    sizes = [100, 1000]
    for h in (0.5, 1.0, 2.0, 3.0):
        curves = esscher.predict(esscher.gaussian_head(h), sizes, "tokens").curves
        for i, n in enumerate(sizes):
            count = int(scale * (4000 if n == 100 else 400))
            result = errors_of(
                gaussian_tokens([h], rng), n, count, np.zeros(1), np.array([[h * h]])
            )
            for name, words in (("mean_rms", "rms"), ("mean", "expected")):
                claim = f"{words} error of the mean, d = 1, H = {h:g}, n = {n:,}"
                yield row("line", claim, curves[name], i, result[name])


def covariance_at_small_horizons(scale: float) -> Iterator[Row]:
    """Error of the covariance where attention is nearly uniform."""
    rng = np.random.default_rng(SEED + 2)
    for h in (0.005, 0.05, 0.5):
        curves = esscher.predict(esscher.gaussian_head(h), [300, 1000], "tokens").curves
        for i, n in enumerate((300, 1000)):
            draw = gaussian_tokens([h], rng)
            result = errors_of(draw, n, int(scale * 1000), np.zeros(1), np.array([[h * h]]))
            claim = f"rms error of the covariance, d = 1, H = {h:g}, n = {n:,}"
            yield row("covariance", claim, curves["cov_rms"], i, result["cov_rms"])


def other_laws(scale: float) -> Iterator[Row]:
    """Laws that are not Gaussian: signs, whose limit is tanh."""
    rng = np.random.default_rng(SEED + 3)
    d, h, sizes = 3, 0.8, (64, 512)
    head = esscher.law_head(esscher.laws.Signs(d), horizon=h)
    curves = esscher.predict(head, sizes, "tokens", seed=1).curves
    # the limit has signs of the tokens times tanh(h): mean 0, covariance tanh(h)^2
    level = np.tanh(h)

    def draw(n: int) -> tuple[Any, Any, Any, Any]:
        x = rng.choice([-1.0, 1.0], size=(n, d))
        return h * x, x, x, level * x

    for i, n in enumerate(sizes):
        count = int(scale * 1000)
        result = errors_of(draw, n, count, np.zeros(d), level**2 * np.eye(d))
        for name in ("map", "mean_rms", "cov_rms"):
            claim = f"{WORDS[name]}, signs, d = 3, H = 0.8, n = {n}"
            yield row("laws", claim, curves[name], i, result[name])


def clouds(scale: float) -> Iterator[Row]:
    """A cloud of tokens, its curves from one pass."""
    rng = np.random.default_rng(SEED + 5)
    size, d, h = 1500, 4, 0.6
    x = rng.standard_normal((size, d)) * (1 + rng.random((size, 1)))
    head = esscher.array_head(h * x * np.sqrt(d), x, x)  # queries, keys, values
    limit = attention(h * x, x, x)
    mean, covariance = limit.mean(axis=0), np.cov(limit.T, bias=True)
    sizes = (64, 512)
    curves = esscher.predict(head, sizes, "tokens", seed=0).curves

    def draw(n: int) -> tuple[Any, Any, Any, Any]:
        rows = rng.integers(size, size=n)
        return h * x[rows], x[rows], x[rows], limit[rows]

    for i, n in enumerate(sizes):
        result = errors_of(draw, n, int(scale * 1000), mean, covariance)
        for name in ("map", "mean_rms", "cov_rms"):
            claim = f"{WORDS[name]}, cloud of {size:,} tokens with mixed norms, d = 4, n = {n}"
            yield row("clouds", claim, curves[name], i, result[name])


def causal_mask(scale: float) -> Iterator[Row]:
    """Attention with a causal mask over tokens of a cloud, against the whole matrix, masked.

    Squared errors of the mean output with and without mask, by the controlled means of the ledger
    and by plain averages; of the outputs in the second half of the positions; and the constant
    with mask to first order, which for Gaussian tokens is known in closed form, too.
    """
    import torch

    from esscher.studies.paper.models import causal_errors, controlled_means

    rng = np.random.default_rng(SEED + 6)
    sizes = (32, 256)
    for words, size, d, h in (("Gaussian", 600, 1, 0.4), ("mixed norms", 500, 3, 0.7)):
        x = rng.standard_normal((size, d)) * (1 + (d > 1) * rng.random((size, 1)))
        x = (x - x.mean(axis=0)) / (1 if d > 1 else x.std())
        v = x if d == 1 else np.tanh(x) + 0.3 * rng.standard_normal((size, d))
        q, k, values = (torch.tensor(part, dtype=torch.float32) for part in (h * x, x, v))
        limit = attention(h * x, x, v)
        groups = 20
        errors = [
            causal_errors(q, k, values, sizes, int(scale * 100), seed).dataset.isel(item=0)
            for seed in range(groups)
        ]
        for n in sizes:
            count = int(scale * 4000)
            brute = np.empty((3, count))
            for r in range(count):
                drawn = rng.integers(size, size=n)
                logits = h * x[drawn] @ x[drawn].T
                weights = np.exp(logits - logits.max(axis=1, keepdims=True))
                masked = np.tril(weights)
                with_mask = masked @ v[drawn] / masked.sum(axis=1, keepdims=True)
                without = weights @ v[drawn] / weights.sum(axis=1, keepdims=True)
                gap = np.sum((with_mask - limit[drawn]) ** 2, axis=1)
                brute[:, r] = [
                    np.sum((with_mask.mean(axis=0) - limit.mean(axis=0)) ** 2),
                    np.sum((without.mean(axis=0) - limit.mean(axis=0)) ** 2),
                    gap[n // 2 :].mean(),
                ]
            level, noise = brute.mean(axis=1), brute.std(axis=1, ddof=1) / np.sqrt(count)
            means: dict[str, Any] = {}
            at_n = [group.sel(size=n) for group in errors]
            for j, what in enumerate(("mean, causal mask", "mean, no mask")):
                square, first = (
                    np.array([group[name][j] for group in at_n])[..., None]
                    for name in ("square", "first")
                )
                known = np.array([[float(group["expected"][j])] for group in at_n])
                means[what] = controlled_means(square, first, known)[:, 0]
            position = [float(group["position"].mean()) for group in at_n]
            means["output at positions n/2 to n, causal mask"] = np.array(position)
            for j, (what, of_groups) in enumerate(means.items()):
                yield Row(
                    "causal",
                    f"n times squared error of the {what}, {words}, d = {d}, n = {n}",
                    n * float(of_groups.mean()),
                    n * float(of_groups.std(ddof=1) / np.sqrt(groups)),
                    n * float(level[j]),
                    n * float(noise[j]),
                )
    # the constant of Gaussian tokens: the cloud that the program is given is large
    h, clouds = 0.4, []
    for _ in range(60):
        part = torch.tensor(rng.standard_normal((2000, 1)), dtype=torch.float32)
        causal, dense = causal_errors(h * part, part, part, (64,), 1, 0).expected.values[0, :, 0]
        harmonic = np.sum(1 / np.arange(1, 65))
        clouds.append(dense * 64 + (causal - dense) * 64 / (1 - harmonic / 64))
    yield Row(
        "causal",
        "n times squared error of the mean, causal mask, n large, Gaussian, H = 0.4",
        float(np.mean(clouds)),
        float(np.std(clouds, ddof=1) / np.sqrt(len(clouds))),
        h**2 + 2 * h + 2 * (1 - h**4) ** -1.5,
        0.0,
    )


CHECKS: dict[str, Callable[[float], Iterator[Row]]] = {
    "map": map_of_anisotropic_heads,
    "line": mean_on_the_line,
    "covariance": covariance_at_small_horizons,
    "laws": other_laws,
    "clouds": clouds,
    "causal": causal_mask,
    "laws of curves": truth_rates.laws,
    "k-hat": truth_rates.khat,
    "tails": truth_rates.tails,
    "deep": truth_rates.deep,
    "argmax": truth_paper.argmax,
    "moments": truth_paper.moments,
}


def main() -> None:
    """Run the checks, print the table, and keep the rows."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--only", choices=CHECKS, action="append")
    parser.add_argument("--replicates", type=float, default=1.0, help="factor of their numbers")
    options = parser.parse_args()
    kept = json.loads(RESULTS.read_text())["rows"] if RESULTS.exists() else []
    chosen = options.only or list(CHECKS)
    kept = [old for old in kept if old["check"] not in chosen]
    print("| claim | stated | simulated | z |\n|---|---|---|---|")
    for name in chosen:
        for result in CHECKS[name](options.replicates):
            kept.append(asdict(result) | {"z": result.z})
            noise = f"({result.stated_error:.2g})"
            if result.stated_error == 0:
                noise = ORDERS.get(name, noise)
            print(
                f"| {result.claim} | {result.stated:.4g} {noise} "
                f"| {result.simulated:.4g} ({result.simulated_error:.2g}) | {result.z:+.1f} |",
                flush=True,
            )
        RESULTS.write_text(json.dumps({"seed": SEED, "rows": kept}, indent=1) + "\n")


if __name__ == "__main__":
    main()
