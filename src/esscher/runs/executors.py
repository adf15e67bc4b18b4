"""Executors of the cells of a run: this process, worker processes, or a cluster.

A cell is a task: a name, a function that a worker can import, and small arguments. What an
executor yields is stored at once, in whatever order it comes.

Neither bits nor speed depend on the number of workers. Sums in numpy's linear algebra may be
ordered differently on another number of threads, so around a cell it always has one; the attention
kernel brings its own threads, whose number does not change its results. Models run on torch's
threads, since one would take too long: small matrix products of odd widths may then differ in
their last bits between 2 threads and more.
"""

from __future__ import annotations

import asyncio
import logging
import multiprocessing
import os
import pickle
import shutil
import signal
import socket
import sys
import tempfile
import threading
import warnings
import weakref
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import (
    BrokenExecutor,
    CancelledError,
    Executor,
    Future,
    ProcessPoolExecutor,
    ThreadPoolExecutor,
    as_completed,
)
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass
from functools import cache
from importlib import import_module
from itertools import count
from pathlib import Path
from tempfile import TemporaryDirectory
from threading import Lock
from types import TracebackType
from typing import Any, Self

from threadpoolctl import ThreadpoolController  # type: ignore[import-untyped]

from esscher.core.errors import InputError
from esscher.core.shown import counted
from esscher.core.untrusted import first_line, read_json
from esscher.core.validation import as_dim
from esscher.runs.folder import versions

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
    """Return the executor of the cells for a block: this process unless another is asked for.

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
    processes, cores = as_dim(workers, "workers"), available_cores()
    most = max(FEW, PER_CORE * cores)
    if processes > most:
        raise InputError(
            f"workers is {workers}, but this process may use {counted(cores, 'core')}; give at "
            f"most {most}: more would only take memory"
        )
    if processes > 1 and (executor is not None or scheduler is not None):
        raise InputError(
            f"workers is {workers}, for processes on this machine; leave it out with an executor "
            "or a scheduler"
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


class OnFutures(CellExecutor):
    """Computes tasks on a ``concurrent.futures.Executor``, which is used and not shut down."""

    remote = True

    def __init__(self, executor: Executor) -> None:
        self._executor = executor

    def run(self, tasks: Sequence[Task]) -> Iterator[tuple[str, Any]]:
        """Yield (name, result) as they are done, in any order.

        Raises
        ------
        InputError
            At once, if a task says that its input cannot be used, or a worker process died; at the
            end, if tasks raised exceptions.
        """
        failed: dict[str, str] = {}
        waiting: dict[Future[Any], str] = {}
        try:
            waiting |= {self._submit(task): task.name for task in tasks}
            for future in as_completed(list(waiting)):
                name = waiting.pop(future)
                try:
                    result = future.result()
                except (InputError, BrokenExecutor, CancelledError):
                    raise
                except Exception as error:
                    failed[name] = f"{type(error).__name__}: {first_line(error)}"
                    continue
                yield name, result
        except BrokenExecutor as error:
            waiting.clear()  # its own thread ends what waits
            raise InputError(
                f"a worker process died ({error}); the machine may have run out of memory. "
                "Everything stored so far is kept: start again, with fewer workers"
            ) from error
        finally:
            for future in waiting:
                future.cancel()
        if failed:
            cells = "; ".join(f"{name}: {reason}" for name, reason in sorted(failed.items()))
            raise InputError(
                f"{counted(len(failed), 'cell')} could not be computed ({cells}). All others "
                "were. If the results have a directory, they are stored, and the same command "
                "tries only these again"
            )

    def _submit(self, task: Task) -> Future[Any]:
        return self._executor.submit(call_alone, task.function, *task.arguments)


# Worker processes of this machine. They are started fresh, never forked: a fork would copy the
# locks of running threads (torch has some) in any state. They end when their parent ends, however
# it ends, and their temporary files go with them.


@dataclass(frozen=True)
class SharedValue:
    """A value that many tasks need: in a file, which each worker reads once."""

    path: Path


class LocalPool(OnFutures):
    """Computes tasks in worker processes of its own; a context that leaves no process behind.

    Workers start with the first tasks and share the cores. When the block ends by an exception,
    they are killed: a task may take minutes.

    Parameters
    ----------
    workers
        Number of processes.
    """

    def __init__(self, workers: int) -> None:
        self._numbers = count()
        # A worker that is killed cannot clear up: what tasks put into temporary files lies here.
        self._scratch = TemporaryDirectory(prefix="esscher-pool-", ignore_cleanup_errors=True)
        self._pool = ProcessPoolExecutor(
            workers,
            mp_context=multiprocessing.get_context("spawn"),
            initializer=_start_worker,
            initargs=(threads_per_worker(workers), self._scratch.name),
        )
        super().__init__(self._pool)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        if kind is not None:
            for process in list((self._pool._processes or {}).values()):
                process.kill()  # SIGTERM is ignored there
        self._pool.shutdown(cancel_futures=True)
        self._scratch.cleanup()

    def share(self, value: Any) -> Any:
        """Return a handle for a value, which each worker reads once, when it first needs it."""
        path = Path(self._scratch.name) / f"shared-{next(self._numbers)}"
        try:
            path.write_bytes(pickle.dumps(value))
        except Exception as error:  # objects say in their own ways that they cannot be pickled
            raise InputError(
                "what tasks need cannot be sent to worker processes "
                f"({type(error).__name__}: {first_line(error)}); run without workers"
            ) from error
        shared = SharedValue(path)
        weakref.finalize(shared, path.unlink, missing_ok=True)
        return shared

    def _submit(self, task: Task) -> Future[Any]:
        future = self._pool.submit(_work, task.function, task.arguments)
        # The pool wakes its own thread before it starts a worker, whose death the thread would
        # overlook if nothing woke it again.
        self._pool.submit(int)
        return future


#: In a worker process: the shared values of its last task, by their files.
_VALUES: dict[Path, Any] = {}


def _start_worker(threads: int, scratch: str) -> None:
    for number in (signal.SIGINT, signal.SIGTERM):  # the parent decides what they mean
        signal.signal(number, signal.SIG_IGN)
    threading.Thread(target=_end_with_parent, args=(scratch,), daemon=True).start()
    tempfile.tempdir = scratch
    use_threads(threads)


def _end_with_parent(scratch: str) -> None:
    """Leave when the parent is gone: after ``kill -9`` nobody else ends this process."""
    parent = multiprocessing.parent_process()
    if parent is not None:
        parent.join()
        shutil.rmtree(scratch, ignore_errors=True)
        os._exit(1)


def _work(function: Callable[..., Any], arguments: tuple[Any, ...]) -> Any:
    """Run a task in a worker, with shared values in place of their handles."""
    wanted = {argument.path for argument in arguments if isinstance(argument, SharedValue)}
    for path in _VALUES.keys() - wanted:
        del _VALUES[path]
    for path in wanted - _VALUES.keys():
        with path.open("rb") as file:
            _VALUES[path] = pickle.load(file)
    return call_alone(
        function, *(_VALUES[a.path] if isinstance(a, SharedValue) else a for a in arguments)
    )


# Tasks on a Dask cluster, whose scheduler restarts the tasks of workers that are lost.

#: Seconds to wait for a scheduler's answer, and for the first worker.
TIMEOUT, PATIENCE = 10.0, 300.0
#: Times that the scheduler gives a task that raised an exception to a worker again.
RETRIES = 2
#: Loggers that report a lost connection.
LOGGERS = ("distributed", "tornado", "asyncio")


class Cluster(OnFutures):
    """Computes tasks on the workers of a Dask cluster, by a connected ``distributed.Client``."""

    def __init__(self, client: Any) -> None:
        super().__init__(client.get_executor(pure=False, retries=RETRIES))
        self._client = client
        self._address = str(client.scheduler.address)
        self._versions = versions()

    def share(self, value: Any) -> Any:
        """Give a value to the cluster once; workers pass it on to each other.

        It is the result of a task, so the cluster makes it again if the worker that has it is lost.
        """
        with warnings.catch_warnings():
            warnings.filterwarnings("ignore", message="Sending large graph")
            return self._client.submit(lambda same: same, value, pure=False)

    def run(self, tasks: Sequence[Task]) -> Iterator[tuple[str, Any]]:
        """Yield (name, result) as they are done, in any order.

        Raises
        ------
        InputError
            At once, if a task says that its input cannot be used, or no worker comes; at the end,
            if tasks killed their workers or raised exceptions again and again.
        KeyboardInterrupt
            If the scheduler is gone: it stops a run as Ctrl-C does. What is stored is kept, and
            the same call resumes it.
        """
        if not tasks:
            return
        try:
            self._client.wait_for_workers(1, timeout=PATIENCE)
            yield from super().run(tasks)
        except TimeoutError as error:
            raise InputError(
                f"no worker has come to {self._address} within {PATIENCE:g} s; start one "
                f"with `dask worker {self._address}`"
            ) from error
        except (CancelledError, OSError) as error:  # a lost connection cancels all tasks
            raise KeyboardInterrupt(f"The scheduler at {self._address} is gone") from error

    def _submit(self, task: Task) -> Future[Any]:
        return self._executor.submit(_on_worker, self._versions, task.function, *task.arguments)


def _on_worker(
    expected: dict[str, str | None], function: Callable[..., Any], *arguments: Any
) -> Any:
    """Run a task on a worker, unless its software is not that of the run: results could differ."""
    here = versions()
    if here != expected:
        differences = ", ".join(
            f"{name} {here.get(name)} instead of {wanted}"
            for name, wanted in expected.items()
            if here.get(name) != wanted
        )
        raise InputError(
            f"the worker on {socket.gethostname()} has {differences}; install the same versions on "
            "all machines of the cluster"
        )
    # Dask's nanny says 1; a worker without a nanny would take all cores for every task.
    use_threads(asked_threads() or 1)
    return call_alone(function, *arguments)


@contextmanager
def connected(scheduler: str) -> Iterator[Cluster]:
    """Connect to a cluster, by the address of its scheduler or the file that it wrote.

    For an address that begins with ``tls://`` Dask takes the certificates of its configuration.

    Raises
    ------
    InputError
        If Dask is not installed, or no scheduler answers.
    """
    try:
        import distributed
    except ImportError as error:
        raise InputError(
            "a cluster needs the packages dask and distributed; install them with: "
            'pip install "esscher[cluster]"'
        ) from error

    async def identify(address: str) -> str:
        """Ask before making a client: closing one without a scheduler takes minutes."""
        security: Any = distributed.Security()  # type: ignore[no-untyped-call]
        rpc: Any = distributed.rpc
        options = security.get_connection_args("client")
        async with rpc(address, timeout=TIMEOUT, connection_args=options) as there:
            return str((await asyncio.wait_for(there.identity(), TIMEOUT))["type"])

    with ExitStack() as stack:
        # What is lost is said by Esscher. Several loggers of Dask have levels of their own.
        for name in [n for n in logging.root.manager.loggerDict if n.startswith(LOGGERS)]:
            logger = logging.getLogger(name)
            stack.callback(logger.setLevel, logger.level)
            logger.setLevel(logging.CRITICAL + 1)
        thread = stack.enter_context(ThreadPoolExecutor(1))
        try:
            address = scheduler
            if scheduler.endswith(".json"):
                address = read_json(Path(scheduler))["address"]
            # in a thread: a notebook has an event loop in this one
            kind = thread.submit(asyncio.run, identify(address)).result()
            if kind != "Scheduler":
                raise ValueError(f"a {kind.lower()} answers there")
            make_client: Any = distributed.Client
            client = make_client(address, timeout=TIMEOUT, set_as_default=False)
        except Exception as error:  # an answer that is not Dask's raises anything
            raise InputError(
                f"there is no scheduler at {scheduler} ({first_line(error)}); start one with `dask "
                "scheduler` and give the address that it prints (for tls:// your Dask "
                "configuration names the certificates)"
            ) from error
        try:
            yield Cluster(client)
        finally:
            with suppress(Exception):  # its scheduler may be gone
                client.close(timeout=2)
