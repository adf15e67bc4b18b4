"""Checks of what callers hand in, with errors that name the value, the place and the remedy."""

from __future__ import annotations

import math
import os
from collections.abc import Iterable
from numbers import Integral
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeAlias, TypeVar

from esscher.core.errors import InputError
from esscher.core.shown import shortened

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import ArrayLike, NDArray

    Array: TypeAlias = NDArray[np.float64]
else:  # help is printed without numpy
    Array = Any

#: Relative asymmetry (and negative eigenvalue) of a covariance that is put down to rounding.
ROUNDING = 1e-8
#: Where queries come from: drawn independently of the keys, or the tokens themselves.
QUERIES = ("population", "tokens")
#: Laws of tokens that have a standard form: :func:`esscher.laws.standard_law`.
STANDARD_LAWS = ("gaussian", "mixture", "sphere", "cube", "signs", "laplace", "student")
#: Kinds of numpy types that hold real numbers: bool, whole numbers, floats, and Python's objects.
_REAL = frozenset("biufO")

Kind = TypeVar("Kind")


def as_numbers(value: ArrayLike, name: str) -> Array:
    """Return ``value`` as a float64 array of real numbers, which may be nan or infinite."""
    import numpy as np

    try:
        given = np.asarray(value)
        # objects: numbers of Python that no type of numpy holds, such as 10**400
        array = None if given.dtype.kind not in _REAL else np.asarray(given, dtype=np.float64)
    except OverflowError as error:
        raise InputError(
            f"{name} has a number that is too large; all must be below 1.8e308"
        ) from error
    except (TypeError, ValueError, RuntimeError) as error:
        raise InputError(f"{name} is not an array of numbers: {error}") from error
    if given.dtype.kind == "c":
        raise InputError(
            f"{name} has complex numbers, but must be real; give its real part, x.real, or the "
            "real and imaginary parts as coordinates of their own"
        )
    if array is None:
        raise InputError(f"{name} is not an array of numbers: it is {shortened(value)}")
    return array


def as_array(value: ArrayLike, name: str, ndim: int | None = None) -> Array:
    """Return ``value`` as a finite float64 array, of ``ndim`` dimensions if that is given."""
    import numpy as np

    array = as_numbers(value, name)
    if ndim is not None and array.ndim != ndim:
        raise InputError(f"{name} has shape {array.shape}; it must have {ndim} dimension(s)")
    if not np.isfinite(array).all():
        place = tuple(int(i) for i in np.argwhere(~np.isfinite(array))[0])
        where = f"entry {place}" if place else "it"
        raise InputError(f"{name} is not finite: {where} is {array[place]}")
    return array


def as_path(value: str | os.PathLike[str], name: str) -> Path:
    """Return ``value`` as a path of a file or a directory."""
    if not isinstance(value, str | os.PathLike) or not str(value):
        raise InputError(f"{name} is {shortened(value)}; it must be the path of a run or a file")
    return Path(value)


def as_dim(value: int, name: str = "dim") -> int:
    """Return ``value`` as a positive dimension."""
    number = _as_number(value, name)
    if not number.is_integer() or number < 1:
        raise InputError(f"{name} is {shortened(value)}; it must be a whole number of at least 1")
    check_memory(8 * number, f"{name} is {shortened(value)}; a list of that length")
    return int(number)


def check_memory(size: float, what: str) -> None:
    """Refuse what does not fit into the memory of this machine, before any of it is taken.

    Parameters
    ----------
    size
        Bytes that are needed.
    what
        What needs them, to begin the message with.

    Raises
    ------
    InputError
        If the machine has less memory.
    """
    try:
        there = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    except (AttributeError, OSError, ValueError):  # not every system tells
        return
    if 0 < there < size:
        raise InputError(
            f"{what} takes {size / 1e9:,.0f} GB of memory, and this machine has "
            f"{there / 1e9:,.0f} GB; give a smaller number"
        )


def as_kind(value: object, kind: type[Kind], name: str, remedy: str) -> Kind:
    """Return ``value`` if it is an object of this class.

    Parameters
    ----------
    value
        What was handed in.
    kind
        The class that it must have.
    name
        What the argument is called.
    remedy
        How to get such an object.

    Raises
    ------
    InputError
        If it is anything else.
    """
    if not isinstance(value, kind):
        raise InputError(f"{name} is {shortened(value)}; it must be {remedy}")
    return value


def _as_number(value: object, name: str) -> float:
    """Return ``value`` as a float that may still be out of range, but is a number."""
    kind = getattr(getattr(value, "dtype", None), "kind", "f")  # of numpy
    refused = isinstance(value, bool | complex | str | bytes) or kind not in "iufO"
    if refused or getattr(value, "ndim", 0) > 0:
        raise InputError(f"{name} is {shortened(value)}; it must be a number")
    try:
        return float(value)  # type: ignore[arg-type]
    except (TypeError, ValueError, RuntimeError) as error:
        raise InputError(f"{name} is {shortened(value)}; it must be a number") from error
    except OverflowError as error:
        raise InputError(f"{name} is {shortened(value)}; that is too large") from error


