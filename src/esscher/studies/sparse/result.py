"""What a study of sparse patterns returns: curves, fits, verdicts, as an object, table, JSON."""

from __future__ import annotations

import html
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pandas as pd

from esscher.core.shown import counted
from esscher.runs.result import RunResult
from esscher.studies.sparse.measurement import METRICS
from esscher.studies.sparse.verdict import CONSTANT, FASTER, KEEPS, NEVER, SLOWER, UNDECIDED

#: Verdicts in the order of the headline, with the verb in the plural.
SAID = {
    KEEPS: "keep the exponent",
    CONSTANT: "change only the constant",
    FASTER: "converge faster",
    SLOWER: "converge more slowly",
    NEVER: "do not converge to dense",
    UNDECIDED: "are undecided",
}


@dataclass(frozen=True, eq=False, repr=False)
class Sparsity(RunResult):
    """The errors of sparse patterns, fitted and compared.

    Attributes
    ----------
    folder
        Directory of the run; gone already if none was given.
    """

    folder: Path

    @property
    def patterns(self) -> dict[str, Any]:
        """What was found about each pattern, by name."""
        return dict(self.results["patterns"])

    @property
    def subject(self) -> str:
        """What was measured, in words."""
        c = self.results["configuration"]
        if "model" in c:
            count = len(c["layers"]) * len(c["heads"])
            return (
                f"{c['model']['name']} on {c['text']}, {counted(count, 'head')}, "
                f"{counted(c['passages'], 'passage')} of "
                f"{c['context']} tokens"
            )
        kind = f"AR(1) with rho = {c['correlation']:g}" if c["correlation"] else "independent"
        horizon = (
            f"H = {c['horizon']:g}" if c["horizon"] is not None else f"spectrum {c['spectrum']}"
        )
        return (
            f"{c['law']} tokens, {kind}, {horizon}, d = {c['dim']}, N = {c['tokens']:,}, "
            f"{counted(c['replicates'], 'replicate')}"
        )

    def to_frame(self, reference: str = "dense") -> pd.DataFrame:
        """Return a data frame, one row per pattern and metric.

        Parameters
        ----------
        reference
            ``"dense"``, or ``"limit"`` for the fits against the infinite-token limit.
        """
        rows = []
        for name, found in self.patterns.items():
            fits = found["fit"] if reference == "dense" else found["fit_limit"]
            for metric in METRICS:
                fit, curve = fits[metric], found["curve"][reference][metric]
                versus = (found["versus_random"] or {}).get(metric)
                low, high = fit["interval"]
                ratio = [None, None] if versus is None else versus["ratio_interval"]
                rows.append(
                    {
                        "pattern": name,
                        "metric": metric,
                        "exponent": fit["exponent"],
                        "low": low,
                        "high": high,
                        "law": fit["law"],
                        "trusted": fit["trusted"],
                        "last_error": curve["mean"][-1],
                        "ratio": 1.0 if versus is None else versus["ratio"],
                        "ratio_low": ratio[0],
                        "ratio_high": ratio[1],
                        "verdict": found["verdicts"][metric]["verdict"],
                    }
                )
        return pd.DataFrame(rows)

    def curves(self) -> pd.DataFrame:
        """Return a data frame of the errors, one row per pattern, reference, metric and budget."""
        rows = []
        for name, found in self.patterns.items():
            for reference, metrics in found["curve"].items():
                for metric, curve in metrics.items():
                    noise = curve["standard_error"] or [None] * len(curve["mean"])
                    for r, error, spread in zip(
                        self.results["budgets"], curve["mean"], noise, strict=True
                    ):
                        rows.append(
                            {
                                "pattern": name,
                                "reference": reference,
                                "metric": metric,
                                "budget": r,
                                "error": error,
                                "standard_error": spread,
                            }
                        )
        return pd.DataFrame(rows)

    def heads(self) -> pd.DataFrame:
        """Return a data frame, one row per head and pattern; empty for a law."""
        return pd.DataFrame(
            {
                "layer": unit["layer"],
                "head": unit["head"],
                "pattern": name,
                "exponent": found["map"]["exponent"],
                "low": found["map"]["interval"][0],
                "high": found["map"]["interval"][1],
                "last_error": found["map"]["error"][-1],
                "budget": found["budget"],
                "state": found["state"],
            }
            for unit in self.results["heads"]
            for name, found in unit["patterns"].items()
        )

    @property
    def headline(self) -> str:
        """The answer in a sentence or two."""
        if not self.patterns:
            return "Nothing has been measured yet."
        groups = [
            f"{_listed(names)} {words if len(names) > 1 else _singular(verdict)}"
            for verdict, words in SAID.items()
            if (names := [n for n, p in self.patterns.items() if p["verdict"] == verdict])
        ]
        base = self.patterns["random"]["fit"]["map"]
        return (
            f"Random selection: map error ~ r^-{base['exponent']:.2f}. "
            + ("; ".join(groups) + "." if groups else "")
        ).strip()

    def shown(self) -> list[pd.DataFrame]:
        """Return the exponents of the map."""
        table = self.to_frame()
        return [] if table.empty else [table[table["metric"] == "map"].drop(columns="metric")]

    def __repr__(self) -> str:
        return f"{self.subject}\n{super().__repr__()}" if self.patterns else self.headline

    def _repr_html_(self) -> str:
        return f"<p>{html.escape(self.subject)}</p>{super()._repr_html_()}"


def _singular(verdict: str) -> str:
    return "is undecided" if verdict == UNDECIDED else verdict


def _listed(names: list[str]) -> str:
    return names[0] if len(names) == 1 else f"{', '.join(names[:-1])} and {names[-1]}"
