"""What ``deep`` returns: errors by layer and at the end, as an object, tables, JSON."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pandas as pd

from esscher.runs.result import RunResult
from esscher.studies.deep.arguments import TERCILES


@dataclass(frozen=True, eq=False, repr=False)
class Depth(RunResult):
    """Errors of a stack by layer, how they grow, and what becomes of its end.

    Attributes
    ----------
    folder
        Directory of the run; gone already if none was given.
    """

    folder: Path

    @property
    def is_gaussian(self) -> bool:
        """Whether it is a Gaussian stack, not a model."""
        return is_gaussian(self.results)

    @property
    def layers(self) -> list[dict[str, Any]]:
        """One dictionary per layer."""
        return list(self.results["layers"])

    @property
    def sizes(self) -> list[int]:
        """Numbers n of tokens (Gaussian stack) or of keys that are drawn (models)."""
        return sizes_of(self.results)

    def to_frame(self) -> pd.DataFrame:
        """Return a data frame, one row per layer, curve and n.

        Curves are the metrics of a Gaussian stack (map, mean, cov), or the modes of a model's
        samples; ``growth`` is the ratio to the error of the layer before.
        """
        return pd.DataFrame(
            [row for layer in self.layers for row in _layer_rows(layer, self.sizes)]
        )

    def end_frame(self) -> pd.DataFrame:
        """Return a data frame of a model's end, one row per variant and n; empty for a stack."""
        rows = []
        for name, curves in self.results.get("end", {}).items():
            for variant, found in curves.items():
                for j, n in enumerate(self.sizes if variant != "dense" else [None]):
                    low, high = found["interval"][j] or (None, None)
                    rows.append(
                        {"quantity": name, "variant": variant, "n": n, "mean": found["mean"][j],
                         "low": low, "high": high}
                    )  # fmt: skip
        return pd.DataFrame(rows)

    def limit_frame(self) -> pd.DataFrame:
        """Return the measured limit against the recursion, by layer; empty for a model."""
        kept = ("layer", "entries", "largest", "bound", "rms", "resolution", "agrees", "doubt")
        return pd.DataFrame(
            [{name: found[name] for name in kept} for found in self.results.get("limit", [])]
        )

    def shown(self) -> list[pd.DataFrame]:
        """Return errors at the largest n (exponents belong to all), and the limit or the end."""
        table = self.to_frame()
        largest = table if table.empty else table[table["n"] == self.sizes[-1]]
        return [largest, self.limit_frame() if self.is_gaussian else self.end_frame()]


def is_gaussian(results: dict[str, Any]) -> bool:
    """Whether results are those of a Gaussian stack."""
    return "stack" in results["configuration"]


def sizes_of(results: dict[str, Any]) -> list[int]:
    """Numbers n of results."""
    return list(results["sizes"] if is_gaussian(results) else results["budgets"])


def _layer_rows(layer: dict[str, Any], sizes: list[int]) -> list[dict[str, Any]]:
    rows = []
    for curve, error in layer["error"].items():
        fit = layer["fit"][curve]
        low, high = (None, None) if fit is None else fit["interval"]
        for j, n in enumerate(sizes):
            step = layer["growth"][curve][j]
            row = {
                "layer": layer["layer"],
                "curve": curve,
                "n": n,
                "error": error["mean"][j],
                "standard_error": error["standard_error"][j],
                "growth": None if step is None else step["factor"],
                "growth_low": None if step is None else step["interval"][0],
                "growth_high": None if step is None else step["interval"][1],
                "exponent": None if fit is None else fit["exponent"],
                "exponent_low": low,
                "exponent_high": high,
                "trusted": None if fit is None else fit["trusted"],
            }
            for name in ("typical", "common", "attention", "fresh"):
                if name in layer:
                    row[name] = layer[name][curve]["mean"][j]
            rows.append(row)
    return rows


def headline(results: dict[str, Any]) -> str:
    """The answer in a few sentences."""
    if not results["layers"]:
        return "Nothing has been measured yet."
    if is_gaussian(results):
        return _stack_headline(results)
    return " ".join(_model_sentences(results))