def as_seed(value: int) -> int:
    """Return ``value`` as a seed: a whole number of at least 0."""
    whole = isinstance(value, Integral) and not isinstance(value, bool)
    number = int(value) if whole else _as_number(value, "seed")
    if number < 0 or not math.isfinite(number) or int(number) != number:
        raise InputError(f"seed is {shortened(value)}; it must be a whole number of at least 0")
    return int(number)


def as_finite(value: float, name: str) -> float:
    """Return ``value`` as a finite number."""
    number = _as_number(value, name)
    if not math.isfinite(number):
        raise InputError(f"{name} is {shortened(value)}; it must be finite")
    return number


def as_positive(value: float, name: str) -> float:
    """Return ``value`` as a positive finite number."""
    number = _as_number(value, name)
    if not math.isfinite(number) or number <= 0:
        raise InputError(f"{name} is {shortened(value)}; it must be a positive finite number")
    return number


def as_nonnegative(value: float, name: str) -> float:
    """Return ``value`` as a finite number that is not negative."""
    number = _as_number(value, name)
    if not math.isfinite(number) or number < 0:
        raise InputError(f"{name} is {shortened(value)}; it must be finite and at least 0")
    return number


def as_covariance(value: ArrayLike, name: str = "covariance") -> Array:
    """Return ``value`` as a symmetric positive semidefinite matrix, or say what is wrong."""
    import numpy as np

    matrix = as_array(value, name, ndim=2)
    if matrix.shape[0] != matrix.shape[1] or matrix.shape[0] == 0:
        raise InputError(f"{name} has shape {matrix.shape}; it must be square and not empty")
    scale = float(np.max(np.abs(matrix)))
    gap = np.abs(matrix - matrix.T)
    if scale > 0 and float(gap.max()) > ROUNDING * scale:
        i, j = (int(k) for k in np.unravel_index(np.argmax(gap), gap.shape))
        raise InputError(
            f"{name} is not symmetric: entry ({i}, {j}) is {matrix[i, j]:g} "
            f"but entry ({j}, {i}) is {matrix[j, i]:g}; pass (C + C.T) / 2 if this is rounding"
        )
    matrix = (matrix + matrix.T) / 2
    jitter = ROUNDING * max(float(np.max(np.abs(np.diag(matrix)))), 0.0)
    try:  # one Cholesky decomposition: no eigenvalue is below minus rounding
        np.linalg.cholesky(matrix + jitter * np.eye(len(matrix)))
    except np.linalg.LinAlgError:
        if not matrix.any():
            return matrix
        smallest = float(np.linalg.eigvalsh(matrix)[0])
        raise InputError(
            f"{name} is not positive semidefinite: its smallest eigenvalue is {smallest:g}"
        ) from None
    return matrix


def as_sizes(value: ArrayLike, name: str = "sizes", smallest: int = 2) -> Array:
    """Return strictly increasing whole numbers of tokens, as floats (they may exceed 2**63)."""
    import numpy as np

    sizes = np.atleast_1d(as_array(value, name))
    if sizes.ndim != 1 or sizes.size == 0:
        raise InputError(f"{name} has shape {sizes.shape}; it must be a non-empty list of sizes")
    if np.any(sizes != np.round(sizes)):
        raise InputError(f"{name} must be whole numbers; got {sizes[sizes != np.round(sizes)][0]}")
    if sizes.min() < smallest:
        raise InputError(
            f"{name} contains n = {sizes.min():g}; a number of tokens must be at least {smallest}"
        )
    if np.any(np.diff(sizes) <= 0):
        raise InputError(f"{name} must be strictly increasing; got {shortened(sizes.tolist())}")
    return sizes


def as_queries(value: str) -> str:
    """Return ``value`` if it names where queries come from, one of ``QUERIES``."""
    if value not in QUERIES:
        raise InputError(f"queries is {shortened(value)}; it must be one of {', '.join(QUERIES)}")
    return value


def as_points(value: ArrayLike, dim: int, name: str) -> Array:
    """Return an array whose last axis has length ``dim`` (any leading axes)."""
    points = as_array(value, name)
    if points.ndim == 0 or points.shape[-1] != dim:
        raise InputError(f"{name} has shape {points.shape}; its last axis must have length {dim}")
    return points


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
            raise InputError(f"{name} contains {number}; it must be 0 to {count - 1}")
        chosen.append(number % count)
    if not chosen:
        raise InputError(f"{name} is empty; choose from 0 to {count - 1}, or leave it out for all")
    if len(set(chosen)) < len(chosen):
        twice = next(number for number in chosen if chosen.count(number) > 1)
        raise InputError(f"{name} contains {twice} more than once; give every number once")
    return tuple(sorted(chosen))
