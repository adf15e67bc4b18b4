"""Text from elsewhere as a terminal may show it."""

from __future__ import annotations

import unicodedata

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
    return "".join(map(_safe, text))


def shortened(value: object, length: int = SHOWN) -> str:
    """A value for a message: printable, and no longer than ``length`` characters."""
    if isinstance(value, dict):
        return f"an object with {len(value)} fields"
    if isinstance(value, list) and len(value) > 8:
        return f"a list of {len(value)} entries"
    if isinstance(value, int) and not -WIDE < value < WIDE:
        return f"a whole number of {value.bit_length()} bits"
    text = repr(value[: length + 1] if isinstance(value, str) else value)
    text = printable(text)
    return text if len(text) <= length else text[: length - 3] + "..."


#: Numbers beyond are not printed: Python refuses more than 4300 digits.
WIDE = 10**40


def _safe(char: str) -> str:
    if char in _PLAIN or char in _JOINERS or unicodedata.category(char) not in _UNSAFE:
        return char
    code = ord(char)
    return (
        f"\\x{code:02x}" if code < 256 else f"\\u{code:04x}" if code < 65536 else f"\\U{code:08x}"
    )
