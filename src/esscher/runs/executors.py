"""Who computes the cells of a run: this process, worker processes, or a cluster.

A cell is a task: a name, a function that a worker can import, and small arguments. What an
executor yields is stored at once, in whatever order it comes.

Neither bits nor speed depend on the number of workers. Sums in numpy's linear algebra may be
ordered differently on another number of threads, so around a cell it always has one; the attention
kernel brings its own threads, whose number does not change its results. Models run on torch's
threads, since one would take too long: small matrix products of odd widths may then differ in
their last bits between 2 threads and more.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Executor
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cache
from importlib import import_module
from threading import Lock
from typing import Any

from threadpoolctl import ThreadpoolController  # type: ignore[import-untyped]

from esscher.core.errors import InputError
from esscher.core.shown import counted
from esscher.core.validation import as_dim

#: Finding the linear algebra of numpy and scipy takes milliseconds, so it is done once.
_CONTROLLER = cache(ThreadpoolController)
_LOCK = Lock()
#: Limits of the threads that are inside :func:`one_blas_thread`; all but the first set nothing.
_LIMITS: list[Any] = []


@contextmanager
def one_blas_thread() -> Iterator[None]:
    """Run numpy's linear algebra on one thread inside the block; may be nested and shared.

    Linear algebra has one setting per process: the first to come sets it, the last to leave puts
    back what was there.
    """
    import_module("scipy.linalg")  # so that its library is among those that are limited
    with _LOCK:
        _LIMITS.append(None if _LIMITS else _CONTROLLER().limit(limits=1, user_api="blas"))
    try:
        yield
    finally:
        with _LOCK:
            if len(_LIMITS) > 1:
                del _LIMITS[-1]
            else:
                _LIMITS.pop().restore_original_limits()


def available_cores() -> int:
    """Number of cores this process may use."""
    if hasattr(os, "sched_getaffinity"):
        return max(1, len(os.sched_getaffinity(0)))
    return os.cpu_count() or 1


def asked_threads() -> int | None:
    """Return the number of threads that OMP_NUM_THREADS asks for, None if it asks for none."""
    first = os.environ.get("OMP_NUM_THREADS", "").split(",")[0].strip()
    return int(first) if first.isdecimal() and int(first) > 0 else None


def threads_per_worker(workers: int) -> int:
    """Return the threads of each of ``workers`` processes: together they do not exceed the cores.

    OMP_NUM_THREADS may ask for fewer. More would not do: batch systems set it to the cores of the
    whole job.
    """
    share = max(1, available_cores() // workers)
    return min(share, asked_threads() or share)


def use_threads(number: int) -> None:
    """Give torch this many threads in this process, also if it is imported later."""
    os.environ["OMP_NUM_THREADS"] = str(number)
    torch = sys.modules.get("torch")
    if torch is not None and torch.get_num_threads() != number:
        torch.set_num_threads(number)


#: Times that a worker may raise an exception in a task.
TRIES = 3
#: Most worker processes: so many, or so many times the cores if that is more.
FEW, PER_CORE = 16, 4


@dataclass(frozen=True)
class Task:
    """One cell to compute.

    Attributes
    ----------
    name
        What messages call it.
    function
        A function at the top of a module: workers find it by its name.
    arguments
        Small values that can be pickled, or handles from ``CellExecutor.share``.
    """

    name: str
    function: Callable[..., Any]
    arguments: tuple[Any, ...] = ()

    def __call__(self) -> Any:
        """Compute it here."""
        return call_alone(self.function, *self.arguments)


def call_alone(function: Callable[..., Any], *arguments: Any) -> Any:
    """Call a task's function as it is called everywhere: with one thread of linear algebra.

    Sums in numpy's linear algebra depend on the number of threads in their last bits; so results
    are the same to the bit on any machine with the same instructions, whatever its cores.
    """
    with one_blas_thread():
        return function(*arguments)


class CellExecutor:
    """Computes tasks in this process, in order; base of those that compute elsewhere."""

    #: Whether tasks run in other processes, which know nothing of objects in this one.
    remote = False

    def share(self, value: Any) -> Any:
        """Return a handle that stands for a value in the arguments of many tasks."""
        return value

    def run(self, tasks: Sequence[Task]) -> Iterator[tuple[str, Any]]:
        """Yield (name, result) as they are done, in any order."""
        for task in tasks:
            yield task.name, task()


@contextmanager
def chosen_executor(
    workers: int = 1,
    executor: CellExecutor | Executor | Any = None,
    *,
    scheduler: str | None = None,
) -> Iterator[CellExecutor]:
    """Give whoever computes the cells, for the time of a block; this process if nothing is asked.

    Parameters
    ----------
    workers
        Number of worker processes on this machine, if more than 1.
    executor
        One that is there already; it is not shut down. May be one of ``concurrent.futures``, or a
        ``distributed.Client``.
    scheduler
        Address of the scheduler of a Dask cluster, or the file that it wrote.

    Raises
    ------
    InputError
        If more than one of them is asked for, there are too many workers, or a cluster cannot be
        used.
    """
    from esscher.runs.cluster import Cluster, connected
    from esscher.runs.pool import LocalPool, OnFutures

    processes = as_dim(workers, "workers")
    cores = available_cores()
    most = max(FEW, PER_CORE * cores)
    if processes > most:
        raise InputError(
            f"workers is {workers}, but this process may use {counted(cores, 'core')}; give at "
            f"most {most}: more would only take memory"
        )
    if processes > 1 and executor is not None:
        raise InputError(f"workers is {workers} and there is an executor; give one of them")
    if processes > 1 and scheduler is not None:
        raise InputError(
            f"--workers {workers} is for processes on this machine; leave it out with --scheduler"
        )
    if isinstance(executor, Executor):
        yield OnFutures(executor)
    elif hasattr(executor, "get_executor"):  # a distributed.Client
        yield Cluster(executor)
    elif executor is not None:
        yield executor
    elif scheduler is not None:
        with connected(scheduler) as cluster:
            yield cluster
    elif processes > 1:
        with LocalPool(processes) as pool:
            yield pool
    else:
        yield CellExecutor()
