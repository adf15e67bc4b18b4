"""What an experiment leaves behind: tables, figures, and a page that says what was found."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import pandas as pd

from esscher.core.atomic import write_atomically
from esscher.core.errors import InputError
from esscher.show.content import Plot

#: Formats in which every figure is written.
FORMATS = ("png", "svg", "pdf")
#: What a formula of a spreadsheet begins with.
_FORMULA = frozenset("=+-@\t\r")


@dataclass(frozen=True, eq=False)
class Finding:
    """The result of an experiment.

    Attributes
    ----------
    name, title
        Name of the experiment and headline of its page.
    text
        The finding in Markdown, with its numbers.
    tables, figures
        Tables (written as CSV) and figures, by name.
    trouble
        What kept the experiment from saying all it should; empty if nothing did.
    """

    name: str
    title: str
    text: str
    tables: dict[str, pd.DataFrame]
    figures: Mapping[str, Plot]
    trouble: tuple[str, ...] = field(default=())

    def write(self, folder: Path, formats: Sequence[str] = FORMATS) -> Path:
        """Write everything into a directory, each file whole or not at all; return the page.

        Parameters
        ----------
        folder
            The directory.
        formats
            Formats of the figures; the page shows PNGs.
        """
        folder.mkdir(parents=True, exist_ok=True)
        for name, table in self.tables.items():
            if Path(name).name != name:
                raise InputError(f"{name!r} is not a file name")
            text = without_formulas(table).to_csv(
                index=False, lineterminator="\n", float_format="%.6g"
            )
            write_atomically(folder / f"{name}.csv", text.encode())
        for name, figure in self.figures.items():
            for kind in formats:
                figure.save(folder / f"{name}.{kind}")
        page = folder / f"{self.name}.md"
        write_atomically(page, self._page().encode())
        return page

    def _page(self) -> str:
        rows = [f"# {self.title}", "", self.text.strip(), ""]
        rows += [f"> {line}" for line in self.trouble]
        for name in self.figures:
            rows += ["", f"![{name}]({name}.png)"]
        listed = ", ".join(f"[{name}.csv]({name}.csv)" for name in self.tables)
        rows += ["", f"Numbers: {listed}"]
        return "\n".join(rows).rstrip() + "\n"


def without_formulas(table: pd.DataFrame) -> pd.DataFrame:
    """The table with a quote before text that a spreadsheet would take for a formula."""
    return table.map(
        lambda value: f"'{value}" if isinstance(value, str) and value[:1] in _FORMULA else value
    )


def markdown_table(table: pd.DataFrame, decimals: int = 3) -> str:
    """A data frame as a Markdown table."""

    def cell(value: object) -> str:
        if isinstance(value, bool):
            return "yes" if value else "no"
        if isinstance(value, float):
            return "" if value != value else f"{value:.{decimals}f}".rstrip("0").rstrip(".")
        return "" if value is None else str(value)

    rows = ["| " + " | ".join(map(str, table.columns)) + " |"]
    rows.append("|" + "---|" * len(table.columns))
    for row in table.itertuples(index=False):
        rows.append("| " + " | ".join(cell(value) for value in row) + " |")
    return "\n".join(rows)
