"""A labelled dataset as one file, in the layout of safetensors: no pickles, nothing unpacked.

Eight bytes of length, a JSON header, then plain little-endian arrays. Names of axes, words and
attributes are JSON inside the header's ``__metadata__``; ``safetensors.numpy.load_file`` reads the
numbers, too. One checksum covers all of it, and what does not fit is refused before memory is
taken for it.
"""

from __future__ import annotations

import hashlib
import json
import math
from typing import TYPE_CHECKING, Any, Literal

from esscher.core.codec import Count, Index, Name, Record, as_record
from esscher.core.errors import InputError
from esscher.core.untrusted import parse_json

if TYPE_CHECKING:
    import xarray as xr

#: Name of a type in the header, and in numpy.
TYPES = {"BOOL": "|b1", "I64": "<i8", "F32": "<f4", "F64": "<f8"}
#: Version of this layout.
VERSION = "1"
#: Ending of such files.
SUFFIX = ".safetensors"


class _Numbers(Record, frozen=True, kw_only=True):
    dtype: Literal["BOOL", "I64", "F32", "F64"]
    shape: tuple[Index, ...]
    data_offsets: tuple[Count, Count]


class _Words(Record, frozen=True, kw_only=True):
    shape: tuple[Index, ...]
    values: tuple[str, ...]


class _Labels(Record, frozen=True, kw_only=True):
    axes: dict[Name, tuple[Name, ...]]
    coordinates: tuple[Name, ...]
    words: dict[Name, _Words]
    attributes: dict[str, Any]


def to_bytes(data: xr.Dataset) -> bytes:
    """Return the contents of a file; attributes must be what JSON holds."""
    import numpy as np

    header: dict[str, Any] = {}
    words: dict[str, Any] = {}
    buffer = bytearray()
    for name, variable in data.variables.items():
        values = variable.values
        if values.dtype.kind == "U":
            words[str(name)] = {"shape": values.shape, "values": values.ravel().tolist()}
            continue
        code = {"b": "BOOL", "i": "I64"}.get(values.dtype.kind) or f"F{8 * values.itemsize}"
        raw = np.ascontiguousarray(values, TYPES[code]).tobytes()
        ends = [len(buffer), len(buffer) + len(raw)]
        header[str(name)] = {"dtype": code, "shape": values.shape, "data_offsets": ends}
        buffer += raw
    labels = {
        "axes": {str(name): variable.dims for name, variable in data.variables.items()},
        "coordinates": [str(name) for name in data.coords],
        "words": words,
        "attributes": data.attrs,
    }
    metadata = {"esscher": VERSION, "labels": json.dumps(labels, allow_nan=False)}
    metadata["sha256"] = _digest(header, metadata["labels"], buffer)
    text = json.dumps(header | {"__metadata__": metadata}).encode()
    text += b" " * (-len(text) % 8)  # numbers begin at a multiple of eight bytes
    return len(text).to_bytes(8, "little") + text + bytes(buffer)


def from_bytes(data: bytes, place: str) -> xr.Dataset:
    """Return the dataset of a file.

    Raises
    ------
    InputError
        Naming the file and what is wrong with it.
    """
    try:
        return _parsed(data, place)
    except InputError:
        raise
    except (ValueError, KeyError, TypeError) as error:  # of xarray, msgspec, or of broken unicode
        reason = str(error).splitlines()[0][:200]
        raise InputError(f"{place} is damaged: {reason}") from error


def _parsed(data: bytes, place: str) -> xr.Dataset:
    import numpy as np
    import xarray as xr

    end = 8 + int.from_bytes(data[:8], "little")
    if len(data) < 8 or end > len(data):
        raise InputError(f"{place} is damaged: it ends before its header does")
    header = parse_json(data[8:end], place)
    metadata = header.pop("__metadata__", None) if isinstance(header, dict) else None
    if not isinstance(metadata, dict) or metadata.get("esscher") != VERSION:
        raise InputError(f"{place} is damaged: it is no dataset of layout {VERSION}")
    buffer = memoryview(data)[end:]
    text = str(metadata.get("labels"))
    if _digest(header, text, buffer) != metadata.get("sha256"):
        raise InputError(f"{place} is damaged: its checksum does not match")
    numbers = as_record(header, dict[Name, _Numbers], place)
    labels = as_record(parse_json(text.encode(), place), _Labels, place)
    values: dict[str, Any] = {}
    for name, entry in numbers.items():
        first, last = entry.data_offsets
        dtype, count = np.dtype(TYPES[entry.dtype]), math.prod(entry.shape)
        if last - first != count * dtype.itemsize or last > len(buffer):
            raise InputError(f"{place} is damaged: {name!r} is not of shape {entry.shape}")
        # a copy: arrays of a file would be read-only, and keep all of it in memory
        values[name] = np.frombuffer(buffer, dtype, count, first).reshape(entry.shape).copy()
    for name, strings in labels.words.items():
        if len(strings.values) != math.prod(strings.shape):
            raise InputError(f"{place} is damaged: {name!r} is not of shape {strings.shape}")
        values[name] = np.array(strings.values, dtype=np.str_).reshape(strings.shape)
    if values.keys() != labels.axes.keys():
        raise InputError(f"{place} is damaged: its variables have no names for their axes")
    if any(len(set(axes)) < len(axes) for axes in labels.axes.values()):
        raise InputError(f"{place} is damaged: a variable has two axes of one name")
    arrays = {name: (labels.axes[name], array) for name, array in values.items()}
    coordinates = {name: arrays.pop(name) for name in labels.coordinates}
    return xr.Dataset(arrays, coordinates, labels.attributes)


def _digest(header: dict[str, Any], labels: str, buffer: bytes | bytearray | memoryview) -> str:
    """Checksum of all that a file says: numbers, names of axes, words and attributes."""
    digest = hashlib.sha256(json.dumps(header, sort_keys=True).encode())
    digest.update(labels.encode("utf-8", "surrogatepass"))
    digest.update(buffer)
    return digest.hexdigest()
