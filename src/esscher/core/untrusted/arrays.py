"""Arrays of numpy: their headers are believed only as far as the file reaches."""

from __future__ import annotations

import io
import math
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np
from numpy.typing import NDArray

from esscher.core.errors import InputError
from esscher.core.untrusted.regular import open_regular

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
    with open_regular(path, follow=False) as file:
        file.seek(0, io.SEEK_END)
        size = file.tell()
        file.seek(0)
        shape, fortran, dtype, start = _header(file, size, str(path))
        if not math.prod(shape):
            return np.empty(shape, dtype)
        order: Any = "F" if fortran else "C"
        return np.memmap(file, dtype=dtype, mode="r", shape=shape, order=order, offset=start)


def _header(
    file: BinaryIO, size: int, place: str
) -> tuple[tuple[int, ...], bool, np.dtype[Any], int]:
    """Shape, order, type and place of the first number; refused if the file cannot hold it."""
    try:
        version = np.lib.format.read_magic(file)
        if version == (1, 0):
            shape, fortran, dtype = np.lib.format.read_array_header_1_0(file)
        elif version == (2, 0):
            shape, fortran, dtype = np.lib.format.read_array_header_2_0(file)
        else:
            raise InputError(f"{place} is damaged: version {version} of its format is not known")
    except InputError:
        raise
    except Exception as error:  # headers are Python's own syntax: its tokenizer has errors, too
        said = str(error).splitlines()[0][:200] if str(error) else type(error).__name__
        raise InputError(f"{place} is damaged: {said}") from error
    start = file.tell()
    if dtype.hasobject or dtype.kind not in _KINDS:
        raise InputError(f"{place} holds {dtype.name[:80]}, not numbers; it is not read")
    count = math.prod(shape)
    if (
        count < 0
        or any(n < 0 for n in shape)
        or len(shape) > 8
        or count * dtype.itemsize > size - start
    ):
        raise InputError(
            f"{place} is damaged: its header promises {str(tuple(shape))[:80]} numbers of "
            f"{dtype.itemsize} bytes, but {size - start:,} bytes follow"
        )
    return tuple(int(n) for n in shape), bool(fortran), dtype, start
