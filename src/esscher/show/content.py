"""What a page is made of: an answer, cards, charts, tables, explorers of heads, provenance.

These are plain descriptions. The template and the scripts in ``page/`` draw them; whatever is text
here is shown as text there, whatever it contains.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

Values = Sequence[float | None]

#: Colours of series by name; the scripts have one value for light and one for dark pages (Okabe
#: and Ito's palette). ``shade`` of a series takes a colour of viridis instead.
COLOURS = ("blue", "orange", "green", "purple", "gold", "sky", "ink", "grey")


@dataclass(frozen=True)
class Axis:
    """An axis.

    Attributes
    ----------
    title
        Name of the quantity, with its unit.
    log
        Whether it is logarithmic.
    ticks
        Values to be marked; chosen by the script if left out.
    categories
        Names at the places 0, 1, ... of an axis without numbers.
    limits
        First and last value shown; from the data if left out.
    """

    title: str
    log: bool = False
    ticks: Values | None = None
    categories: Sequence[str] | None = None
    limits: tuple[float, float] | None = None


@dataclass(frozen=True)
class Series:
    """Points, or a line, with intervals.

    Attributes
    ----------
    name
        What the legend says.
    x, y
        Coordinates; None is a gap.
    low, high, x_low, x_high
        Ends of intervals: bars at points, a band around a line.
    mode
        ``"points"``, ``"line"`` or ``"both"``.
    colour, shade
        Name of a colour, or a place between 0 and 1 on the scale viridis.
    dash
        ``"solid"``, ``"dash"`` or ``"dot"``.
    symbol
        Name of plotly's marker.
    hollow
        Points that are drawn hollow (numbers not to be trusted).
    text
        What pointing at each point says first.
    rows
        Row of the page's table of heads that a click on each point selects.
    joined
        Whether it belongs to the series before it, and is hidden and shown with it.
    """

    name: str
    x: Values
    y: Values
    low: Values | None = None
    high: Values | None = None
    x_low: Values | None = None
    x_high: Values | None = None
    mode: str = "points"
    colour: str = "blue"
    shade: float | None = None
    dash: str = "solid"
    symbol: str = "circle"
    hollow: Sequence[bool] | None = None
    text: Sequence[str] | None = None
    rows: Sequence[int] | None = None
    joined: bool = False


@dataclass(frozen=True)
class Line:
    """A line to compare with: at one value of x or y, or the diagonal."""

    kind: str
    at: float = 0.0
    name: str = ""


@dataclass(frozen=True)
class Plot:
    """Series over two axes; one view of a chart.

    With ``apart``, points of different series at the same x are drawn side by side.
    """

    name: str
    x: Axis
    y: Axis
    series: Sequence[Series]
    lines: Sequence[Line] = ()
    apart: bool = False
    kind: str = "plot"


@dataclass(frozen=True)
class Bars:
    """Bars, beside each other or stacked; one view of a chart."""

    name: str
    y: Axis
    categories: Sequence[str]
    series: Sequence[Series]
    stacked: bool = False
    horizontal: bool = False
    kind: str = "bars"


@dataclass(frozen=True)
class Grid:
    """A heatmap with a number in each cell; one view of a chart."""

    name: str
    rows: Sequence[str]
    columns: Sequence[str]
    values: Sequence[Values]
    row_title: str = ""
    column_title: str = ""
    format: str = "s3"
    limits: tuple[float, float] | None = None
    written: bool = True
    text: Sequence[Sequence[str]] | None = None
    kind: str = "grid"


@dataclass(frozen=True)
class Chart:
    """A chart: one view, or several among which the reader chooses.

    Attributes
    ----------
    title, caption
        Above and below it.
    views
        What can be shown.
    selector
        What the choice is of.
    description
        The chart in words, for those who do not see it; made from the views if left out.
    """

    title: str
    views: Sequence[Plot | Bars | Grid]
    caption: str = ""
    selector: str = "Show"
    description: str = ""
    height: int = 380
    part: str = "chart"


@dataclass(frozen=True, eq=False)
class Drawn:
    """A chart that is a specification of its own.

    Attributes
    ----------
    title, caption
        Above and below it.
    chart
        Altair's chart.
    """

    title: str
    chart: Any
    caption: str = ""
    part: str = "drawn"


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
        Whether the table shows it; hidden ones are in the CSV file and in explorers.
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
    part: str = "table"


@dataclass(frozen=True)
class Quantity:
    """A column of the table of heads as a heatmap.

    Attributes
    ----------
    key
        Column of the table.
    title
        With its unit.
    colours
        ``"viridis"`` or ``"cividis"``.
    log
        Whether colours are logarithmic.
    limits
        Values at the ends of the colours; from the data if left out.
    categories
        For a column of words: the words in order, each with the name of its colour.
    """

    key: str
    title: str
    colours: str = "viridis"
    log: bool = False
    limits: tuple[float, float] | None = None
    categories: Sequence[tuple[str, str]] | None = None


@dataclass(frozen=True)
class CurveSeries:
    """How one list of numbers of a selected head is drawn: names in its ``curves``."""

    name: str
    y: str
    low: str | None = None
    high: str | None = None
    mode: str = "both"
    colour: str = "blue"
    shade: float | None = None
    dash: str = "solid"
    symbol: str = "circle"
    hollow: str | None = None


@dataclass(frozen=True)
class CurveView:
    """A view of a selected head's curves.

    ``at`` holds x for all heads, or names the list among a head's curves that does. With
    ``across`` the curves are drawn along x, and ``at`` are places on the axis y.
    """

    name: str
    x: Axis
    y: Axis
    series: Sequence[CurveSeries]
    at: Values | str
    lines: Sequence[Line] = ()
    across: bool = False
    kind: str = "plot"


@dataclass(frozen=True)
class Explorer:
    """Layer by head: a heatmap with a choice of quantities, and the head that is selected.

    Attributes
    ----------
    table
        Table of the heads, with columns ``layer`` and ``head``; comes with the explorer.
    quantities
        What can be drawn over the heads.
    facts
        Columns of the table that are told about the selected head.
    views
        Curves of the selected head.
    curves
        Lists of numbers by name, one dictionary per row; empty ones where there are none.
    flags
        Pairs (name, evidence), one list per row.
    notes
        A text per row.
    importance
        Rows in the order in which their curves are worth keeping, if not all fit into the page.
    unit
        What a cell is, such as "head".
    start
        The row that is selected first.
    """

    title: str
    table: Table
    quantities: Sequence[Quantity]
    facts: Sequence[str]
    views: Sequence[CurveView]
    curves: list[dict[str, Any]]
    flags: list[list[tuple[str, str]]] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)
    importance: Sequence[int] = ()
    unit: str = "head"
    start: int = 0
    caption: str = ""
    curve_caption: str = ""
    part: str = "explorer"


@dataclass(frozen=True)
class Prose:
    """Paragraphs."""

    title: str
    paragraphs: Sequence[str]
    part: str = "prose"


@dataclass(frozen=True)
class Card:
    """A number that matters, with what it is and how sure."""

    value: str
    label: str
    note: str = ""


Part = Chart | Drawn | Table | Explorer | Prose


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
    """

    name: str
    subject: str
    cards: Sequence[Card]
    tables: Sequence[Table]
    answer: str = ""


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
