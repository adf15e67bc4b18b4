"""Sparse attention patterns: which keys does a query see, with which log-weight correction.

All follow one protocol (``pattern.py``). ``PATTERNS`` has them by name.
"""

from __future__ import annotations

from collections.abc import Iterable

from esscher.core.errors import InputError
from esscher.engine.patterns.pattern import Pattern, Selection, Sight, View
from esscher.engine.patterns.rules import (
    BigBird,
    Block,
    Corrected,
    Groups,
    Linformer,
    Longformer,
    Mixing,
    Pooled,
    Streaming,
    Strided,
    TopK,
    UniformRandom,
    Window,
)

#: Patterns by name, in the order of tables; the first is what the others are compared with.
PATTERNS: dict[str, Pattern] = {
    pattern.name: pattern
    for pattern in (
        UniformRandom(),
        Corrected(),
        TopK(),
        Streaming(),
        Window(),
        Longformer(),
        BigBird(),
        Strided(),
        Block(),
        Pooled(),
        Linformer(),
    )
}
#: The pattern that all others are compared with.
BASELINE = UniformRandom.name

__all__ = [
    "BASELINE",
    "PATTERNS",
    "BigBird",
    "Block",
    "Corrected",
    "Groups",
    "Linformer",
    "Longformer",
    "Mixing",
    "Pattern",
    "Pooled",
    "Selection",
    "Sight",
    "Streaming",
    "Strided",
    "TopK",
    "UniformRandom",
    "View",
    "Window",
    "as_patterns",
]


def as_patterns(names: str | Iterable[str]) -> tuple[str, ...]:
    """Names of patterns in the order of ``PATTERNS``; ``"all"`` for all, or a list with commas.

    Random selection is always among them: the others are compared with it.
    """
    asked = names.split(",") if isinstance(names, str) else list(names)
    chosen = {str(name).strip() for name in asked}
    if chosen == {"all"}:
        return tuple(PATTERNS)
    unknown = sorted(chosen - set(PATTERNS))
    if unknown or not chosen:
        raise InputError(
            f"there is no pattern {unknown[0]!r}; choose from all, {', '.join(PATTERNS)}"
            if unknown
            else f"no patterns are given; choose from all, {', '.join(PATTERNS)}"
        )
    return tuple(name for name in PATTERNS if name in chosen or name == BASELINE)
