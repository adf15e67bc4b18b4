"""Choices of layers and heads, checked."""

from __future__ import annotations

from collections.abc import Iterable

from esscher.core.errors import InputError


def as_indices(value: Iterable[int] | None, count: int, name: str) -> tuple[int, ...]:
    """Return the chosen numbers in increasing order, or all of them; negative ones count back.

    Raises
    ------
    InputError
        For an empty choice, a number that does not exist, or one that is given twice.
    """
    if value is None:
        return tuple(range(count))
    if isinstance(value, (str, bytes)) or not isinstance(value, Iterable):
        raise InputError(f"{name} is {value!r}; it must be a list of numbers from 0 to {count - 1}")
    chosen: list[int] = []
    for item in value:
        if isinstance(item, bool) or not hasattr(item, "__index__"):
            raise InputError(f"{name} contains {item!r}; it must be a whole number")
        number = int(item)
        if not -count <= number < count:
            raise InputError(f"{name} contains {number}, but there are only 0 to {count - 1}")
        chosen.append(number % count)
    if not chosen:
        raise InputError(f"{name} is empty; choose from 0 to {count - 1}, or leave it out for all")
    if len(set(chosen)) < len(chosen):
        twice = next(number for number in chosen if chosen.count(number) > 1)
        raise InputError(f"{name} contains {twice} more than once; give every number once")
    return tuple(sorted(chosen))