def _stack_headline(results: dict[str, Any]) -> str:
    layers, sizes = results["layers"], results["sizes"]
    first, last = layers[0], layers[-1]
    errors = [layer["error"]["map"]["mean"][-1] for layer in (first, last)]
    text = (
        f"At n = {sizes[-1]:,} the error of a token is {100 * errors[0]:.3g}% after one layer and "
        f"{100 * errors[1]:.3g}% after {len(layers)}"
    )
    growth = results["growth"]["map"][-1]
    if growth is not None:
        text += f", a factor {_with_ends(growth['factor'], growth['interval'], 4)} per layer"
    fits = [layer["fit"]["map"] for layer in (first, last)]
    if all(fit is not None for fit in fits):
        ends = [_with_ends(fit["exponent"], fit["interval"]) for fit in fits]
        text += f"; its exponent is {ends[0]} after the first layer and {ends[1]} after the last"
    limit = results["limit"][-1]
    if limit["doubt"] is not None:
        return f"{text}. Whether the recursion is the limit cannot be seen here: {limit['doubt']}."
    if limit["agrees"] is None:
        return f"{text}."
    return (
        f"{text}. The measured limit of depth {len(layers)} "
        f"{'equals' if limit['agrees'] else 'DIFFERS FROM'} the recursion: the largest of "
        f"{limit['entries']} deviations is {limit['largest']:.2f} standard errors (bound "
        f"{limit['bound']:.2f}; a standard error is {100 * limit['resolution']:.2g}% of a "
        "variance)."
    )


def _model_sentences(results: dict[str, Any]) -> list[str]:
    budgets, end = results["budgets"], results["end"]
    middle = len(budgets) // 2
    mode = next(iter(results["layers"][0]["error"]))
    eligible = round(sum(results["eligible"]) / len(results["eligible"]))
    out = f"With {budgets[middle]} of {eligible} keys drawn in every layer ({mode}), "
    if "kl" in end:
        out += (
            f"the next-token law is {_at(end['kl'][mode], middle)} nats from the dense one (KL), "
            f"the most likely token is the same in {_at(end['top1'][mode], middle, 100)}%, and "
            f"perplexity rises by a factor {end['perplexity'][mode]['ratio'][middle]:.3g}."
        )
        damage, name = end["kl"], "KL"
    else:
        out += f"the embedding's cosine to the dense one is {_at(end['cosine'][mode], middle)}."
        damage, name = end["cosine"], "1 - cosine"
    sentences = [out]
    growth = results["growth"][mode][middle]
    if growth is not None:
        sentences.append(
            "The relative error of the tokens grows by a factor "
            f"{_with_ends(growth['factor'], growth['interval'], 4)} per layer."
        )
    fit = damage[mode]["fit"]
    if fit is not None:
        sentences.append(_fall(name, fit["exponent"], fit["interval"]))
    terciles = results["terciles"]
    ratio = None if terciles is None else terciles["high_over_low"]
    if ratio is not None:
        sentences.append(
            f"Drawing the keys of the {TERCILES[-1]}-horizon third of the heads only does "
            f"{_with_ends(ratio['mean'][middle], ratio['interval'][middle])} times the damage of "
            f"the {TERCILES[0]}-horizon third."
        )
    return sentences


def _fall(name: str, exponent: float, interval: list[float | None]) -> str:
    """How fast something falls with n, if that can be told."""
    low, high = interval
    shown = _with_ends(exponent, interval, 2)
    if low is None or high is None or low <= 0 <= high:
        return f"Whether {name} falls with n cannot be told here (exponent {shown})."
    return (
        f"{name} falls like n^-{shown}." if low > 0 else f"{name} rises with n (exponent {shown})."
    )


def _at(found: dict[str, Any], j: int, factor: float = 1.0) -> str:
    ends = found["interval"][j]
    ends = None if ends is None else [factor * end for end in ends]
    return _with_ends(factor * found["mean"][j], ends)


def _with_ends(value: float, ends: list[float | None] | None, digits: int = 3) -> str:
    if ends is None or None in ends:
        return f"{value:.{digits}g}"
    low, high = ends
    return f"{value:.{digits}g} ({low:.{digits}g} to {high:.{digits}g})"
