"""Text from elsewhere as a terminal may show it, and numbers as people read them."""

from __future__ import annotations

import math
import sys
import unicodedata
from collections.abc import Mapping
from typing import Any

#: Characters of a value that a message shows.
SHOWN = 80
#: Categories of Unicode that a terminal may act upon, or that reorder what stands beside them.
_UNSAFE = frozenset({"Cc", "Cf", "Cs", "Zl", "Zp"})
#: Control characters that are plain text.
_PLAIN = frozenset("\n\t")
#: Joiners, without which some scripts and emoji cannot be written.
_JOINERS = frozenset("\u200c\u200d")


def printable(text: str) -> str:
    r"""``text`` with every control character written out, such as ``\x1b``.

    Escape sequences move the cursor, rename windows and fill clipboards; marks of direction make a
    line read as another one.
    """
    if text.isascii() and text.isprintable():
        return text
    shown = []
    for char in text:
        code = ord(char)
        if char in _PLAIN or char in _JOINERS or unicodedata.category(char) not in _UNSAFE:
            shown.append(char)
        elif code < 256:
            shown.append(f"\\x{code:02x}")
        else:
            shown.append(f"\\u{code:04x}" if code < 65536 else f"\\U{code:08x}")
    return "".join(shown)


def shortened(value: object) -> str:
    """A value for a message: printable, and no longer than ``SHOWN`` characters."""
    if isinstance(value, dict):
        return f"an object with {len(value)} fields"
    if isinstance(value, list) and len(value) > 8:
        return f"a list of {len(value)} entries"
    if isinstance(value, int) and not -WIDE < value < WIDE:
        return f"a whole number of {value.bit_length()} bits"
    text = printable(repr(value[: SHOWN + 1] if isinstance(value, str) else value))
    return text if len(text) <= SHOWN else text[: SHOWN - 3] + "..."


#: Numbers beyond are not printed: Python refuses more than 4300 digits.
WIDE = 10**40


def plain_count(number: float) -> str:
    """A number of things in plain digits, such as 1,320: never 1.32e+03.

    Below 100 three digits say enough; beyond 10^15 powers of ten are used.
    """
    if not math.isfinite(number):
        return "infinitely many"
    if abs(number) >= 1e15:
        return f"{number:.3g}".replace("e+", "e")
    return f"{number:,.0f}" if abs(number) >= 100 or number == round(number) else f"{number:.3g}"


def rounded(number: float) -> str:
    """A rounded number of things in plain digits, of which three are significant."""
    if not math.isfinite(number) or abs(number) < 1000:
        return plain_count(number)
    return plain_count(float(f"{number:.3g}"))


#: Significant digits from beyond which powers of ten are written, and below which.
LARGEST, SMALLEST = 1e7, 1e-4
_SUPERSCRIPTS = str.maketrans("-0123456789", "⁻⁰¹²³⁴⁵⁶⁷⁸⁹")


def shown(value: Any, how: str = "s3", missing: str = "–") -> str:
    """A value in a format; ``show/page/numbers.js`` does the same in a page.

    Parameters
    ----------
    value
        A number, a word or a truth value.
    how
        A letter and a number of places: ``d2`` (two decimals), ``s3`` (three significant digits),
        ``p1`` (percent, one decimal), ``n0`` (whole numbers), ``n3`` (whole numbers of which three
        digits count, such as estimated tokens), ``text``; or ``two``, see :func:`two_digits`.
    missing
        What stands for a value that is not there.
    """
    if value is None or (isinstance(value, float) and math.isnan(value)):
        return missing
    if how == "text" or isinstance(value, (str, bool)):
        return {True: "yes", False: "no"}[value] if isinstance(value, bool) else str(value)
    if how == "two":
        return two_digits(value)
    number, places = float(value), int(how[1:])
    if math.isinf(number):
        return "∞" if number > 0 else "-∞"
    if how[0] == "d":
        return f"{number:,.{places}f}"
    if how[0] == "p":
        return f"{100 * number:.{places}f}%"
    if how[0] == "n" and abs(number) < LARGEST:
        return f"{float(f'{number:.{places}g}') if places else number:,.0f}"
    if number == 0:
        return "0"
    digits, power = places or 3, math.floor(math.log10(abs(number)))
    if not SMALLEST <= abs(number) < LARGEST:
        head = number / 10.0**power
        return f"{head:.{digits - 1}f}×10{str(power).translate(_SUPERSCRIPTS)}"
    return f"{number:,.{max(0, digits - 1 - power)}f}"


