"""The reference of the command line, written from the commands themselves when the site is built.

A page that holds the line ``<!-- commands -->`` gets it in that place; on a forge the mark does not
show.
"""

from __future__ import annotations

import re
from collections.abc import Iterable

from sphinx.application import Sphinx

from esscher.cli.describe import ENVIRONMENT, EXIT_CODES, FILES, CommandPage, describe_all
from esscher.cli.program import main

MARK = "<!-- commands -->"


def reference() -> str:
    """Every command, then what they have in common."""
    return "\n\n".join(
        [
            *map(_command, describe_all(main)),
            "## Exit codes",
            _table(("code", "meaning"), [(f"`{code}`", _plain(text)) for code, text in EXIT_CODES]),
            "## Environment",
            _table(("variable", "meaning"), _rows(ENVIRONMENT)),
            "## Files",
            "A run is the folder given as `--out`.",
            _table(("file", "content"), _rows(FILES)),
        ]
    )


def _command(page: CommandPage) -> str:
    parts = [f"## {page.name}", *map(_paragraph, page.paragraphs)]
    parts.append(f"```text\n{page.name} {page.usage}\n```")
    if page.commands:
        rows = [
            (f"[`{called}`](#esscher-{called})", _plain(text)) for called, text in page.commands
        ]
        parts.append(_table(("command", "what it does"), rows))
    rows = [(_code(written), _plain(text)) for written, text in page.options]
    parts.append(_table(("option", "meaning"), rows))
    if page.examples:
        parts.append("```console\n" + "\n".join(f"$ {line}" for line in page.examples) + "\n```")
    return "\n\n".join(parts)


def _paragraph(text: str) -> str:
    return f"```text\n{text}\n```" if "\n" in text else _plain(text)


def _rows(table: Iterable[tuple[str, str]]) -> list[tuple[str, str]]:
    return [
        (", ".join(f"`{name}`" for name in first.split(", ")), _plain(text))
        for first, text in table
    ]


def _table(titles: tuple[str, ...], rows: Iterable[tuple[str, ...]]) -> str:
    lines = [titles, ("---",) * len(titles), *rows]
    return "\n".join("| " + " | ".join(cell for cell in line) + " |" for line in lines)


def _code(text: str) -> str:
    escaped = text.replace("|", "\\|")  # or it would end the cell
    return f"`{escaped}`" if text else ""


def _plain(text: str) -> str:
    """Text without meaning for Markdown; options and capitals of arguments as code."""
    text = re.sub(r"([\\|*_<>\[\]`$])", r"\\\1", text)
    return re.sub(r"(?<![\w-])(--[a-z][a-z-]*)", r"`\1`", text)


def _insert(app: Sphinx, name: str, source: list[str]) -> None:
    if MARK in source[0]:
        source[0] = source[0].replace(MARK, reference())


def setup(app: Sphinx) -> dict[str, bool]:
    """Insert the reference where a page asks for it."""
    app.connect("source-read", _insert)
    return {"parallel_read_safe": True, "parallel_write_safe": True}
