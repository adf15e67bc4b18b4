"""Files that may come from anybody: regular ones, with JSON, arrays and tables within limits."""

from __future__ import annotations

import errno
import gc
import io
import json
import math
import os
import stat
from collections import Counter
from pathlib import Path
from typing import TYPE_CHECKING, Any, BinaryIO

from esscher.core.errors import InputError
from esscher.core.shown import printable, shortened
from esscher.core.untrusted import limits

if TYPE_CHECKING:
    import pyarrow as pa
    from numpy.typing import NDArray


#: A pipe is opened without waiting for its other end, and seen to be one then.
_READ = os.O_RDONLY | getattr(os, "O_NONBLOCK", 0) | getattr(os, "O_CLOEXEC", 0)
_NO_LINK = getattr(os, "O_NOFOLLOW", 0)


def open_regular(path: Path, *, follow: bool = True) -> BinaryIO:
    """Open a regular file for reading.

    Parameters
    ----------
    path
        The file.
    follow
        Whether it may be a link. What the user names may be one; files inside a run directory,
        which somebody else may have made, may not: they would lead out of it.

    Raises
    ------
    FileNotFoundError
        If it is not there.
    InputError
        If it is a directory, a pipe, a device, a link that must not be followed, or cannot be read.
    """
    return os.fdopen(_opened(path, _READ | (0 if follow else _NO_LINK)), "rb")


def read_file(path: Path, limit: int, *, follow: bool = True) -> bytes:
    """The bytes of a regular file of at most ``limit`` bytes; see :func:`open_regular`."""
    with open_regular(path, follow=follow) as file:
        # one more than allowed: the size of a file that grows, or lies, says nothing
        size = os.fstat(file.fileno()).st_size
        data = b"" if size > limit else file.read(limit + 1)
        if size > limit or len(data) > limit:
            raise InputError(
                f"{path} has {max(size, len(data)):,} bytes; at most {limit:,} are read: it is not "
                "what its name says"
            )
        return data


def open_regular_for_writing(path: Path, flags: int = os.O_WRONLY) -> int:
    """A handle for writing to a regular file; never through a link, never to a pipe or device."""
    return _opened(path, flags | getattr(os, "O_NONBLOCK", 0) | _NO_LINK)


def check_folder(folder: Path, name: str) -> Path:
    """The folder ``name`` in a run directory; one that is a link is refused.

    Raises
    ------
    InputError
        If it leads elsewhere: what is written into it would, too.
    """
    inner = folder / name
    if inner.is_symlink():
        raise InputError(
            f"{inner} is a link; nothing inside a run directory may lead out of it: put its "
            "contents there, or link the whole run directory"
        )
    return inner


def _opened(path: Path, flags: int) -> int:
    try:
        handle = os.open(path, flags, 0o666)
    except FileNotFoundError:
        raise
    except OSError as error:
        if error.errno == errno.ELOOP or (error.errno == errno.EMLINK and path.is_symlink()):
            raise InputError(
                f"{path} is a link, which is not followed here: put the file itself in its place"
            ) from error
        if error.errno == errno.ENXIO:
            raise InputError(
                f"{path} is a pipe or socket, where a file is expected; remove it"
            ) from error
        raise InputError(f"cannot read {path}: {error.strerror or error}") from error
    except ValueError as error:  # a zero byte in a name
        raise InputError(f"{str(path)!r} is not a file name: {error}") from error
    mode = os.fstat(handle).st_mode
    if not stat.S_ISREG(mode):
        os.close(handle)
        kind = "a directory" if stat.S_ISDIR(mode) else "a pipe, socket or device"
        raise InputError(f"{path} is {kind}, where a file is expected; remove it")
    return handle


# JSON of bounded size, depth and number of values; numbers are finite.


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


