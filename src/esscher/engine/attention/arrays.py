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
from typing import Any, Self, TypeAlias, TypeVar

import numpy as np

#: A numpy array, or a tensor of PyTorch.
AnyArray: TypeAlias = Any
#: The kernel wants arrays of queries aligned to vectors, of at most so many bytes. PyTorch's are.
ALIGNMENT = 64


def library(x: AnyArray) -> Any:
    """Return the module whose array it is: numpy, or torch."""
    if isinstance(x, np.ndarray):
        return np
    import torch

    return torch


def type_name(dtype: Any) -> str:
    """Name of a type of entries, which may be a name, numpy's or PyTorch's."""
    if isinstance(dtype, type):
        return dtype.__name__
    return str(getattr(dtype, "name", dtype)).removeprefix("torch.")


def cast(x: AnyArray, name: str) -> AnyArray:
    """The array in another type; the array itself if it has that type."""
    return x.astype(name, copy=False) if isinstance(x, np.ndarray) else x.to(dtype_of(x, name))


def dtype_of(x: AnyArray, name: str) -> Any:
    """A type by its name, in the library of an array."""
    return getattr(library(x), name)


def empty(like: AnyArray, *shape: int, dtype: str) -> AnyArray:
    """An array with anything in it, of the same library and on the same device as another.

    It is aligned as the kernel wants it.
    """
    if not isinstance(like, np.ndarray):
        return like.new_empty(shape, dtype=dtype_of(like, dtype))
    kind = np.dtype(dtype)
    count = int(np.prod(shape)) * kind.itemsize
    memory = np.empty(count + ALIGNMENT, dtype=np.uint8)
    start = -memory.ctypes.data % ALIGNMENT
    return memory[start : start + count].view(kind).reshape(shape)


def full(like: AnyArray, *shape: int, value: float, dtype: str) -> AnyArray:
    """The same, filled with a number."""
    array = empty(like, *shape, dtype=dtype)
    array[...] = value
    return array


def numbers(like: AnyArray, values: Any, dtype: str) -> AnyArray:
    """A copy of a list or of a numpy array, in the library and on the device of another array."""
    if not isinstance(like, np.ndarray):
        return library(like).tensor(values, dtype=dtype_of(like, dtype), device=like.device)
    array = empty(like, *np.shape(values), dtype=dtype)
    array[...] = values
    return array


def address(x: AnyArray) -> int:
    """Where a contiguous array begins in memory; the array must live as long as this is used."""
    return int(x.ctypes.data if isinstance(x, np.ndarray) else x.data_ptr())


def on_host(x: AnyArray) -> Any:
    """The same numbers as a numpy array."""
    return x if isinstance(x, np.ndarray) else x.cpu().numpy()


@contextmanager
def quiet(x: AnyArray) -> Iterator[None]:
    """Neither gradients nor warnings inside the block: overflows are looked for afterwards."""
    with np.errstate(all="ignore") if isinstance(x, np.ndarray) else library(x).inference_mode():
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
    x
        An array that is worked on.
    """

    def __init__(self, x: AnyArray) -> None:
        initializer = None
        if not isinstance(x, np.ndarray):
            import torch

            count = torch.get_num_threads() if x.is_cpu else 1
            initializer = _one_thread_here
        elif "torch" in sys.modules:
            count = int(sys.modules["torch"].get_num_threads())
        else:  # what torch would begin with
            wanted = os.environ.get("OMP_NUM_THREADS", "").split(",")[0].strip()
            cores = len(os.sched_getaffinity(0)) if sys.platform == "linux" else os.cpu_count() or 1
            count = int(wanted) if wanted.isdecimal() and int(wanted) > 0 else cores
        self._pool: ThreadPoolExecutor | None = None
        self._ahead = 2 * count
        if count > 1 and (initializer is None or _can_be_alone()):
            self._pool = ThreadPoolExecutor(count, "esscher-attention", initializer)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None:
        if self._pool is not None:
            self._pool.shutdown(cancel_futures=True)

    def map(self, function: Callable[[T], R], items: Iterable[T]) -> Iterator[R]:
        """Results in the order of the items, which are taken only a few ahead."""
        if self._pool is None:
            yield from map(function, items)
            return
        pending: deque[Future[R]] = deque()
        for item in items:
            pending.append(self._pool.submit(function, item))
            if len(pending) > self._ahead:
                yield pending.popleft().result()
        while pending:
            yield pending.popleft().result()


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
    """Whether torch lets a thread be single-threaded, matrix products included."""
    import torch

    with ThreadPoolExecutor(1, "esscher-attention", initializer=_one_thread_here) as pool:
        alone = pool.submit(torch.get_num_threads).result() == 1
    mkl = bool(torch.backends.mkl.is_available())  # type: ignore[no-untyped-call]
    return alone and (not mkl or torch_function("MKL_Set_Num_Threads_Local") is not None)


@cache
def torch_function(name: str) -> Callable[..., object] | None:
    """A C function of the library that torch has loaded (or of one that it depends on)."""
    import torch

    path = Path(torch.__file__).parent / "lib" / "libtorch_cpu.so"
    try:
        function: Callable[..., object] = getattr(ctypes.CDLL(str(path)), name)
    except (OSError, AttributeError):
        return None
    return function


class Workspace(threading.local):
    """Named arrays of one thread; what is in them is lost when the name is used again."""

    def __init__(self) -> None:
        self._arrays: dict[str, AnyArray] = {}

    def empty(self, name: str, like: AnyArray, *shape: int, dtype: str) -> AnyArray:
        """An array with anything in it, of the same library and on the same device as another."""
        needed = math.prod(shape)
        array = self._arrays.get(name)
        if array is None or len(array) < needed or type_name(array.dtype) != dtype:
            array = self._arrays[name] = empty(like, needed, dtype=dtype)
        return array[:needed].reshape(shape)
