"""Loading the compiled kernel, and the layouts it works on."""

from __future__ import annotations

import ctypes
import math
import os
import warnings
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path

import numpy as np

from esscher.core.errors import InputError
from esscher.engine.attention.arrays import (
    AnyArray,
    Workspace,
    address,
    cast,
    empty,
    full,
    numbers,
    type_name,
)
from esscher.engine.attention.compiled.build import TARGETS, library

#: Overrides the choice of the kernel: ``torch`` or an instruction set; for tests and comparisons.
VARIABLE = "ESSCHER_KERNEL"
#: As in step.c: the version of its structs, and the keys of a tile.
LAYOUT, KEYS = 9, 6


#: Of everything the kernel is given.
FLOAT = "float32"
_POINTERS = (
    "keys",
    "values",
    "tilts",
    "relative",
    "visible",
    "part",
    "total",
    "squares",
    "shift",
    "peak",
    "scratch",
)
_INTEGERS = (
    "all_keys",
    "width",
    "rows",
    "queries",
    "scales",
    "group",
    "block",
    "flush",
    "started",
)


class Pass(ctypes.Structure):
    """``struct pass`` of step.c."""

    _fields_ = (
        *((name, ctypes.c_void_p) for name in _POINTERS),
        *((name, ctypes.c_int64) for name in _INTEGERS),
        ("headroom", ctypes.c_float),
    )


