"""Arrays of a pass: PyTorch's, or numpy's.

The compiled kernel reads and writes by address, whoever owns the memory. A pass is written once for
arrays of both libraries: where that kernel does the work, numpy arrays stay numpy's, and nobody has
to wait for ``import torch``. Most operations are called the same in both; what differs is here.
Types of entries are given by name, such as "float32".
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, TypeAlias

import numpy as np

#: A numpy array, or a tensor of PyTorch.
AnyArray: TypeAlias = Any
#: The kernel wants arrays of queries aligned to vectors, of at most so many bytes. PyTorch's are.
ALIGNMENT = 64


def is_numpy(x: AnyArray) -> bool:
    """Tell whose array it is."""
    return isinstance(x, np.ndarray)


def library(x: AnyArray) -> Any:
    """Return the module whose array it is."""
    if is_numpy(x):
        return np
    import torch

    return torch


def type_name(dtype: Any) -> str:
    """Name of a type of entries, which may be a name, numpy's or PyTorch's."""
    if isinstance(dtype, type):
        return dtype.__name__
    return str(getattr(dtype, "name", dtype)).removeprefix("torch.")


def _type(x: AnyArray, name: str) -> Any:
    return getattr(library(x), name)


def cast(x: AnyArray, name: str) -> AnyArray:
    """The array in another type; the array itself if it has that type."""
    return x.astype(name, copy=False) if is_numpy(x) else x.to(_type(x, name))


def wider(x: AnyArray, name: str) -> str:
    """The type of the array or the other one, whichever holds both."""
    return type_name(library(x).promote_types(x.dtype, _type(x, name)))


def empty(like: AnyArray, *shape: int, dtype: str) -> AnyArray:
    """An array with anything in it, where the other one lies; aligned as the kernel wants it."""
    if not is_numpy(like):
        return like.new_empty(shape, dtype=_type(like, dtype))
    kind = np.dtype(dtype)
    count = int(np.prod(shape)) * kind.itemsize
    memory = np.empty(count + ALIGNMENT, dtype=np.uint8)
    start = -memory.ctypes.data % ALIGNMENT
    return memory[start : start + count].view(kind).reshape(shape)


def full(like: AnyArray, *shape: int, value: float, dtype: str) -> AnyArray:
    """The same, filled with a number."""
    made = empty(like, *shape, dtype=dtype)
    made[...] = value
    return made


def zeros(like: AnyArray, *shape: int, dtype: str) -> AnyArray:
    """The same, filled with zeros."""
    return full(like, *shape, value=0.0, dtype=dtype)


def numbers(like: AnyArray, values: Any, dtype: str) -> AnyArray:
    """A copy of a list or of a numpy array, where the other one lies."""
    if not is_numpy(like):
        return library(like).tensor(values, dtype=_type(like, dtype), device=like.device)
    made = empty(like, *np.shape(values), dtype=dtype)
    made[...] = values
    return made


def copied(x: AnyArray) -> AnyArray:
    """A copy."""
    return x.copy() if is_numpy(x) else x.clone()


def contiguous(x: AnyArray) -> AnyArray:
    """The array with its rows side by side in memory."""
    return np.ascontiguousarray(x) if is_numpy(x) else x.contiguous()


def address(x: AnyArray) -> int:
    """Where a contiguous array begins in memory; the array must live as long as this is used."""
    return int(x.ctypes.data if is_numpy(x) else x.data_ptr())


def on_host(x: AnyArray) -> Any:
    """The same numbers as a numpy array."""
    return x if is_numpy(x) else x.cpu().numpy()


def tensor_of(x: AnyArray | None) -> AnyArray | None:
    """The same memory as a tensor, for work that only PyTorch can do."""
    if x is None or not is_numpy(x):
        return x
    import torch

    return torch.from_numpy(x if x.flags.writeable else x.copy())


def sum_of_squares(x: AnyArray) -> AnyArray:
    """Sum over all axes but the first; the array itself may be overwritten."""
    if is_numpy(x):
        return np.square(x, out=x).reshape(len(x), -1).sum(axis=1)
    return library(x).linalg.vector_norm(x, dim=tuple(range(1, x.ndim))).square()


@contextmanager
def working(on: AnyArray) -> Iterator[None]:
    """Neither gradients nor warnings inside the block: overflows are looked for afterwards."""
    if is_numpy(on):
        with np.errstate(all="ignore"):
            yield
    else:
        with library(on).inference_mode():
            yield