def two_digits(number: float) -> str:
    """A measured number in two significant digits, in plain digits between 0.0001 and 10^15."""
    if not math.isfinite(number) or number == 0:
        return f"{number:g}"
    digits = float(f"{number:.1e}")
    if not 1e-4 <= abs(digits) < 1e15:
        return f"{digits:.1e}".replace("e+", "e").replace("e-0", "e-").replace("e0", "e")
    places = max(0, 1 - math.floor(math.log10(abs(digits))))
    return f"{digits:,.{places}f}"


def between(
    value: Any, ends: tuple[float | None, float | None] | None = None, how: str = "two"
) -> str:
    """A measured number with the ends of its interval, if both are known; see :func:`shown`."""
    text = shown(value, how)
    low, high = ends or (None, None)
    if low is None or high is None or low != low or high != high:  # NaN: not known either
        return text
    return f"{text} ({shown(low, how)} to {shown(high, how)})"


def rates_said(counts: Mapping[Any, int], where: str) -> str:
    """Say how fast errors fall, such as ``like 1/sqrt(n) in 52 heads, more slowly in 1``.

    Parameters
    ----------
    counts
        How many exponents are at 1/2, below, above and undecided.
    where
        What they are of.
    """
    slowly = f"more slowly in {counts['below']}"
    words = [f"like 1/sqrt(n) in {counted(counts['at 1/2'], where)}", slowly]
    if counts["above"]:
        words.append(f"faster in {counts['above']}")
    return ", ".join([*words, f"undecided in {counts['undecided']}"])


def with_error(value: float, error: float | None) -> str:
    """Return a value with its error in brackets, in units of the last digit, such as 0.076(2).

    Parameters
    ----------
    value
        The value.
    error
        Its standard error, or half the width of its interval; None and nan show none.

    The error has one digit, and four digits are shown of a value whose error is too small to change
    them; values below 0.001 get a power of ten. A value below its error would lose all of its
    digits: both then have two, 0.17 ± 2.0.
    """
    if error is None or not math.isfinite(error) or error <= 1e-4 * abs(value):
        return f"{value:.4g}"
    if error > abs(value):
        return f"{two_digits(value)} ± {two_digits(error)}"
    scale = 0 if abs(value) >= 1e-3 else math.floor(math.log10(max(abs(value), error)))
    mantissa, noise = value / 10.0**scale, error / 10.0**scale
    # 0.096 rounds up to 0.1, which is one decimal less
    places = max(0, -math.floor(math.log10(noise * (1 + 0.5 / 9.5) * 0.999999)))
    digits = max(1, round(noise * 10**places))
    return f"{mantissa:.{places}f}({digits}){f'e{scale}' if scale else ''}"


def with_interval(value: float, ends: tuple[float, float]) -> str:
    """Return a value with half the width of its interval in brackets, as :func:`with_error` does.

    With both ends where that exceeds the value.
    """
    half = (ends[1] - ends[0]) / 2
    return between(value, ends) if half > abs(value) else with_error(value, half)


def counted(number: int, thing: str) -> str:
    """A number with its noun: ``1 head``, ``2 heads``."""
    return f"{number:,} {thing}{'' if number == 1 else 's'}"


def byte_count(number: float) -> str:
    """A number of bytes in decimal units, three digits: ``94.4 MB``."""
    for unit in ("bytes", "kB", "MB"):
        if number < 999.5:
            return f"{number:.3g} {unit}"
        number /= 1000
    return f"{number:.3g} GB" if number < 999.5 else f"{number:,.0f} GB"


def announce(what: str, progress: bool | None = None) -> None:
    """Say on standard error what is done before the first bar.

    Parameters
    ----------
    what
        What is done.
    progress
        Whether to say it; by default if standard error is a terminal.
    """
    if sys.stderr.isatty() if progress is None else progress:
        print(f"{printable(what)} ...", file=sys.stderr, flush=True)
