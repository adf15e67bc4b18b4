"""How the command line reads names of texts and files."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from esscher.core.atomic import check_writable
from esscher.core.errors import InputError

#: Endings of figures.
FORMATS = (".png", ".svg", ".pdf")


def named_sources(texts: Sequence[str], option: str) -> dict[str, str]:
    """Read ``NAME=SOURCE`` options; a name is given once."""
    named: dict[str, str] = {}
    for text in texts:
        name, mark, source = text.partition("=")
        name = name.strip()
        if not mark or not name or not source:
            raise InputError(
                f"{option} {text!r} has no {'source' if mark and name else 'name'}; write "
                "NAME=SOURCE, such as wiki=articles.txt"
            )
        if name in named:
            raise InputError(
                f"{option} {text!r}: the name {name!r} is taken by {named[name]!r}; give every "
                "one its own name"
            )
        named[name] = source
    return named


def check_figure(path: Path | None, option: str = "--figure") -> None:
    """Refuse a figure of an unknown format or at a bad place before anything is computed."""
    if path is not None and path.suffix.lower() not in FORMATS:
        raise InputError(f"{option} {path}: the name must end in {', '.join(FORMATS)}")
    check_output(path, option)


def check_output(path: Path | None, option: str) -> None:
    """Refuse a file that could not be written, before anything is computed."""
    if path is not None:
        check_writable(path, f"{option} {path}")
