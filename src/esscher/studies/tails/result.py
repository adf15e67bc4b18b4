"""What ``tails`` returns: a verdict with evidence for every head, as an object, a table, JSON."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

from esscher.runs.result import HeadsResult
from esscher.studies.tails.arguments import KIND
from esscher.studies.tails.verdict import HEAVY, SUB_GAUSSIAN, UNDECIDED, judge


def assemble(parts: list[dict[str, Any]], about: dict[str, Any], complete: bool) -> dict[str, Any]:
    """Judge every head and layer; return plain numbers, lists and strings."""
    heads = [_judged(head) for part in parts for head in part["heads"]]
    layers = [
        {
            "layer": part["layer"],
            "hidden": None if part["hidden"] is None else _judged(part["hidden"]),
        }
        for part in parts
    ]
    return {
        "kind": KIND,
        "complete": complete,
        "configuration": about["configuration"],
        "versions": about["versions"],
        "created": about["created"],
        "headline": _headline(heads),
        "heads": heads,
        "layers": layers,
    }


def _judged(numbers: dict[str, Any]) -> dict[str, Any]:
    other = numbers["with_delimiters"]
    return numbers | judge(numbers) | {
        "with_delimiters": None if other is None else other | judge(other)
    }  # fmt: skip


def _headline(heads: list[dict[str, Any]]) -> str:
    if not heads:
        return "Nothing has been measured yet."
    count = Counter(head["verdict"] for head in heads)
    heavy = [head for head in heads if head["verdict"] in HEAVY]
    light = [head["proxy"]["value"] for head in heads if head["verdict"] == SUB_GAUSSIAN]
    sentence = f"The keys of {count[SUB_GAUSSIAN]} of {len(heads)} heads have sub-Gaussian tails"
    if light:
        sentence += f" (variance proxy {np.median(light):.2f} times the variance, median)"
    kinds = "; ".join(f"{count[kind]} {kind}" for kind in HEAVY if count[kind])
    if heavy:
        sentence += f". Heavier than Gaussian in their worst direction: {len(heavy)} ({kinds})"
    if count[UNDECIDED]:
        sentence += f". Undecided: {count[UNDECIDED]}"
    return sentence + "."


@dataclass(frozen=True, eq=False, repr=False)
class Tails(HeadsResult):
    """The tails of every head's keys and of every layer's tokens.

    Attributes
    ----------
    folder
        Directory of the run; gone already if none was given.
    """

    folder: Path

    def to_frame(self) -> pd.DataFrame:
        """Return a data frame, one row per head."""
        return pd.DataFrame(
            [
                {"layer": h["layer"], "head": h["head"], "key_head": h["key_head"]}
                | _row(h)
                | {
                    "logits_k": h["logits"]["value"],
                    "logits_k_low": h["logits"]["interval"][0],
                    "logits_k_high": h["logits"]["interval"][1],
                }
                for h in self.heads
            ]
        )

    def layers_frame(self) -> pd.DataFrame:
        """Return a data frame of the hidden states, one row per layer."""
        found = [layer for layer in self.results["layers"] if layer["hidden"] is not None]
        return pd.DataFrame([{"layer": x["layer"]} | _row(x["hidden"]) for x in found])

    def shown(self) -> list[pd.DataFrame]:
        """Return the heads, those of largest kurtosis first."""
        table = self.to_frame()
        if table.empty:
            return []
        names = ["layer", "head", "kurtosis", "proxy", "tau", "norms_k", "logits_k", "verdict"]
        return [table.sort_values("kurtosis", ascending=False)[names]]


def _row(numbers: dict[str, Any]) -> dict[str, Any]:
    row: dict[str, Any] = {}
    for name, source in (
        ("kurtosis", numbers["kurtosis"]),
        ("proxy", numbers["proxy"]),
        ("norms_k", numbers["norms"]),
    ):
        low, high = source["interval"]
        row |= {name: source["value"], f"{name}_low": low, f"{name}_high": high}
    deciding = numbers["decided_by"]
    low, high = deciding["tau_interval"]
    other = numbers["with_delimiters"]
    return row | {
        "tau": deciding["tau"],
        "tau_low": low,
        "tau_high": high,
        "beyond": deciding["threshold"],
        "largest": numbers["largest"],
        "agreement": numbers["agreement"],
        "verdict": numbers["verdict"],
        "with_delimiters": None if other is None else other["verdict"],
    }
