"""The ledger: claims about attention over n tokens, each measured, and judged by a stated rule.

A *measurement* is split into units, which workers compute and a run stores one by one: a unit
returns rows of a table. A *claim* names the measurements it rests on, and has one rule that turns
their tables into an :class:`Entry`: checks, a verdict, and the tables behind its figure.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import TYPE_CHECKING, Any, Literal, TypeAlias, cast

import numpy as np

from esscher.core.codec import Name, Record
from esscher.core.validation import Array
from esscher.math.statistics import LEVEL

if TYPE_CHECKING:
    import pandas as pd
    from altair.typing import ChartType

    from esscher.engine.models.loaded import LoadedModel

Scale: TypeAlias = Literal["quick", "standard", "paper"]
Verdict: TypeAlias = Literal["holds", "contradicted", "undecided"]
#: Columns of a table by name, as JSON holds them.
Columns: TypeAlias = dict[str, list[Any]]
#: Options of one unit: plain numbers and strings.
Unit: TypeAlias = dict[str, Any]
#: Rows of a table, all with the same columns.
Rows: TypeAlias = list[dict[str, Any]]


class Check(Record, frozen=True, kw_only=True):
    """One thing that a claim says, and what was measured.

    Attributes
    ----------
    says
        What is checked.
    verdict
        Whether it holds.
    measured
        What was measured, with its interval.
    rule
        When it holds, and when it is contradicted.
    counts
        Whether the claim's verdict depends on it; others are shown beside it.
    """

    says: str
    verdict: Verdict
    measured: str
    rule: str
    counts: bool = True


class Entry(Record, frozen=True, kw_only=True):
    """A line of the ledger.

    Attributes
    ----------
    claim
        Name of the claim.
    verdict
        Contradicted if one of the checks that count is, holds if all of them hold, undecided
        otherwise.
    measured
        What was measured, in one or two sentences.
    weakest
        The weakest point of the evidence.
    decide
        What would decide an undecided claim; empty otherwise.
    checks
        What was checked, and how it came out.
    tables
        The numbers behind the figure, by name.
    """

    claim: Name
    verdict: Verdict
    measured: str
    weakest: str
    decide: str
    checks: tuple[Check, ...]
    tables: dict[str, Columns]

    def table(self, name: str) -> pd.DataFrame:
        """Return one of the tables."""
        import pandas as pd

        return pd.DataFrame(self.tables[name])

    def rows(self, name: str) -> Rows:
        """Return the rows of one of the tables; what is missing is None."""
        table = self.tables[name]
        return [dict(zip(table, row, strict=True)) for row in zip(*table.values(), strict=True)]


@dataclass(frozen=True)
class Setting:
    """What every unit of a run is a function of, besides its own options.

    Attributes
    ----------
    scale, seed
        How much is measured, and the seed of all random numbers.
    encoder, decoder, text
        The models and the text of claims about real heads.
    """

    scale: Scale
    seed: int
    encoder: str
    decoder: str
    text: str

    def loaded(self, name: str) -> LoadedModel:
        """Return a model; a process loads it once."""
        return _loaded(name)


@lru_cache(maxsize=2)
def _loaded(name: str) -> LoadedModel:
    from esscher.engine.models.load import load_model

    return load_model(name)


@dataclass(frozen=True)
class Measurement:
    """Something that is measured in units.

    Attributes
    ----------
    units
        Options of every unit at a scale, in the order of their rows.
    measure
        Computes the rows of a unit.
    """

    units: Callable[[Scale], Sequence[Unit]]
    measure: Callable[[Unit, Setting], Rows]


@dataclass(frozen=True)
class Claim:
    """A claim of the ledger.

    Attributes
    ----------
    title, says
        Its heading, and what the paper says (or leaves open), in a sentence.
    uses
        Names of the measurements it rests on.
    judge
        Takes the tables of these measurements and the setting; returns the entry without a verdict
        of its own: see :func:`judged`.
    draw
        Draws the figure of an entry.
    """

    title: str
    says: str
    uses: tuple[str, ...]
    judge: Callable[[Mapping[str, pd.DataFrame], Setting], Entry]
    draw: Callable[[Entry], ChartType]


def judged(
    claim: str,
    measured: str,
    checks: Sequence[Check],
    weakest: str,
    decide: str,
    tables: Mapping[str, pd.DataFrame],
) -> Entry:
    """Return a line of the ledger, with the verdict that its checks give.

    ``decide`` says what would decide it; it is kept only if the claim is undecided.
    """
    verdict = joint_verdict([check.verdict for check in checks if check.counts])
    return Entry(
        claim=claim,
        verdict=verdict,
        measured=measured,
        weakest=weakest,
        decide=decide if verdict == "undecided" else "",
        checks=tuple(checks),
        tables={name: _columns(table) for name, table in tables.items()},
    )


def joint_verdict(verdicts: Sequence[Verdict]) -> Verdict:
    """Contradicted if one is, holds if all do, undecided otherwise."""
    if "contradicted" in verdicts:
        return "contradicted"
    return "holds" if verdicts and set(verdicts) == {"holds"} else "undecided"


def verdict_of(holds: bool, contradicted: bool) -> Verdict:
    """Return the verdict of a check from two conditions, of which at most one is true."""
    return "holds" if holds else "contradicted" if contradicted else "undecided"


def records(table: pd.DataFrame) -> Rows:
    """Return the rows of a table as dictionaries."""
    return cast("Rows", table.to_dict("records"))


def simultaneous(count: int) -> float:
    """Standard errors within which all of ``count`` normal numbers lie with probability 99.9%.

    A claim that is true is then called contradicted in one run of a thousand, not of twenty.
    """
    from scipy.special import ndtri

    return float(ndtri(1 - 0.0005 / max(count, 1)))


def with_interval(value: float, low: float, high: float, digits: int = 2) -> str:
    """Write a number with its 95% interval: ``0.49 (0.45 to 0.53)``."""
    return f"{value:.{digits}f} ({low:.{digits}f} to {high:.{digits}f})"


def student_interval(values: Array) -> tuple[float, float, float]:
    """Mean of independent values, with the ends of its 95% interval."""
    from scipy.special import stdtrit

    count, mean = len(values), float(np.mean(values))
    if count < 2:
        return mean, -math.inf, math.inf
    half = float(stdtrit(count - 1, (1 + LEVEL) / 2))
    half *= float(np.std(values, ddof=1)) / math.sqrt(count)
    return mean, mean - half, mean + half


def exponential(values: tuple[float, float, float]) -> tuple[float, float, float]:
    """Exponential of a number and of the ends of its interval."""
    value, low, high = values
    return math.exp(value), math.exp(low), math.exp(high) if high < 700 else math.inf


def _columns(table: pd.DataFrame) -> Columns:
    """Return the columns of a table; what is no number in JSON is left out as None."""

    def plain(value: Any) -> Any:
        value = value.item() if hasattr(value, "item") else value
        return None if isinstance(value, float) and not math.isfinite(value) else value

    return {str(name): [plain(value) for value in table[name]] for name in table.columns}
