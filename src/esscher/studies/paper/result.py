"""The result: the ledger."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from esscher.core.errors import InputError
from esscher.runs.result import Result
from esscher.studies.paper.ledger import Entry

if TYPE_CHECKING:
    import pandas as pd

    from esscher.studies.paper.study import PaperStudy  # noqa: F401 - below, in a string


@dataclass(frozen=True, eq=False, repr=False, kw_only=True)
class Paper(Result["PaperStudy"]):
    """The claims of the paper, each with what was measured and a verdict.

    Attributes
    ----------
    entries
        One per claim whose measurements are all there, in the order of the page.
    """

    entries: tuple[Entry, ...]

    def __getitem__(self, claim: str) -> Entry:
        """Return the entry of a claim."""
        for entry in self.entries:
            if entry.claim == claim:
                return entry
        names = ", ".join(entry.claim for entry in self.entries) or "none"
        raise InputError(f"the claim {claim!r} was not judged; judged are: {names}")

    def table(self) -> pd.DataFrame:
        """Return the ledger as a data frame: claim, verdict, what was measured, and the command."""
        import pandas as pd

        return pd.DataFrame(
            [
                {
                    "claim": entry.claim,
                    "verdict": entry.verdict,
                    "measured": entry.found,
                    "weakest point": entry.weakest,
                    "command": f"esscher paper {entry.claim}",
                }
                for entry in self.entries
            ],
            columns=["claim", "verdict", "measured", "weakest point", "command"],
        )

    def checks(self) -> pd.DataFrame:
        """Return every check of every claim, with its rule."""
        import pandas as pd

        rows = [
            {
                "claim": entry.claim,
                "says": check.says,
                "verdict": check.verdict,
                "found": check.found,
                "rule": check.rule,
                "counts": check.counts,
            }
            for entry in self.entries
            for check in entry.checks
        ]
        return pd.DataFrame(rows)

    def shown(self) -> list[pd.DataFrame]:
        """Return the ledger without what only the page has room for."""
        return [self.table()[["claim", "verdict", "measured"]]]
