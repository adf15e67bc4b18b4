"""What a page is made of: an answer, cards, charts, tables, provenance.

These are plain descriptions. The template and the scripts in ``page/`` draw them; whatever is text
here is shown as text there, whatever it contains.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any


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