@dataclass(frozen=True)
class Kernel:
    """A compiled library: the instruction set it is for, and the queries of a panel.

    Calls release the interpreter's lock.
    """

    target: str
    panel: int
    library: ctypes.CDLL

    def pack_keys(self, keys: AnyArray, centre: AnyArray) -> tuple[AnyArray, float]:
        """Rows of keys less their centre as [tile][width][KEYS]; length of the longest."""
        packed = empty(keys, -(-len(keys) // KEYS), keys.shape[1], KEYS, dtype=FLOAT)
        return packed, self._pack_rows(keys, centre, 1.0, packed)

    def pack_queries(
        self, tilts: AnyArray, factor: float, workspace: Workspace
    ) -> tuple[AnyArray, float]:
        """Rows of tilts times a factor as [panel][width][query]; length of the longest."""
        shape = (-(-len(tilts) // self.panel), tilts.shape[1], self.panel)
        packed = workspace.empty("tilts", tilts, *shape, dtype=FLOAT)
        return packed, self._pack_rows(tilts, None, factor, packed)

    def pack_values(self, values: AnyArray, centre: AnyArray) -> tuple[AnyArray, float]:
        """Rows of values less their centre as [tile of columns][key][columns of the tile].

        Also the largest absolute entry.
        """
        if type_name(values.dtype) == "float64":  # rounded after the subtraction
            values, centre = values - centre, full(values, len(centre), value=0.0, dtype=FLOAT)
        values, centre = _contiguous(values), cast(centre, FLOAT)
        packed = empty(values, math.prod(values.shape), dtype=FLOAT)
        largest = self.library.esscher_pack_values(
            address(values), address(centre), *values.shape, address(packed)
        )
        return packed, largest

    def _pack_rows(
        self, x: AnyArray, centre: AnyArray | None, factor: float, packed: AnyArray
    ) -> float:
        if type_name(x.dtype) == "float64":  # rounded at the end
            x, centre, factor = (x if centre is None else x - centre) * factor, None, 1.0
        x = _contiguous(x)
        at = None if centre is None else address(centre)
        square = self.library.esscher_pack_rows(
            address(x), at, *x.shape, packed.shape[2], factor, address(packed)
        )
        return math.sqrt(square)


def _contiguous(x: AnyArray) -> AnyArray:
    """In float32, entries side by side in memory."""
    x = cast(x, FLOAT)
    return np.ascontiguousarray(x) if isinstance(x, np.ndarray) else x.contiguous()


def kernel_for(device: object, dtype: object) -> Kernel | None:
    """The kernel for float32 on this processor, if there is one; ``None`` is PyTorch's.

    Device and type are PyTorch's, or their names.
    """
    if str(device).partition(":")[0] != "cpu" or type_name(dtype) != FLOAT:
        return None
    return _chosen(os.environ.get(VARIABLE, ""))


def kernel_name() -> str:
    """Name the float32 kernel in use: ``torch``, ``compiled AVX2`` or ``compiled AVX512``."""
    kernel = kernel_for("cpu", FLOAT)
    return "torch" if kernel is None else f"compiled {kernel.target}"


@cache
def _chosen(wanted: str) -> Kernel | None:
    """The kernel by name, or the one for this processor."""
    if wanted.lower() == "torch":
        return None
    if not wanted:
        # the last one is the widest; a processor that has it has those before it
        return next(filter(None, map(_load, reversed(TARGETS))), None)
    target = wanted.upper()
    if target not in TARGETS:
        known = ", ".join(["torch", *TARGETS])
        raise InputError(f"{VARIABLE} is {wanted!r}; choose from {known}, or leave it unset")
    kernel = _load(target)
    if kernel is None and library(target).is_file():
        raise InputError(f"{VARIABLE} asks for {target}, which cannot be used on this machine")
    if kernel is None:
        raise InputError(
            f"{VARIABLE} asks for {target}, but that kernel is not compiled; "
            "run python -m esscher.engine.attention.compiled"
        )
    return kernel


def _load(target: str) -> Kernel | None:
    """The library for an instruction set if this processor has it.

    It must also be there, be of this version, and compute right.
    """
    path = library(target)
    if not path.is_file():
        return None
    try:
        return open_library(target, path)
    except (OSError, AttributeError) as error:
        warnings.warn(
            f"the compiled kernel {path} is not used ({error}); another one or PyTorch does its "
            "work, slower. Compile it again with python -m esscher.engine.attention.compiled",
            RuntimeWarning,
            stacklevel=2,
        )
        return None


def open_library(target: str, path: Path) -> Kernel | None:
    """Open and try a library; None if it is for another processor.

    Raises
    ------
    OSError
        If it is not what it should be.
    """
    library = ctypes.CDLL(str(path))
    if library.esscher_layout() != LAYOUT:
        raise OSError("it was compiled from another version of the source")
    if not library.esscher_runs_here():
        return None
    pointer, number, real = ctypes.c_void_p, ctypes.c_int64, ctypes.c_double
    signatures: dict[str, tuple[list[object], object]] = {
        "keys": ([pointer, number, number], None),
        "outputs": ([pointer, number, real, real, pointer, pointer], ctypes.c_int),
        "received": ([pointer, number, number, number, pointer, pointer, pointer], None),
        "pack_rows": (
            [pointer, pointer, number, number, number, ctypes.c_float, pointer],
            ctypes.c_float,
        ),
        "pack_values": ([pointer, pointer, number, number, pointer], ctypes.c_float),
        "ragged": ([ctypes.c_char_p], ctypes.c_int),
        "weighed": ([ctypes.c_char_p], None),
    }
    for name, (arguments, result) in signatures.items():
        function = getattr(library, f"esscher_{name}")
        function.argtypes, function.restype = arguments, result
    kernel = Kernel(target, int(library.esscher_panel()), library)
    if not _computes_right(kernel):
        raise OSError("it does not compute what it should")
    return kernel


def attended(
    kernel: Kernel,
    tilts: AnyArray,
    keys: AnyArray,
    values: AnyArray,
    *,
    relative: Sequence[float] = (1.0,),
    start: int = 0,
) -> AnyArray:
    """Totals [scale, row, query] of the keys from ``start``, in tiny blocks: to try a kernel."""
    width, rows = keys.shape[1], values.shape[1]
    centre = full(keys, max(width, rows), value=0.0, dtype=FLOAT)
    packed_tilts, _ = kernel.pack_queries(tilts, 1.0, Workspace())
    packed_keys, _ = kernel.pack_keys(keys, centre[:width])
    packed_values, _ = kernel.pack_values(values, centre[:rows])
    queries, block = len(packed_tilts) * kernel.panel, 10
    factors = numbers(keys, relative, FLOAT)
    part = full(keys, len(relative), rows + 1, kernel.panel, value=math.nan, dtype=FLOAT)
    total = full(keys, len(relative), rows + 1, queries, value=0.0, dtype="float64")
    scratch = empty(keys, 2 * kernel.panel * (block + 2 * KEYS), dtype=FLOAT)
    state = Pass(
        keys=address(packed_keys),
        values=address(packed_values),
        tilts=address(packed_tilts),
        relative=address(factors),
        part=address(part),
        total=address(total),
        scratch=address(scratch),
        all_keys=len(keys),
        width=width,
        rows=rows,
        queries=queries,
        scales=len(relative),
        group=kernel.panel,
        block=block,
        flush=25,
    )
    kernel.library.esscher_keys(ctypes.byref(state), start, len(keys))
    return total[:, :, : len(tilts)]


def _computes_right(kernel: Kernel) -> bool:
    """Attend a few keys, and compare with float64."""
    rng = np.random.default_rng(0)
    width, rows, n, start = 5, 7, 29, 4
    keys, values = rng.normal(size=(n, width)), rng.normal(size=(n, rows))
    tilts = rng.normal(size=(kernel.panel, width))
    total = attended(kernel, tilts, keys, values, relative=(0.5, 1.0), start=start)
    values = values[start:].T
    for s, alpha in enumerate((0.5, 1.0)):
        weights = np.exp2(alpha * (keys[start:] @ tilts.T))
        expected = np.vstack([values @ weights, weights.sum(0)])
        scale = np.abs(values).max() * weights.sum(0)
        if not np.allclose(total[s] / scale, expected / scale, rtol=0.0, atol=1e-5):
            return False
    return True
