"""Arrays of a pass: PyTorch's, or numpy's.

The compiled kernel reads and writes by address, whoever owns the memory. A pass is written once for
arrays of both libraries: where that kernel does the work, numpy arrays stay numpy's, and nobody has
to wait for ``import torch``. Most operations are called the same in both; what differs is here.
Types of entries are given by name, such as "float32".
"""

from __future__ import annotations

import ctypes
import math
import os
import sys
import threading
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager
from functools import cache
from pathlib import Path
from types import TracebackType
from typing import Any, Self, TypeAlias, TypeVar

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


# Worker threads, one per core, and the memory that each uses again for its next block.
#
# Blocks of attention are small, and torch's own threads waste much of the time on them (most of it
# on a busy machine), so blocks of queries go to worker threads instead. In those, torch must not
# start threads of its own. ``torch.set_num_threads`` is no way to say so: called in a worker it
# also sets the number that every thread started later begins with. What it calls underneath has
# thread-local forms, which libtorch carries: ``omp_set_num_threads`` (local by the OpenMP standard)
# and ``MKL_Set_Num_Threads_Local``. Where they are missing, or do not have the effect, there are no
# workers and torch's own threads do the work.
#
# A block's arrays are as large as a few hundred pages. Fresh ones for every block would cost more
# than the arithmetic done on them: the system clears every page, and takes it back at once from all
# cores.

T = TypeVar("T")
R = TypeVar("R")


class Workers:
    """Run functions in single-threaded workers; a context that always ends its threads.

    The number of workers is the caller's number of torch threads. On a GPU, or with one thread,
    everything runs in the calling thread. Work on numpy arrays does not import torch: there are as
    many workers as torch would have threads, and how many numpy's linear algebra takes is left to
    the caller.

    Parameters
    ----------
    of
        An array that is worked on.
    """

    def __init__(self, of: AnyArray) -> None:
        count = _threads(of)
        self._pool: ThreadPoolExecutor | None = None
        self._ahead = 2 * count
        if count > 1 and is_numpy(of):
            self._pool = ThreadPoolExecutor(count, "esscher-attention")
        elif count > 1 and _can_be_alone():
            self._pool = ThreadPoolExecutor(
                count, "esscher-attention", initializer=_one_thread_here
            )

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        if self._pool is not None:
            self._pool.shutdown(cancel_futures=True)

    def call(self, function: Callable[[T], R], item: T) -> R:
        """One call in a worker, waited for."""
        return function(item) if self._pool is None else self._pool.submit(function, item).result()

    def map(self, function: Callable[[T], R], items: Iterable[T]) -> Iterator[R]:
        """Results in the order of the items, which are taken only a few ahead."""
        if self._pool is None:
            yield from map(function, items)
            return
        waiting: deque[Future[R]] = deque()
        for item in items:
            waiting.append(self._pool.submit(function, item))
            if len(waiting) > self._ahead:
                yield waiting.popleft().result()
        while waiting:
            yield waiting.popleft().result()


def _threads(of: AnyArray) -> int:
    """Threads that work on an array."""
    if is_numpy(of):
        torch = sys.modules.get("torch")
        return _usual_threads() if torch is None else int(torch.get_num_threads())
    import torch as imported

    return imported.get_num_threads() if of.device.type == "cpu" else 1


def _usual_threads() -> int:
    """Threads that torch would begin with: those asked for, or one for every core."""
    asked = os.environ.get("OMP_NUM_THREADS", "").split(",")[0].strip()
    if asked.isdecimal() and int(asked) > 0:
        return int(asked)
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def _one_thread_here() -> None:
    """Make torch single-threaded in the thread that calls this, if the library lets us."""
    import torch

    torch.get_num_threads()  # torch sets a thread's number at its first use: let it do so now
    for name in ("omp_set_num_threads", "MKL_Set_Num_Threads_Local"):
        setter = torch_function(name)
        if setter is not None:
            setter(1)


@cache
def _can_be_alone() -> bool:
    """Whether torch lets a thread be single-threaded, which is the same for all threads."""
    with ThreadPoolExecutor(1, "esscher-attention", initializer=_one_thread_here) as pool:
        return pool.submit(_is_alone).result()


def _is_alone() -> bool:
    """Whether torch is single-threaded in this thread, matrix products included."""
    import torch

    mkl = bool(torch.backends.mkl.is_available())  # type: ignore[no-untyped-call]
    local_mkl = torch_function("MKL_Set_Num_Threads_Local") is not None
    return torch.get_num_threads() == 1 and (local_mkl or not mkl)


@cache
def torch_function(name: str) -> Callable[..., object] | None:
    """A C function of the library that torch has loaded (or of one that it depends on)."""
    import torch

    library = Path(torch.__file__).parent / "lib" / "libtorch_cpu.so"
    try:
        function: Callable[..., object] = getattr(ctypes.CDLL(str(library)), name)
    except (OSError, AttributeError):
        return None
    return function


class Workspace(threading.local):
    """Named arrays of one thread; what is in them is lost when the name is asked for again."""

    def __init__(self) -> None:
        self._arrays: dict[str, AnyArray] = {}

    def empty(self, name: str, like: AnyArray, *shape: int, dtype: str) -> AnyArray:
        """An array with anything in it, of the same library and on the same device as another."""
        needed = math.prod(shape)
        array = self._arrays.get(name)
        if array is None or len(array) < needed or type_name(array.dtype) != dtype:
            array = self._arrays[name] = empty(like, needed, dtype=dtype)
        return array[:needed].reshape(shape)
