"""The contents of a page, and the charts that a study offers by name."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

from esscher.core.errors import InputError
from esscher.show.save import DPI, chart_bytes, save_chart
from esscher.show.theme import specification

if TYPE_CHECKING:
    from altair.typing import ChartType


@dataclass(frozen=True, eq=False)
class Drawn:
    """A chart that is a specification of its own.

    Attributes
    ----------
    title, caption
        Above and below it.
    chart
        Altair's chart.
    lead, paragraphs
        Text above and below it: how a paragraph begins, and the rest of it.
    """

    title: str
    chart: Any
    caption: str = ""
    lead: Sequence[tuple[str, str]] = ()
    paragraphs: Sequence[tuple[str, str]] = ()


@dataclass(frozen=True)
class Column:
    """A column of a table.

    Attributes
    ----------
    key
        Name of the data, and of the column in the CSV file.
    title
        Head of the column.
    format
        How numbers are shown: see ``numbers.py``; ``"text"`` for words.
    low, high
        Names of the data that hold the ends of the interval.
    missing
        What stands for a number that is not there.
    last
        Whether such a number is larger than all others ("never") when sorting.
    help
        What the column means.
    shown
        Whether the table shows it; hidden ones are in the CSV file and among the numbers of a
        picked head.
    """

    key: str
    title: str
    format: str = "text"
    low: str | None = None
    high: str | None = None
    missing: str = "–"
    last: bool = False
    help: str = ""
    shown: bool = True


@dataclass(frozen=True)
class Table:
    """A table that can be sorted, filtered and saved.

    Attributes
    ----------
    name
        Name of the CSV file.
    data
        Values by key, one list per key, all of the same length.
    """

    title: str
    name: str
    columns: Sequence[Column]
    data: dict[str, list[Any]]
    caption: str = ""
    sort: tuple[str, bool] | None = None


@dataclass(frozen=True)
class Card:
    """A number that matters, with what it is and how sure."""

    value: str
    label: str
    note: str = ""


Part = Drawn | Table


@dataclass(frozen=True)
class Summary:
    """What a study says about one of its results, besides its headline and its charts.

    Attributes
    ----------
    name
        The kind of study in words.
    subject
        What was measured, in a line.
    cards
        Numbers that matter.
    tables
        All numbers.
    answer
        In plain language, if the headline of the result is none.
    parts
        Charts and tables in their order, in place of all charts and then ``tables``.
    """

    name: str
    subject: str
    cards: Sequence[Card]
    tables: Sequence[Table]
    answer: str = ""
    parts: Sequence[Part] = ()


@dataclass(frozen=True)
class Page:
    """One run.

    Attributes
    ----------
    title, kind, subject
        Name of the run, what kind it is in words, and what was measured.
    answer
        The answer in plain language.
    complete
        Whether the run is.
    cards, parts
        What follows it.
    provenance
        Pairs (name, value).
    command
        Command that reproduces the run; None if there is none.
    configuration
        The stored configuration as JSON.
    """

    title: str
    kind: str
    subject: str
    answer: str
    complete: bool
    cards: Sequence[Card]
    parts: Sequence[Part]
    provenance: Sequence[tuple[str, str]] = ()
    command: str | None = None
    command_note: str = ""
    configuration: str = ""


#: Most heads that one chart shows side by side.
MOST = 24


def _nothing(found: Any) -> str | None:
    return None


@dataclass(frozen=True)
class Drawing:
    """A chart that the results of a study offer.

    Attributes
    ----------
    name, about
        By which it is asked for, and what it shows in one line.
    draw
        Takes the result, and ``heads`` if they can be chosen; returns the chart.
    heading, caption
        Above and below it in the report; without a heading it is not in the report.
    heads
        Whether heads can be chosen.
    missing
        Takes the result, and says why there is nothing to draw; None if there is.
    """

    name: str
    about: str
    draw: Callable[..., ChartType]
    heading: str = ""
    caption: str = ""
    heads: bool = False
    missing: Callable[[Any], str | None] = _nothing


@dataclass(frozen=True, eq=False)
class Plot:
    """A chart of a result: notebooks show it, ``save`` writes it.

    Attributes
    ----------
    chart
        Altair's chart, of no particular width.
    """

    chart: ChartType

    def save(self, path: str | Path, *, width: float | str = "double", dpi: float = DPI) -> Path:
        """Write it into a file; see :func:`esscher.show.save.save_chart`."""
        return save_chart(self.chart, path, width=width, dpi=dpi)

    def to_dict(self) -> dict[str, Any]:
        """Return the Vega-Lite specification."""
        return specification(self.chart)

    def _repr_svg_(self) -> str:
        return chart_bytes(self.chart, ".svg").decode()


def offered(drawings: Sequence[Drawing], found: Any) -> list[Drawing]:
    """Return the charts that a result offers, the main one first."""
    return [drawing for drawing in drawings if drawing.missing(found) is None]


def draw(
    drawings: Sequence[Drawing],
    found: Any,
    name: str | None = None,
    *,
    heads: Sequence[tuple[int, int]] | None = None,
    title: str | None = None,
) -> Plot:
    """Draw one of a study's charts: the main one unless named; see ``Result.plot``."""
    known = {drawing.name: drawing for drawing in drawings}
    chosen = known.get(drawings[0].name if name is None else name)
    if chosen is None:
        raise InputError(f"there is no chart {name!r} of this result; choose from {_list(known)}")
    if heads is not None and not chosen.heads:
        choosing = [drawing.name for drawing in drawings if drawing.heads]
        remedy = f"that is for {_list(choosing)}" if choosing else "leave them out"
        raise InputError(f"the chart {chosen.name!r} takes no heads; {remedy}")
    reason = chosen.missing(found)
    if reason is not None:
        raise InputError(f"there is no chart {chosen.name!r} of this result: {reason}")
    chart = chosen.draw(found) if heads is None else chosen.draw(found, heads=list(heads))
    return Plot(chart if title is None else retitled(chart, title))


def retitled(chart: ChartType, title: str) -> ChartType:
    """Return a chart with another title (an empty one is none); its note stays."""
    made: Any = chart.copy()
    made.title.text = title
    return cast("ChartType", made)


def check_heads(asked: Sequence[tuple[int, int]], there: Sequence[tuple[int, int]]) -> None:
    """Refuse heads that a run does not have."""
    if len(asked) > MOST or not asked:
        raise InputError(f"{len(asked)} heads are asked for; draw 1 to {MOST} of them")
    for layer, head in asked:
        if (layer, head) not in there:
            layers, heads = (sorted({pair[i] for pair in there}) for i in (0, 1))
            raise InputError(
                f"there is no head {layer}.{head} in this run: it has layers {_range(layers)} and "
                f"heads {_range(heads)}; write LAYER.HEAD, such as {there[0][0]}.{there[0][1]}"
            )


def _list(names: Any) -> str:
    return ", ".join(names)


def _range(numbers: Sequence[int]) -> str:
    whole = list(numbers) == list(range(numbers[0], numbers[-1] + 1)) and len(numbers) > 2
    return f"{numbers[0]} to {numbers[-1]}" if whole else ", ".join(map(str, numbers))
