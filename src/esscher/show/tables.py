"""Output of commands: tables that fit the terminal, and text that is text."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

from rich import box
from rich.console import Console, ConsoleOptions, RenderResult
from rich.measure import Measurement
from rich.table import Table
from rich.text import Text

from esscher.core.shown import printable

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

    def explain(self, text: str) -> None:
        """Print what the headings of a table mean, broken between words everywhere."""
        self.print(Text(printable(text)))


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
    _columns: list[dict[str, Any]] = field(default_factory=list)
    _rows: list[tuple[str, ...] | None] = field(default_factory=list)

    def add_column(
        self, header: str, justify: Literal["left", "right"] = "left", no_wrap: bool = False
    ) -> None:
        """Add a column; those set to the right hold numbers, which are never wrapped."""
        wraps = not no_wrap and justify == "left"
        self._columns.append({"header": header, "justify": justify, "no_wrap": not wraps})

    def add_row(self, *cells: str) -> None:
        """Add a row, with a cell for every column."""
        if len(cells) != len(self._columns):
            raise ValueError(f"{len(cells)} cells in a table of {len(self._columns)} columns")
        self._rows.append(cells)

    def add_section(self) -> None:
        """Draw a line below the last row."""
        self._rows.append(None)

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        names = [str(column["header"]) for column in self._columns]
        # columns in the order in which they go; those of one name go together
        leaving = [
            [i for i, name in enumerate(names) if name == least and i] for least in self.least
        ]
        leaving += [[i] for i in reversed(range(1, len(names))) if names[i] not in self.least]
        kept = list(range(len(names)))
        for columns in leaving:
            # names and sentences may be as narrow as NARROWEST
            narrow = self._drawn(kept, NARROWEST)
            width = Measurement.get(console, options.update(max_width=_ENDLESS), narrow).maximum
            if width <= options.max_width:
                break
            kept = [i for i in kept if i not in columns]
        yield Text(printable(self.title), style="table.title")
        yield self._drawn(kept)
        if self.caption:
            yield Text(printable(self.caption), style="table.caption")
        missing = dict.fromkeys(n for i, n in enumerate(names) if n and i not in kept)
        if missing:
            left_out = f"Left out for lack of room: {', '.join(missing)}."
            yield Text(
                f"{left_out} A wider terminal or --json shows the rest.", style="table.caption"
            )

    def _drawn(self, kept: list[int], narrowest: int | None = None) -> Table:
        table = Table(box=box.SIMPLE_HEAD)
        for i in kept:
            no_wrap = self._columns[i]["no_wrap"] and len(kept) > 1
            width = None if no_wrap else narrowest
            column = self._columns[i] | {"no_wrap": no_wrap, "max_width": width}
            table.add_column(**column, overflow="fold")
        for row in self._rows:
            if row is None:
                table.add_section()
            else:
                table.add_row(*(row[i] for i in kept))
        return table
