"""What a comparison of corpora returns: as an object, as tables, as JSON."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import pandas as pd

from esscher.runs.result import RunResult
from esscher.studies.domains.assemble import differences
from esscher.studies.domains.statistics import BY_NAME


@dataclass(frozen=True, eq=False, repr=False)
class Domains(RunResult):
    """What differs between corpora, and how much.

    Attributes
    ----------
    folder
        Directory of the run; gone already if none was given.
    """

    folder: Path

    @property
    def corpora(self) -> list[str]:
        """Names of the corpora."""
        return [corpus["name"] for corpus in self.results["configuration"]["corpora"]]

    def to_frame(self) -> pd.DataFrame:
        """One row per head and statistic: p-values of the test of all corpora.

        ``p``, ``adjusted_p`` (false discovery rate), ``holm_p`` (family-wise), ``share`` of the
        variance over the blocks that is between corpora.
        """
        rows = []
        for name, found in self.results.get("tests", {}).items():
            test = found["omnibus"]
            for i, (layer, head) in enumerate(self.results["units"]):
                row = {"statistic": name, "layer": layer, "head": head, "p": test["p"][i]}
                row |= {"adjusted_p": test["adjusted"][i], "holm_p": test["holm"][i]}
                rows.append(row | {"share": test["share"][i]})
        return pd.DataFrame(rows)

    def differences(self) -> pd.DataFrame:
        """One row per statistic, head and pair of corpora, with an interval and a p-value.

        ``effect`` is that of corpus b over (or minus) corpus a; the intervals hold for the
        discoveries together.
        """
        return differences(self.results)

    def medians(self) -> pd.DataFrame:
        """One row per corpus: median over the heads of each statistic, with its interval."""
        rows = []
        for corpus in self.results.get("corpora", []):
            row = {"corpus": corpus["name"], "distinct": corpus["distinct"]}
            row["unknown"] = corpus["unknown"]
            for name, found in corpus["median"].items():
                low, high = found["interval"]
                row |= {name: found["value"], f"{name}_low": low, f"{name}_high": high}
            rows.append(row)
        return pd.DataFrame(rows)

    def variance(self) -> pd.DataFrame:
        """One row per statistic: where its variance comes from, and how sure that is."""
        rows = []
        for name, found in self.results.get("variance", {}).items():
            if found is None:
                continue
            row = {"statistic": name} | found["shares"]
            row |= {f"{k} +-": error for k, error in found["standard_errors"].items()}
            low, high = found["head_over_corpus_interval"]
            row |= {"head / corpus": found["head_over_corpus"], "low": low, "high": high}
            rows.append(row)
        return pd.DataFrame(rows)

    def strongest(self) -> pd.DataFrame:
        """The largest differences of every statistic, by the near end of their intervals."""
        rows = []
        for found in self.results.get("strongest", []):
            low, high = found["interval"]
            rows.append(
                {
                    "statistic": BY_NAME[found["statistic"]].title,
                    "head": f"{found['layer']}.{found['head']}",
                    "a": found["a"],
                    "b": found["b"],
                    "effect": found["effect"],
                    "low": low,
                    "high": high,
                    "adjusted_p": found["adjusted"],
                }
            )
        return pd.DataFrame(rows)

    def shown(self) -> list[pd.DataFrame]:
        """Return medians over the heads of every corpus, without their intervals."""
        table = self.medians()
        kept = [name for name in table.columns.astype(str) if not name.endswith(("_low", "_high"))]
        return [table[kept]]
