"""Numbers as readers see them; ``page/numbers.js`` does the same in the page.

A format is a letter and a number of places: ``d2`` (two decimals), ``s3`` (three significant
digits), ``p1`` (percent, one decimal), ``n0`` (whole numbers), ``n3``
(whole numbers of which three digits count, such as estimated tokens), ``text``.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

#: Significant digits from beyond which powers of ten are written, and below which.
LARGEST, SMALLEST = 1e7, 1e-4
_SUPERSCRIPTS = str.maketrans("-0123456789", "⁻⁰¹²³⁴⁵⁶⁷⁸⁹")


def shown(value: Any, how: str = "s3", missing: str = "–") -> str:
    """A value in a format."""
    if value is None or (isinstance(value, float) and math.isnan(value)):
        return missing
    if how == "text" or isinstance(value, (str, bool)):
        return {True: "yes", False: "no"}[value] if isinstance(value, bool) else str(value)
    number, places = float(value), int(how[1:])
    if math.isinf(number):
        return "∞" if number > 0 else "-∞"
    if how[0] == "d":
        return f"{number:,.{places}f}"
    if how[0] == "p":
        return f"{100 * number:.{places}f}%"
    if how[0] == "n" and abs(number) < LARGEST:
        return f"{float(f'{number:.{places}g}') if places else number:,.0f}"
    return _significant(number, places or 3)


def _significant(number: float, digits: int) -> str:
    if number == 0:
        return "0"
    power = math.floor(math.log10(abs(number)))
    if not SMALLEST <= abs(number) < LARGEST:
        head = number / 10.0**power
        return f"{head:.{digits - 1}f}×10{str(power).translate(_SUPERSCRIPTS)}"
    return f"{number:,.{max(0, digits - 1 - power)}f}"


def between(value: Any, interval: Sequence[Any] | None, how: str = "s3", missing: str = "–") -> str:
    """A value with its interval."""
    text = shown(value, how, missing)
    if interval is None or (interval[0] is None and interval[1] is None):
        return text
    return f"{text} ({shown(interval[0], how, missing)} to {shown(interval[1], how, missing)})"


def visible(text: str) -> str:
    """A token as it can be read: what is not printable, and text that runs backwards, by name."""
    return "".join(
        c if c.isprintable() else c.encode("unicode_escape").decode("ascii") for c in text
    )


def counted(number: int, name: str, several: str | None = None) -> str:
    """A number of things."""
    return f"{number:,} {name if number == 1 else several or name + 's'}"
