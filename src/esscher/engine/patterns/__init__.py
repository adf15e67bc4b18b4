"""Sparse attention patterns: which keys does a query see, with which log-weight correction.

``PATTERNS`` has them by name; a pattern is a rule with a name (``rules.py``).
"""

from __future__ import annotations

from collections.abc import Iterable

from esscher.core.errors import InputError
from esscher.engine.patterns.pattern import Mixing, Pattern, Selection, View, as_selection
from esscher.engine.patterns.rules import PATTERNS

#: The pattern that all others are compared with.
BASELINE = "random"

__all__ = [
    "BASELINE",
    "PATTERNS",
    "Mixing",
    "Pattern",
    "Selection",
    "View",
    "as_patterns",
    "as_selection",
]


def as_patterns(names: str | Iterable[str]) -> tuple[str, ...]:
    """Names of patterns in the order of ``PATTERNS``; ``"all"`` for all, or a list with commas.

    Random selection is always among them: the others are compared with it.
    """
    wanted = {str(name).strip() for name in (names.split(",") if isinstance(names, str) else names)}
    if wanted == {"all"}:
        return tuple(PATTERNS)
    unknown = sorted(wanted - set(PATTERNS))
    if unknown or not wanted:
        problem = f"there is no pattern {unknown[0]!r}" if unknown else "no patterns are given"
        raise InputError(f"{problem}; choose from all, {', '.join(PATTERNS)}")
    return tuple(name for name in PATTERNS if name in wanted or name == BASELINE)
