"""Worker threads, one per core, and the memory that each uses again for its next block.

Blocks of attention are small, and torch's own threads waste much of the time on them (most of it on
a busy machine), so blocks of queries go to worker threads instead. In those, torch must not start
threads of its own. ``torch.set_num_threads`` is no way to say so: called in a worker it also sets
the number that every thread started later begins with. What it calls
underneath has thread-local forms, which libtorch carries: ``omp_set_num_threads`` (local by the
OpenMP standard) and ``MKL_Set_Num_Threads_Local``. Where they are missing, or do not have the
effect, there are no workers and torch's own threads do the work.

A block's arrays are as large as a few hundred pages. Fresh ones for every block would cost more
than the arithmetic done on them: the system clears every page, and takes it back at once from all
cores.
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
from functools import cache
from pathlib import Path
from types import TracebackType
from typing import Self, TypeVar

from esscher.engine.attention.arrays import AnyArray, empty, is_numpy, type_name

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