def parse_json(data: bytes | str, place: str, longest: int = limits.STRING) -> Any:
    """JSON, with ``place`` in messages; strings have at most ``longest`` characters.

    Refused: names that occur twice in an object (readers differ in which one they take), NaN and
    Infinity, numbers that overflow, and what is beyond the limits on values, depth and strings.
    """
    text = data if isinstance(data, bytes) else data.encode("utf-8", "surrogatepass")
    if sum(text.count(mark) for mark in (b",", b"[", b"{")) > limits.VALUES:
        raise InputError(
            f"{place} has more than {limits.VALUES:,} values; it is not what its name says"
        )

    def unique(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
        names = Counter(name for name, _ in pairs)
        if len(names) < len(pairs):
            twice = next(name for name, count in names.items() if count > 1)
            raise ValueError(f"{shortened(twice)} occurs twice in one object")
        return dict(pairs)

    def no_constant(name: str) -> float:
        raise ValueError(f"{name} is not a number in JSON")

    collecting = gc.isenabled()
    gc.disable()  # a growing heap would start it again and again in vain
    try:
        tree = json.loads(data, object_pairs_hook=unique, parse_constant=no_constant)
        _check(tree, place, longest)
    except RecursionError as error:
        raise InputError(
            f"{place} has more than {limits.DEPTH} lists or objects inside each other; it is not "
            "what its name says"
        ) from error
    except InputError:
        raise
    except ValueError as error:  # also UnicodeDecodeError, and numbers of thousands of digits
        raise InputError(
            f"{place} cannot be read as JSON: {printable(str(error))[:200]}"
        ) from error
    finally:
        if collecting:
            gc.enable()
    return tree


def _check(tree: Any, place: str, longest: int) -> None:
    """Depth, strings and numbers, level by level: no recursion, and one pass over the values."""
    level: list[Any] = [tree]
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
    raise RecursionError


# Arrays of numpy: their headers are believed only as far as the file reaches.

#: Kinds of numbers, and strings of fixed length; objects would be pickles.
_KINDS = "biufU"


def map_array(path: Path) -> NDArray[Any]:
    """Map the array of a .npy file for reading.

    Raises
    ------
    FileNotFoundError
        If it is not there.
    InputError
        If it is no array, holds objects, or ends before its array does.
    """
    import numpy as np

    with open_regular(path, follow=False) as file:
        size = os.fstat(file.fileno()).st_size
        try:
            version = np.lib.format.read_magic(file)
            if version == (1, 0):
                shape, fortran, dtype = np.lib.format.read_array_header_1_0(file)
            elif version == (2, 0):
                shape, fortran, dtype = np.lib.format.read_array_header_2_0(file)
            else:
                raise ValueError(f"version {version} of its format is not known")
        except Exception as error:  # headers are Python's own syntax: its tokenizer has errors, too
            raise InputError(f"{path} is damaged: {first_line(error)}") from error
        start = file.tell()
        if dtype.hasobject or dtype.kind not in _KINDS:
            raise InputError(f"{path} holds {dtype.name[:80]}, not numbers; it is not read")
        count = math.prod(shape)
        if (
            count < 0
            or any(n < 0 for n in shape)
            or len(shape) > 8
            or count * dtype.itemsize > size - start
        ):
            raise InputError(
                f"{path} is damaged: its header promises {str(tuple(shape))[:80]} numbers of "
                f"{dtype.itemsize} bytes, but {size - start:,} bytes follow"
            )
        shape = tuple(int(n) for n in shape)
        if not count:
            return np.empty(shape, dtype)
        order: Any = "F" if fortran else "C"
        return np.memmap(file, dtype=dtype, mode="r", shape=shape, order=order, offset=start)


# Parquet of the parts of a run: kinds of columns and sizes are checked before they are made.

#: Bytes of a number at most, or of a reference to a string, in memory.
_WIDTH = 8


def read_table(data: bytes, place: str) -> pa.Table:
    """The table of a part of a run: columns of numbers, truth values and strings.

    Raises
    ------
    InputError
        If it is no such table, or is beyond the limits on rows, columns and bytes.
    """
    import pyarrow as pa
    import pyarrow.compute as pc
    import pyarrow.parquet as pq

    def check_total(total: int) -> None:
        if total > limits.TABLE:
            raise InputError(
                f"{place} unpacks to {total:,} bytes or more; at most {limits.TABLE:,} are read"
            )

    types: Any = pa.types
    strings = []
    try:
        with pq.ParquetFile(io.BytesIO(data)) as file:
            rows, columns = file.metadata.num_rows, file.metadata.num_columns
            if not 0 <= rows <= limits.ROWS or columns > limits.COLUMNS:
                raise InputError(
                    f"{place} is a table of {rows:,} rows and {columns:,} columns; at most "
                    f"{limits.ROWS:,} and {limits.COLUMNS} are read"
                )
            for field in file.schema_arrow:
                kind = field.type
                if types.is_string(kind) or types.is_large_string(kind):
                    strings.append(field.name)
                elif not (
                    types.is_integer(kind) or types.is_floating(kind) or types.is_boolean(kind)
                ):
                    raise InputError(f"{place} is damaged: a column holds {str(kind)[:80]}")
            check_total(rows * columns * _WIDTH)
        # strings stay references into a dictionary until their length is known
        with pq.ParquetFile(io.BytesIO(data), read_dictionary=strings) as file:
            table = file.read(use_threads=False)
        total = 0
        for i, field in enumerate(table.schema):
            if not types.is_dictionary(field.type):
                continue
            chunks: Any = table.column(i).chunks
            for chunk in chunks:
                lengths: Any = pc.binary_length(chunk.dictionary)
                total += pc.sum(lengths.take(chunk.indices)).as_py() or 0
            check_total(total)
            table = table.set_column(i, field.name, table.column(i).cast(pa.large_string()))
        return table
    except InputError:
        raise
    except (
        pa.ArrowException,
        OSError,
        ValueError,
        LookupError,
        TypeError,
        RecursionError,
    ) as error:
        raise InputError(f"{place} is damaged: {first_line(error)}") from error


def first_line(error: BaseException) -> str:
    """Return the first line of an error's message, or its kind if it has none."""
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    return lines[0][:200] if lines else type(error).__name__
