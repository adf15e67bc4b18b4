"""Run commands, and read the tables that they print column by column."""

from __future__ import annotations

import re

from click.testing import CliRunner, Result

from esscher.cli import main


def run(*words: object, **options: object) -> Result:
    """Run a command in this process."""
    return CliRunner().invoke(main, [str(word) for word in words], **options)  # type: ignore[arg-type]


def table_of(output: str, title: str) -> list[dict[str, str]]:
    """Rows of the table below a title, by heading; columns of the same heading get a number.

    Every character of a row has to lie below the heading of one column: a row with more columns
    than there are headings, or fewer, fails here.
    """
    lines = output.splitlines()
    start = next(i for i, line in enumerate(lines) if line.strip().startswith(title))
    rule = next(i for i, line in enumerate(lines) if i > start and set(line.strip()) == {"─"})
    rows = []
    for line in lines[rule + 1 :]:
        if not line.strip():
            break
        rows.append(line)
    edges = _columns([lines[rule - 1], *rows])
    names: list[str] = []
    for first, last in edges:
        name = lines[rule - 1][first:last].strip()
        assert name, f"a column without a heading: {[row[first:last] for row in rows]}"
        assert "  " not in name, f"two headings over one column: {name}"
        count = sum(re.sub(r" \d$", "", other) == name for other in names)
        names.append(f"{name} {count + 1}" if count else name)
    return [
        dict(zip(names, (row[first:last].strip() for first, last in edges), strict=True))
        for row in rows
    ]


def before_next(output: str) -> str:
    """Output of a command without its ``Next:`` line."""
    return output.partition("\nNext: ")[0]


def _columns(lines: list[str]) -> list[tuple[int, int]]:
    """Where columns begin and end: at two places or more that are blank in all lines."""
    width = max(map(len, lines))
    blank = [all(line[i : i + 1] in ("", " ") for line in lines) for i in range(width)]
    text = "".join(" " if empty else "x" for empty in blank)
    return [(match.start(), match.end()) for match in re.finditer(r"x+(?: x+)*", text)]
