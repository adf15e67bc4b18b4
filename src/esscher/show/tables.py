"""What commands print: tables that fit the terminal, and text that is text."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Literal

from rich import box
from rich.console import Console, ConsoleOptions, RenderResult
from rich.measure import Measurement
from rich.table import Table
from rich.text import Text

from esscher.core.shown import printable

if TYPE_CHECKING:
    import pandas as pd

#: Width down to which a column of names or sentences is wrapped before others are left out.
NARROWEST = 20
#: More columns than any table needs.
_ENDLESS = 100_000


class PlainConsole(Console):
    """Prints text as text: no markup, no emoji codes, no control characters from anywhere."""

    def __init__(self) -> None:
        super().__init__(markup=False, emoji=False)

    def render_str(self, text: str, **options: Any) -> Text:
        """Every string that is printed, also those inside tables, comes through here."""
        return super().render_str(printable(text), **(options | {"markup": False, "emoji": False}))

    def on_broken_pipe(self) -> None:
        """Leave it to the end of the command; rich would end the process with exit code 1."""
        raise BrokenPipeError

    def say(self, text: str, style: str = "", lead: str = "") -> None:
        """Print a paragraph: broken between words on a terminal, one line in a file or a pipe.

        Parameters
        ----------
        text
            What to say.
        style
            How, such as bold.
        lead
            Words to begin with, which are always bold.
        """
        words = Text.assemble((printable(lead), "bold"), printable(text), style=style)
        self.print(words, soft_wrap=not self.is_terminal)

    def say_note(self, note: str | None) -> None:
        """Print what is to be known about models of this family, if anything."""
        if note:
            self.say(f"Note: {note}.")

    def explain(self, text: str) -> None:
        """Print what the headings of a table mean, broken between words everywhere."""
        self.print(Text(printable(text)))


def as_table(frame: pd.DataFrame, title: str = "") -> PlainTable:
    """Return a data frame as a table: numbers to three digits, words as they are."""
    table = PlainTable(title)
    for name, column in frame.items():
        numbers = column.dtype.kind in "iuf"
        table.add_column(str(name), justify="right" if numbers else "left")
    for row in frame.itertuples(index=False):
        table.add_row(*(f"{x:.3g}" if isinstance(x, float) else str(x) for x in row))
    return table


@dataclass(frozen=True)
class _Column:
    """A column: its heading, which side it is set to, and whether its cells may be wrapped."""

    header: str
    justify: Literal["left", "right"]
    wraps: bool


@dataclass
class PlainTable:
    """A table in the style of all commands, that never cuts a number.

    On a terminal that is too narrow, columns are left out, the least important first, and a line
    below the table says which.

    Attributes
    ----------
    title, caption
        What stands above and below it.
    least
        Headings of the columns to be left out first, in this order. After them go the others, from
        the right; the first column always stays.
    """

    title: str
    least: Sequence[str] = ()
    caption: str = ""
    _columns: list[_Column] = field(default_factory=list)
    _rows: list[tuple[str, ...] | None] = field(default_factory=list)

    def add_column(
        self, header: str, justify: Literal["left", "right"] = "left", no_wrap: bool = False
    ) -> None:
        """Add a column; those set to the right hold numbers, which are never wrapped."""
        self._columns.append(_Column(header, justify, not no_wrap and justify == "left"))

    def add_row(self, *cells: str) -> None:
        """Add a row, with a cell for every column."""
        if len(cells) != len(self._columns):
            raise ValueError(f"{len(cells)} cells in a table of {len(self._columns)} columns")
        self._rows.append(cells)

    def add_section(self) -> None:
        """Draw a line below the last row."""
        self._rows.append(None)

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        kept = list(range(len(self._columns)))
        for leaving in self._leaving():
            if self._width(kept, console, options) <= options.max_width:
                break
            kept = [i for i in kept if i not in leaving]
        yield Text(printable(self.title), style="table.title")
        yield self._drawn(kept)
        if self.caption:
            yield Text(printable(self.caption), style="table.caption")
        missing = [c.header for i, c in enumerate(self._columns) if i not in kept]
        if missing:
            names = ", ".join(dict.fromkeys(name for name in missing if name))
            yield Text(
                f"Left out for lack of room: {names}. A wider terminal or --json shows the rest.",
                style="table.caption",
            )

    def _leaving(self) -> Iterator[list[int]]:
        """Columns in the order in which they go; those of one name go together."""
        names = [column.header for column in self._columns]
        for name in self.least:
            yield [i for i, other in enumerate(names) if other == name and i]
        for i in reversed(range(1, len(names))):
            if names[i] not in self.least:
                yield [i]

    def _width(self, kept: list[int], console: Console, options: ConsoleOptions) -> int:
        """Characters that these columns take, with names and sentences as narrow as they may be."""
        drawn = self._drawn(kept, NARROWEST)
        return Measurement.get(console, options.update(max_width=_ENDLESS), drawn).maximum

    def _drawn(self, kept: list[int], narrowest: int | None = None) -> Table:
        table = Table(box=box.SIMPLE_HEAD)
        for i in kept:
            column = self._columns[i]
            wraps = column.wraps or len(kept) == 1
            table.add_column(
                column.header,
                justify=column.justify,
                no_wrap=not wraps,
                overflow="fold",
                max_width=narrowest if wraps else None,
            )
        for row in self._rows:
            if row is None:
                table.add_section()
            else:
                table.add_row(*(row[i] for i in kept))
        return table
