"""Files that may come from anybody: read within limits, or refused with a reason.

Everything that Esscher reads and did not write itself a moment ago goes through here: regular files
only, of bounded size; JSON of bounded depth and number of values.
"""

from __future__ import annotations

import json
import math
import os
import stat
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, BinaryIO

from esscher.core.errors import EsscherError, InputError
from esscher.core.shown import printable, shortened

#: Bytes of a file of settings, and of any other file that is read as a whole.
SMALL, LARGE = 2**24, 2**28
#: Values (numbers, strings, lists, objects) of a JSON file; each takes about 64 bytes of memory.
VALUES = 16_000_000
#: Lists and objects inside each other.
DEPTH = 32


def open_regular(path: Path) -> BinaryIO:
    """Open a regular file for reading.

    Raises
    ------
    FileNotFoundError
        If it is not there.
    InputError
        If it is a directory, a pipe or a device, or cannot be read.
    """
    try:
        mode = path.stat().st_mode
        if not stat.S_ISREG(mode):
            kind = "a directory" if stat.S_ISDIR(mode) else "a pipe, socket or device"
            raise InputError(f"{path} is {kind}, where a file is expected; remove it")
        return path.open("rb")
    except FileNotFoundError:
        raise
    except OSError as error:
        raise InputError(f"cannot read {path}: {error.strerror or error}") from error
    except ValueError as error:  # a zero byte in a name
        raise InputError(f"{str(path)!r} is not a file name: {error}") from error


def read_file(path: Path, limit: int) -> bytes:
    """The bytes of a regular file of at most ``limit`` bytes; see :func:`open_regular`."""
    with open_regular(path) as file:
        size = os.fstat(file.fileno()).st_size
        if size > limit:
            raise InputError(
                f"{path} has {size:,} bytes; at most {limit:,} are read: it is not what its name "
                "says"
            )
        return file.read(limit)


def read_json(path: Path, limit: int = SMALL) -> Any:
    """Contents of a JSON file.

    Parameters
    ----------
    path
        The file.
    limit
        Its largest size, in bytes.

    Raises
    ------
    FileNotFoundError
        If it is not there.
    InputError
        If it cannot be read, is no JSON, or is beyond a limit; the message says where.
    """
    return parse_json(read_file(path, limit), str(path))


def parse_json(data: bytes | str, place: str) -> Any:
    """JSON, with ``place`` in messages.

    Refused: names that occur twice in an object (readers differ in which one they take), NaN and
    Infinity, numbers that overflow, and what is beyond the limits on values and depth.
    """
    text = data if isinstance(data, bytes) else data.encode("utf-8", "surrogatepass")
    if sum(text.count(mark) for mark in (b",", b"[", b"{")) > VALUES:
        raise InputError(f"{place} has more than {VALUES:,} values; it is not what its name says")

    def unique(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
        names = Counter(name for name, _ in pairs)
        if len(names) < len(pairs):
            twice = next(name for name, count in names.items() if count > 1)
            raise ValueError(f"{shortened(twice)} occurs twice in one object")
        return dict(pairs)

    def no_constant(name: str) -> float:
        raise ValueError(f"{name} is not a number in JSON")

    def finite(digits: str) -> float:
        if not math.isfinite(number := float(digits)):
            raise ValueError(f"{digits[:40]} is too large")
        return number

    def whole(digits: str) -> int:
        if len(digits) > 300:
            raise ValueError(f"a number of {len(digits):,} digits is neither a size nor a count")
        return int(digits)

    try:
        tree = json.loads(
            data,
            object_pairs_hook=unique,
            parse_constant=no_constant,
            parse_float=finite,
            parse_int=whole,
        )
        _check_depth([tree], DEPTH + 1)
    except RecursionError as error:
        raise InputError(
            f"{place} has more than {DEPTH} lists or objects inside each other; it is not what "
            "its name says"
        ) from error
    except ValueError as error:  # also UnicodeDecodeError
        raise InputError(
            f"{place} cannot be read as JSON: {printable(str(error))[:200]}"
        ) from error
    return tree


def _check_depth(tree: Any, left: int) -> None:
    if not left:
        raise RecursionError
    for value in (
        tree.values() if isinstance(tree, dict) else tree if isinstance(tree, list) else ()
    ):
        if isinstance(value, (dict, list)):
            _check_depth(value, left - 1)


def first_line(error: BaseException) -> str:
    """Return the first line of an error's message, or its kind if it has none."""
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    return lines[0][:200] if lines else type(error).__name__


#: Exceptions raised by numbers, names and lists that do not belong together.
_KINDS = (
    ArithmeticError,
    AssertionError,
    AttributeError,
    LookupError,
    MemoryError,
    RecursionError,
    TypeError,
    ValueError,
)


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
        reason = printable(str(error).split("\n")[0])[:200]
        raise InputError(
            f"{place} holds numbers that do not fit together ({type(error).__name__}: {reason}); "
            "they are not what this version of Esscher writes: get the run again, or delete its "
            "results.json and run its command again, which recomputes it from the parts"
        ) from error
