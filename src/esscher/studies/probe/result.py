"""What a probe returns: every head's numbers, as an object, a table, JSON."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

from esscher.core.codec import as_record, as_tree
from esscher.core.shown import counted
from esscher.engine.sampled.layer import METRICS, LayerMeasurement
from esscher.math.tails import Cloud, judge
from esscher.runs.result import HeadsResult
from esscher.studies.probe.describe import fit_unit
from esscher.studies.probe.flags import find_flags
from esscher.studies.probe.together import heads_together, layers_frame

#: An interval that holds this, or an exponent this close to it, is called parametric.
PARAMETRIC, CLOSE = 0.5, 0.05


def assemble(
    layers: list[LayerMeasurement], about: dict[str, Any], complete: bool
) -> dict[str, Any]:
    """Fit every head and layer; return plain numbers, lists and strings."""
    configuration = about["configuration"]
    seed, heads, whole = configuration["seed"], [], []
    for measured in layers:
        units = len(measured.heads)
        for h, head in enumerate(measured.heads):
            stats = dict(measured.stats[h])
            if stats["tails"] is not None:
                found = as_record(stats["tails"], Cloud, "the tails of a head")
                stats["tails"] = stats["tails"] | as_tree(judge(found))
            rates = fit_unit(measured, h, stats, seed)
            fits = {metric: rate.to_dict() for metric, rate in rates.items()}
            reference = _reference(measured, h)
            share = max(reference["share"].values())
            heads.append(
                {"layer": measured.layer, "head": head}
                | stats
                | {
                    "fit": fits,
                    "curve": _curve(measured, h),
                    "reference": reference,
                    "flags": find_flags(stats, fits, measured.sizes[-1], share),
                }
            )
        rates = fit_unit(measured, units, None, seed)
        whole.append(
            {
                "layer": measured.layer,
                "fit": {metric: rate.to_dict() for metric, rate in rates.items()},
                "curve": _curve(measured, units),
                "heads_together": heads_together(measured, heads[-units:], rates, seed),
            }
        )
    return {
        "kind": "probe",
        "complete": complete,
        "configuration": configuration,
        "versions": about["versions"],
        "created": about["created"],
        "sizes": list(layers[0].sizes) if layers else [],
        "heads": heads,
        "layers": whole,
    }


def _reference(measured: LayerMeasurement, unit: int) -> dict[str, Any]:
    """How good the reference is: standard errors, and their share of the error at the largest n."""
    about = dict(measured.reference or {})
    errors = {"mean": float(measured.reference_error[unit])}
    if "cov_error" in about:
        errors["cov"] = float(about.pop("cov_error")[unit])
    share = {}
    for metric, error in errors.items():
        smallest = float(measured.errors[METRICS.index(metric), unit, :, -1].mean())
        share[metric] = error / smallest if smallest > 0 else 0.0
    return about | {"standard_error": errors, "share": share}


def _curve(measured: LayerMeasurement, unit: int) -> dict[str, Any]:
    out: dict[str, Any] = {"norm": float(measured.relative[unit])}
    for m, metric in enumerate(METRICS):
        errors = measured.errors[m, unit]
        count = len(errors)
        out[metric] = {
            "mean": errors.mean(axis=0).tolist(),
            "median": np.median(errors, axis=0).tolist(),
            "standard_error": (
                (errors.std(axis=0, ddof=1) / np.sqrt(count)).tolist() if count > 1 else None
            ),
        }
    return out


@dataclass(frozen=True, eq=False, repr=False)
class Probe(HeadsResult):
    """The numbers of every head.

    Attributes
    ----------
    folder
        Directory of the run; gone already if none was given.
    """

    folder: Path

    def to_frame(self) -> pd.DataFrame:
        """Return a data frame, one row per head."""
        rows = []
        for h in self.heads:
            row = {
                "layer": h["layer"],
                "head": h["head"],
                "H": h["horizon"],
                "F": h["frobenius"],
                "tau": h["tau"],
                "khat": h["khat"]["k"],
            }
            for metric in METRICS:
                fit = h["fit"][metric]
                low, high = fit["interval"]
                row |= {metric: fit["exponent"], f"{metric}_low": low, f"{metric}_high": high}
            predicted = h["predicted"]
            row |= {
                "predicted_khat": predicted["khat"],
                "predicted_map": predicted["range"]["map"],
                "sharp": predicted["sharp"]["mean"],
                "paper_reference": predicted["paper_reference"],
                "paper_bound": predicted["paper_bound"],
                "ess": h["ess"]["median"],
                "sinks": h["sinks"]["share"],
                "delimiters": h["delimiter_share"],
                "tokens_5": h["tokens_for"]["0.05"],
                "tokens_10": h["tokens_for"]["0.1"],
                "tokens_20": h["tokens_for"]["0.2"],
                "tokens_10_low": h["tokens_for_interval"]["0.1"][0],
                "tokens_10_high": h["tokens_for_interval"]["0.1"][1],
                # of runs stored before it was kept, nothing is known
                "reference_share": max(h["reference"]["share"].values())
                if "reference" in h
                else None,
                "tails": None if h["tails"] is None else h["tails"]["verdict"],
                "flags": ", ".join(dict.fromkeys(flag["flag"] for flag in h["flags"])),
            }
            rows.append(row)
        return pd.DataFrame(rows)

    def layers_frame(self) -> pd.DataFrame:
        """Return a data frame of what the heads of each layer have in common, one row per layer."""
        return layers_frame(self.results["layers"])

    def predictors(self) -> pd.DataFrame:
        """Mean absolute error of each predictor of the measured exponent, best first."""
        table = self.to_frame()
        rows: list[dict[str, Any]] = []
        for name, column, metric in (
            ("one-pass k-hat", "predicted_khat", "mean"),
            ("sharp Gaussian", "sharp", "mean"),
            ("published reference", "paper_reference", "mean"),
            ("published bound", "paper_bound", "mean"),
            ("one-pass k-hat", "predicted_khat", "cov"),
            ("sharp Gaussian", "sharp", "cov"),
            ("predicted on the range", "predicted_map", "map"),
            ("one-pass k-hat", "predicted_khat", "map"),
            ("published reference", "paper_reference", "map"),
        ):
            error = (table[column] - table[metric]).abs().mean()
            rows.append({"metric": metric, "predictor": name, "mean absolute error": error})
        ordered = sorted(rows, key=lambda r: (METRICS.index(r["metric"]), r["mean absolute error"]))
        return pd.DataFrame(ordered)

    @property
    def headline(self) -> str:
        """The answer in one sentence or two."""
        if not self.heads:
            return "Nothing has been measured yet."
        table, count = self.to_frame(), len(self.heads)
        near = (table["mean"] - PARAMETRIC).abs() <= CLOSE
        parametric = ((table["mean_low"] <= PARAMETRIC) & (table["mean_high"] >= PARAMETRIC)) | near
        needy = table["tokens_10"].isna() | (table["tokens_10"] > 10_000)
        median = table["tokens_10"].median()
        others = [h for h, ok in zip(self.heads, parametric, strict=True) if not ok]
        explained = sum(bool(h["flags"]) for h in others)
        many, most = int(parametric.sum()), int(needy.sum())
        output, verb = ("output", "converges") if many == 1 else ("outputs", "converge")
        sentence = f"The mean {output} of {many} of {counted(count, 'head')} {verb} like 1/sqrt(n)"
        if others:
            sentence += f"; of the other {len(others)}, flags explain {explained}"
        typical = "more than 100,000,000" if np.isnan(median) else f"{median:,.0f}"
        return (
            f"{sentence}. A typical head needs {typical} tokens for 10% output error; "
            f"{most} of {count} {'needs' if most == 1 else 'need'} more than 10,000."
        )

    def shown(self) -> list[pd.DataFrame]:
        """Return the heads, those that need most tokens first."""
        table = self.to_frame()
        if table.empty:
            return []
        names = ["layer", "head", "H", "F", "khat", "mean", "cov", "map", "tokens_10", "flags"]
        return [table.sort_values("tokens_10", ascending=False, na_position="first")[names]]
