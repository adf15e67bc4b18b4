"""How the command line reads grids, lists of numbers, and names of files."""

from __future__ import annotations

import re
from collections.abc import Sequence
from pathlib import Path

import numpy as np

from esscher.core.atomic import check_writable
from esscher.core.errors import InputError
from esscher.core.validation import Array, as_sizes

#: Endings of figures.
FORMATS = (".png", ".svg", ".pdf")

#: Numbers of layers and heads: digits, and not so many that a range would fill the memory.
_WHOLE = re.compile(r"[0-9]{1,9}")
#: Numbers that a list or a range may stand for.
MOST = 100_000


def geometric_sizes(text: str, smallest: int = 2, option: str = "--sizes") -> Array:
    """Read ``a:b:k`` (k sizes in geometric progression), ``a:b`` (one per decade) or ``a,b,c``."""
    parts = text.split(":")
    if len(parts) == 1:
        return as_sizes(numbers(text, option), option, smallest)
    if len(parts) > 3:
        raise InputError(
            f"{option} is {text!r}; write first:last:count, first:last or a list a,b,c"
        )
    first, last = (_number(part, option) for part in parts[:2])
    if not (smallest <= first < last < np.inf):
        raise InputError(
            f"{option} is {text!r}; it must start at n = {smallest} or more and end above its start"
        )
    count = round(np.log10(last / first)) + 1 if len(parts) == 2 else _number(parts[2], option)
    if count != int(count) or not 2 <= count <= 10_000:
        raise InputError(f"{option} is {text!r}; the count must be a whole number of at least 2")
    grid = np.unique(np.round(np.geomspace(first, last, int(max(count, 2)))))
    return as_sizes(grid, option, smallest)


def geometric_numbers(text: str, option: str) -> Array:
    """Read ``a:b:k`` (k numbers in geometric progression), or ``a,b,c``."""
    parts = text.split(":")
    if len(parts) == 1:
        return numbers(text, option)
    if len(parts) != 3:
        raise InputError(f"{option} is {text!r}; write first:last:count or a list a,b,c")
    first, last, count = numbers(",".join(parts), option)
    if not 0 < first < last:
        raise InputError(f"{option} is {text!r}; it must start above 0 and end above its start")
    if count != int(count) or not 2 <= count <= 10_000:
        raise InputError(f"{option} is {text!r}; the count must be a whole number of at least 2")
    return np.geomspace(first, last, int(count))


def whole_numbers(text: str | None, option: str) -> list[int] | None:
    """Read ``0,3`` or ``0-5`` or both; None for an option that was not given."""
    if text is None:
        return None
    numbers: list[int] = []
    for part in text.split(","):
        ends = part.split("-")
        if not all(_WHOLE.fullmatch(end.strip()) for end in ends) or len(ends) > 2:
            raise InputError(
                f"{option} is {text!r}; write numbers such as 0,3 or ranges such as 0-5"
            )
        first, last = int(ends[0]), int(ends[-1])
        if last < first:
            raise InputError(f"{option} is {text!r}; the range {part} runs backwards")
        if last - first + len(numbers) > MOST:
            raise InputError(f"{option} is {text[:80]!r}; at most {MOST} numbers can be given")
        numbers += list(range(first, last + 1))
    return numbers


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


def numbers(text: str, option: str) -> Array:
    """Read a list of numbers separated by commas."""
    return np.array([_number(part, option) for part in text.split(",")])


def _number(text: str, option: str) -> float:
    try:
        value = float(text)
    except ValueError:
        raise InputError(f"{option}: {text!r} is not a number") from None
    if not np.isfinite(value):
        raise InputError(f"{option}: {text!r} is not finite")
    return value
