"""Results of commands: plain numbers, with tables that show themselves."""

from __future__ import annotations

import html
from abc import ABC, abstractmethod
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from esscher.core.errors import InputError

if TYPE_CHECKING:
    import pandas as pd


@dataclass(frozen=True, eq=False, repr=False)
class RunResult(ABC):
    """The results of a run.

    Attributes
    ----------
    results
        Everything, as plain numbers, lists and strings; what ``--json`` prints.
    """

    results: dict[str, Any]

    @property
    def complete(self) -> bool:
        """Whether everything that was asked for is there."""
        return bool(self.results["complete"])

    @property
    def headline(self) -> str:
        """The answer in a few sentences."""
        return str(self.results["headline"])

    def to_dict(self) -> dict[str, Any]:
        """Return everything as plain numbers, lists and strings."""
        return self.results

    @abstractmethod
    def to_frame(self) -> pd.DataFrame:
        """Return a data frame of the main results."""

    def shown(self) -> list[pd.DataFrame]:
        """Return the tables that stand for the results where they are printed."""
        return [self.to_frame()]

    def __repr__(self) -> str:
        tables = [
            table.to_string(index=False, float_format="{:.3g}".format)
            for table in self.shown()
            if not table.empty
        ]
        return "\n".join([self.headline, *tables])

    def _repr_html_(self) -> str:
        tables = [
            table.to_html(index=False, float_format="{:.3g}".format)
            for table in self.shown()
            if not table.empty
        ]
        return f"<p>{html.escape(self.headline)}</p>{''.join(tables)}"


class HeadsResult(RunResult):
    """The results of a run that has numbers for every head."""

    @property
    def heads(self) -> list[dict[str, Any]]:
        """One dictionary per head."""
        return list(self.results["heads"])

    def head(self, layer: int, head: int) -> dict[str, Any]:
        """One head.

        Raises
        ------
        InputError
            If it was not measured.
        """
        for found in self.heads:
            if (found["layer"], found["head"]) == (layer, head):
                return found
        raise InputError(f"head {layer}.{head} was not measured; to_frame() lists those that were")
