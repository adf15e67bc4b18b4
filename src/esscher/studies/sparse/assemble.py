"""From the measurements of all cells to what is said about every pattern."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from esscher.core.validation import Array
from esscher.engine.patterns import BASELINE, PATTERNS, Corrected
from esscher.math.statistics import Rate, fit_rate
from esscher.studies.sparse.compare import Pair, budget_for
from esscher.studies.sparse.measurement import METRICS, Measurement
from esscher.studies.sparse.units import describe_units
from esscher.studies.sparse.verdict import BASELINE as IS_BASELINE
from esscher.studies.sparse.verdict import Bias, judge

#: Relative map error for which budgets are given.
TARGET = 0.1
#: The pattern that is also compared with every other one.
CONSISTENT = Corrected.name
#: Relative rounding of outputs in float32; errors near it are not resolved.
RESOLUTION = 1e-6


@dataclass(frozen=True, eq=False)
class Curves:
    """All cells together.

    Attributes
    ----------
    units
        Pairs (layer, head).
    references
        What outputs are compared with.
    errors
        Relative errors [reference, pattern, metric, unit, replicate, budget]; a replicate is a
        sequence of tokens, or a passage (mean over its draws).
    bias_square
        Squared biases [pattern, unit, cell, budget].
    visible
        Mean number of keys that a query may see.
    norm
        Root mean square norm of dense outputs, mean over units and replicates.
    dense_limit
        Errors of dense attention against the limit, [metric, replicate].
    """

    units: tuple[tuple[int, int], ...]
    references: tuple[str, ...]
    errors: Array
    bias_square: Array
    visible: float
    norm: float
    dense_limit: Array

    @classmethod
    def of(cls, parts: Sequence[Measurement], draws_are_replicates: bool) -> Curves:
        """Put cells side by side.

        Parameters
        ----------
        parts
            The cells.
        draws_are_replicates
            Whether the replicates of a cell have tokens of their own (laws); else they are draws
            on the same passage, and the passage is the replicate.
        """
        errors = [
            part.errors if draws_are_replicates else part.errors.mean(axis=4, keepdims=True)
            for part in parts
        ]
        return cls(
            units=parts[0].units,
            references=parts[0].references,
            errors=np.concatenate(errors, axis=4),
            bias_square=np.stack([part.bias_square for part in parts], axis=2),
            visible=float(np.mean([part.visible for part in parts])),
            norm=float(np.mean([part.norms.mean() for part in parts])),
            dense_limit=np.concatenate([part.dense_limit for part in parts], axis=1),
        )


def assemble(parts: Sequence[Measurement], about: dict[str, Any], complete: bool) -> dict[str, Any]:
    """Fit every pattern and compare it with random selection; plain numbers, lists, strings."""
    configuration = about["configuration"]
    results: dict[str, Any] = {
        "kind": "sparse",
        "complete": complete,
        "configuration": configuration,
        "versions": about["versions"],
        "created": about["created"],
        "budgets": configuration["budgets"],
        "patterns": {},
        "heads": [],
        "layers": [],
    }
    if not parts:
        return results
    is_model = "model" in configuration
    curves = Curves.of(parts, draws_are_replicates=not is_model)
    names, budgets = configuration["patterns"], np.asarray(configuration["budgets"], float)
    results["replicates"] = curves.errors.shape[4]
    results["visible"], results["norm"] = curves.visible, curves.norm
    results["dense_against_limit"] = (
        {
            metric: _summary(curves.dense_limit[m][:, None])["mean"][0]
            for m, metric in enumerate(METRICS)
        }
        if curves.dense_limit.size
        else None
    )
    results["patterns"] = describe_patterns(curves, names, budgets, configuration["seed"])
    if is_model:
        corrected = curves.errors[0] / population_factor(budgets, curves.visible)
        results |= describe_units(curves.units, curves.errors[0], corrected, names, budgets, TARGET)
    return results


def population_factor(budgets: Array, visible: float) -> Array:
    """``sqrt(1 - r/N)``: what choosing r of N keys without replacement takes off any error.

    Errors are divided by it before they are fitted, so that a power law can be one: without it even
    a random choice would reach 0 at r = N.
    """
    return np.asarray(np.sqrt(1 - budgets / visible))


def describe_patterns(
    curves: Curves, names: Sequence[str], budgets: Array, seed: int
) -> dict[str, Any]:
    """Curves, fits, bias, verdicts and break-even budgets, by pattern."""
    factor = population_factor(budgets, curves.visible)
    # heads count alike: relative errors, mean over the heads
    overall = curves.errors.mean(axis=3)
    fits = {
        (reference, name, metric): fit_rate(
            overall[r, p, m] / (factor if reference == "dense" else 1.0),
            budgets,
            seed=seed,
            resolution=RESOLUTION,
        )
        for r, reference in enumerate(curves.references)
        for p, name in enumerate(names)
        for m, metric in enumerate(METRICS)
    }
    base = names.index(BASELINE)
    found = {}
    for p, name in enumerate(names):
        entry: dict[str, Any] = {
            "title": PATTERNS[name].title,
            "random": PATTERNS[name].is_random,
            "curve": {
                reference: {m: _summary(overall[r, p, i]) for i, m in enumerate(METRICS)}
                for r, reference in enumerate(curves.references)
            },
            "fit": {m: fits["dense", name, m].to_dict() for m in METRICS},
        }
        if "limit" in curves.references:
            entry["fit_limit"] = {m: fits["limit", name, m].to_dict() for m in METRICS}
        entry["bias"], bias = _bias(curves, p, budgets)
        entry |= _against_random(
            name, {m: fits["dense", name, m] for m in METRICS},
            {m: fits["dense", BASELINE, m] for m in METRICS},
            overall[0, p], overall[0, base], budgets, bias, seed,
        )  # fmt: skip
        found[name] = entry
    if CONSISTENT in found:
        # the consistent estimate against the others: from which budget on it is worth its chance
        found[CONSISTENT]["break_even"]["against"] = _crossings(overall[0], names, budgets, seed)
    return found


def _crossings(errors: Array, names: Sequence[str], budgets: Array, seed: int) -> dict[str, Any]:
    """Where the map error of corrected selection crosses that of every other pattern."""
    own, m = names.index(CONSISTENT), METRICS.index("map")
    return {
        name: Pair.of(errors[own, m], errors[p, m], budgets, seed).crossing(name)
        for p, name in enumerate(names)
        if name != CONSISTENT
    }


def _against_random(
    name: str,
    rates: dict[str, Rate],
    baseline: dict[str, Rate],
    errors: Array,
    base: Array,
    budgets: Array,
    bias: Bias | None,
    seed: int,
) -> dict[str, Any]:
    """Comparison, verdict and break-even budgets of one pattern."""
    m = METRICS.index("map")
    needed = {"for_target": budget_for(errors[m], budgets, TARGET, seed)}
    if name == BASELINE:
        said = {"verdict": IS_BASELINE, "evidence": "what the others are compared with"}
        return {
            "versus_random": None,
            "verdict": said["verdict"],
            "evidence": said["evidence"],
            "verdicts": dict.fromkeys(METRICS, said),
            "break_even": needed,
        }
    verdicts, versus, crossing = {}, {}, {}
    for i, metric in enumerate(METRICS):
        pair = Pair.of(errors[i], base[i], budgets, seed)
        comparison = pair.compare()
        versus[metric] = comparison.to_dict()
        if metric == "map":
            crossing = {"crossing": pair.crossing(), "as_random": pair.as_random()}
        verdicts[metric] = judge(
            metric,
            rates[metric],
            comparison,
            baseline[metric],
            bias if metric == "map" else None,
            PATTERNS[name].is_exact,
        )
    return {
        "versus_random": versus,
        **verdicts["map"],
        "verdicts": verdicts,
        "break_even": needed | crossing,
    }


def _summary(errors: Array) -> dict[str, Any]:
    """Mean and standard error over replicates [replicate, budget]."""
    count = len(errors)
    spread = errors.std(axis=0, ddof=1) / np.sqrt(count) if count > 1 else None
    return {
        "mean": errors.mean(axis=0).tolist(),
        "median": np.median(errors, axis=0).tolist(),
        "standard_error": None if spread is None else spread.tolist(),
    }


def _bias(curves: Curves, pattern: int, budgets: Array) -> tuple[dict[str, Any], Bias | None]:
    """Relative bias of the outputs by budget, and its share of the squared error."""
    squares = curves.bias_square[pattern].mean(axis=0)
    m = METRICS.index("map")
    # mean over heads of the squared error, as the squared bias is one
    error = (curves.errors[0, pattern, m] ** 2).mean(axis=(0, 1))
    cells = squares[np.isfinite(squares).all(axis=1)]
    if len(cells) < 2:
        return {"square": None, "standard_error": None, "share": None}, None
    mean = cells.mean(axis=0)
    noise = cells.std(axis=0, ddof=1) / np.sqrt(len(cells))
    share, half = mean / error, 2 * noise / error
    seen = mean > 2 * noise
    exponent = None
    if seen[-1] and seen.sum() >= 2:
        slope = np.polyfit(np.log(budgets[seen]), np.log(mean[seen]) / 2, 1)[0]
        exponent = float(-slope)
    plain = {
        "square": mean.tolist(),
        "standard_error": noise.tolist(),
        "share": share.tolist(),
        "exponent": exponent,
    }
    last = (float(share[-1] - half[-1]), float(share[-1] + half[-1]))
    return plain, Bias(float(share[-1]), last, exponent)
