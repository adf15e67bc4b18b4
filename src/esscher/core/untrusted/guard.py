"""Refuse stored numbers that fit their schema but do not fit together."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from esscher.core.errors import EsscherError, InputError
from esscher.core.shown import printable

#: Exceptions raised by numbers, names and lists that do not belong together.
_KINDS = (
    ArithmeticError, AssertionError, AttributeError, LookupError, MemoryError, RecursionError,
    TypeError, ValueError,
)  # fmt: skip


@contextmanager
def foreign(place: Path | str | None) -> Iterator[None]:
    """Turn exceptions that stored numbers cause within a block into an ``InputError``.

    Schemas tell what is wrong with a field; lists of different lengths, or numbers that no
    measurement gives, only show when they are used. ``place`` names the run; without one, numbers
    were made by this very process, and nothing is changed.
    """
    if place is None:
        yield
        return
    try:
        yield
    except EsscherError:
        raise
    except _KINDS as error:
        said = printable(str(error).split("\n")[0])[:200]
        raise InputError(
            f"{place} holds numbers that do not fit together ({type(error).__name__}: {said}); "
            "they are not what this version of Esscher writes: get the run again, or delete its "
            "results.json and run its command again, which recomputes it from the parts"
        ) from error
