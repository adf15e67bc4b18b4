"""Tables of a result for terminals, pages, notebooks and CSV files, from one list of variables."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from operator import attrgetter
from typing import TYPE_CHECKING, Any

from esscher.core.shown import between, counted, shown, with_interval
from esscher.core.variables import AXES, BOUND, Variable, endings, table, var
from esscher.show.content import Part
from esscher.show.frames import rounded
from esscher.show.tables import PlainConsole, PlainTable

if TYPE_CHECKING:
    import pandas as pd
    import xarray as xr

#: How the labels of an axis are shown, by their kind.
LABELS = {"i": "n0", "f": "s3", "U": "text"}


@dataclass(frozen=True)
class TableView:
    """A table: which axes are its rows, and which variables its columns.

    Attributes
    ----------
    name, title
        By which it is asked for, and what stands above it.
    rows, variables
        Axes whose labels make the rows, and what is listed for each. A variable along another axis
        than these has a column for each of its labels.
    data
        Takes the result; returns the dataset, in which variables have their own names. That of the
        result unless it is given.
    sort, then
        Column by which it is sorted, the largest first, and column that decides between equals.
    keep
        Takes the data frame; returns which rows the table has. All unless it is given.
    caption
        Below it on a page.
    most
        Rows that a terminal shows unless all are asked for; 0 for none, not even the headings.
    least
        Headings that go first where a terminal is narrow.
    page
        Whether the report has it.
    """

    name: str
    title: str
    rows: tuple[str, ...]
    variables: Sequence[Variable]
    data: Callable[[Any], xr.Dataset] = attrgetter("data")
    sort: str = ""
    then: str = ""
    keep: Callable[[pd.DataFrame], Any] | None = None
    caption: str = ""
    most: int = 15
    least: tuple[str, ...] = ()
    page: bool = True

    def there(self, data: xr.Dataset) -> list[Variable]:
        """Return the variables that a dataset has: some are optional."""
        return [variable for variable in self.variables if variable.name in data]

    def frame(self, result: Any) -> pd.DataFrame:
        """Return all columns as numbers, in the order of the axes."""
        data = self.data(result)
        frame = table(data, self.rows, [variable.name for variable in self.there(data)])
        if self.keep is not None:
            frame = frame[self.keep(frame)]
        return frame.reset_index(drop=True)

    def ordered(self, result: Any) -> pd.DataFrame:
        """Return the same in the order in which it is shown."""
        frame = self.frame(result)
        if self.sort:
            first = any(v.last for v in self.variables if v.name == self.sort)
            frame = frame.sort_values(
                [name for name in (self.sort, self.then) if name],
                ascending=False,
                kind="stable",
                na_position="first" if first else "last",
            )
        return frame.reset_index(drop=True)

    def columns(self, data: xr.Dataset) -> list[tuple[Variable, str, str]]:
        """Return the columns without ends of intervals: variable, name and what it is along."""
        columns = [(label(axis), axis, "") for axis in self.rows]
        for variable in self.there(data):
            across = [a for a in data[variable.name].dims if a not in self.rows and a != BOUND]
            for end in endings(data, [str(axis) for axis in across]):
                columns.append((variable, f"{variable.name}{end}", end.strip("_")))
        return columns

    def content(self, result: Any, run: str) -> Part:
        """Return the table of a report, as ``page/tables.js`` takes it.

        Its CSV file, named after the run, has all columns, those that are not shown included.
        """
        data, frame = self.data(result), self.ordered(result)
        columns = [
            {
                "key": name,
                "title": variable.titled(along),
                "format": variable.format,
                "ends": f"{name}_low" in frame,
                "missing": variable.missing,
                "last": variable.last,
                "help": variable.help,
                "shown": variable.page,
            }
            for variable, name, along in self.columns(data)
        ]
        table = {
            "title": self.title,
            "name": f"{run}-{self.name}",
            "columns": columns,
            "data": {str(name): [rounded(value) for value in frame[name]] for name in frame},
            "sort": (self.sort, True) if self.sort else None,
        }
        return Part(self.title, self.caption, table=table)

    def shown(self, result: Any) -> pd.DataFrame:
        """Return what a terminal shows of it, all rows, as text."""
        import pandas as pd

        data, frame = self.data(result), self.ordered(result)
        rows, columns = frame.to_dict("records"), {}
        for variable, name, along in self.columns(data):
            if variable.terminal:
                heading = f"{variable.terminal} {along}" if along else variable.terminal
                columns[heading] = [cell(variable, row, name) for row in rows]
        return pd.DataFrame(columns)

    def print(self, result: Any, console: PlainConsole) -> None:
        """Print the first rows, or all."""
        frame = self.shown(result)
        some = frame.head(self.most)
        more = len(frame) - len(some)
        by = next((v.terminal or v.heading for v in self.variables if v.name == self.sort), "")
        order = f": the first {len(some)} by {by}" if more and by else ""
        drawn = PlainTable(f"{self.title}{order}", least=self.least)
        names = [str(name) for name in frame.columns[len(self.rows) :]]
        # layer and head are one name, such as 1.9
        whole = all(AXES[axis][0] == "i" for axis in self.rows)
        for axis in self.rows[-1:] if whole else self.rows:
            kind, heading = AXES[axis]
            drawn.add_column(heading, justify="left" if kind == "U" else "right", no_wrap=True)
        words = {v.terminal for v in self.variables if v.kind == "U"}
        for name in names:
            left = name in words
            drawn.add_column(name, justify="left" if left else "right", no_wrap=not left)
        for row in some.to_dict("records"):
            labels = [str(row[axis]) for axis in self.rows]
            labels = [".".join(labels)] if whole else labels
            drawn.add_row(*labels, *(str(row[name]) for name in names))
        console.print(drawn)
        if more:
            console.say(f"{counted(more, 'more row')}; a report and result.table() have all.")


def label(axis: str) -> Variable:
    """Return the labels of an axis as a column."""
    kind, heading = AXES[axis]
    return var("", heading, LABELS[kind], name=axis, kind=kind, terminal=axis)


def cell(variable: Variable, row: Mapping[Any, Any], name: str = "") -> str:
    """Return a value of a row of a data frame as a terminal shows it, with its interval."""
    name = name or variable.name
    value, how = row[name], variable.format
    low, high = row.get(f"{name}_low"), row.get(f"{name}_high")
    if value != value or low is None or high is None or low != low or high != high:  # not there
        return shown(value, how, variable.missing)
    if variable.interval == "range":
        return f"{shown(low, how)}-{shown(high, how)}"
    if variable.interval == "short":
        return with_interval(value, (low, high))
    half = 10 ** int(how[1:]) * (high - low) / 2 if variable.interval == "digits" else math.inf
    if math.isfinite(half):
        return f"{shown(value, how)}({max(1, round(half)):,})"
    return between(value, (low, high), how)


def print_tables(result: Any, console: PlainConsole) -> None:
    """Print the tables of a result, what is to be said of it, and what the headings mean."""
    view = result.view
    shown_tables = [t for t in result.views if any(v.terminal for v in t.variables) and t.most]
    for entry in shown_tables:
        entry.print(result, console)
    for sentence in view.notes(result) if hasattr(view, "notes") else ():
        console.say(sentence)
    helps = {v.terminal: v.help for t in shown_tables for v in t.variables if v.terminal and v.help}
    if helps:
        console.explain("; ".join(f"{heading}: {text}" for heading, text in helps.items()) + ".")
