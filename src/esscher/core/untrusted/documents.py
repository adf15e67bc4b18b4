"""JSON of bounded size, depth and number of values; numbers are finite."""

from __future__ import annotations

import gc
import json
import math
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from esscher.core.errors import InputError
from esscher.core.shown import printable, shortened
from esscher.core.untrusted import limits
from esscher.core.untrusted.regular import read_file


def read_json(path: Path, limit: int = limits.CONFIGURATION, *, follow: bool = True) -> Any:
    """Contents of a JSON file.

    Parameters
    ----------
    path
        The file.
    limit
        Its largest size, in bytes.
    follow
        Whether it may be a link; see :func:`esscher.core.untrusted.open_regular`.

    Raises
    ------
    FileNotFoundError
        If it is not there.
    InputError
        If it cannot be read, is no JSON, or is beyond a limit; the message says where.
    """
    return parse_json(read_file(path, limit, follow=follow), str(path))


def parse_json(data: bytes | str, place: str, values: int = limits.VALUES) -> Any:
    """JSON, with ``place`` in messages.

    Refused: names that occur twice in an object (readers differ in which one they take), NaN and
    Infinity, numbers that overflow, more than so many ``values``, and what is beyond the limits on
    depth and strings.
    """
    text = data if isinstance(data, bytes) else data.encode("utf-8", "surrogatepass")
    if sum(text.count(mark) for mark in (b",", b"[", b"{")) > values:
        raise InputError(f"{place} has more than {values:,} values; it is not what its name says")
    try:
        with _no_collection():
            found = json.loads(data, object_pairs_hook=_object, parse_constant=_no_constant)
    except RecursionError as error:
        raise _too_deep(place) from error
    except ValueError as error:  # also UnicodeDecodeError, and numbers of thousands of digits
        raise InputError(
            f"{place} cannot be read as JSON: {printable(str(error))[:200]}"
        ) from error
    _check(found, place)
    return found


@contextmanager
def _no_collection() -> Iterator[None]:
    """Pause the garbage collector, which a growing heap would start again and again in vain."""
    on = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if on:
            gc.enable()


class _Twice(ValueError):
    """A name that an object has twice."""


def _object(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    found = dict(pairs)
    if len(found) < len(pairs):
        raise _Twice(
            f"{shortened(_first_twice(name for name, _ in pairs))} occurs twice in one object"
        )
    return found


def _first_twice(names: Iterable[Any]) -> Any:
    """Return the first name that occurs twice; None if none does."""
    seen: set[Any] = set()
    for name in names:
        if name in seen:
            return name
        seen.add(name)
    return None


def _no_constant(name: str) -> float:
    raise ValueError(f"{name} is not a number in JSON")


def _check(found: Any, place: str, longest: int = limits.STRING) -> None:
    """Depth, strings and numbers, level by level: no recursion, and one pass over the values."""
    level: list[Any] = [found]
    for _ in range(limits.DEPTH + 1):
        below: list[Any] = []
        for value in level:
            kind = type(value)
            if kind is float:
                if not math.isfinite(value):
                    raise InputError(f"{place} holds a number that is too large, or none")
            elif kind is list:
                below += value
            elif kind is dict:
                below += value
                below += value.values()
            elif kind is str:
                if len(value) > longest:
                    raise InputError(
                        f"{place} holds a string of {len(value):,} characters; at most "
                        f"{longest:,} are read"
                    )
            elif kind is int and not -limits.WHOLE < value < limits.WHOLE:
                raise InputError(
                    f"{place} holds {shortened(value)}; that is neither a size nor a count"
                )
        if not below:
            return
        level = below
    raise _too_deep(place)


def _too_deep(place: str) -> InputError:
    return InputError(
        f"{place} has more than {limits.DEPTH} lists or objects inside each other; it is not what "
        "its name says"
    )
