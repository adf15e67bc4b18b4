"""Tasks in worker processes of this machine, or on any executor of the standard library.

Workers are started fresh, never forked: a fork would copy the locks of running threads (torch has
some) in any state. They never see Ctrl-C or SIGTERM, they end when their parent ends, however it
ends, and their temporary files go with them.
"""

from __future__ import annotations

import multiprocessing
import os
import pickle
import shutil
import signal
import tempfile
import threading
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import (
    BrokenExecutor,
    CancelledError,
    Executor,
    Future,
    ProcessPoolExecutor,
    as_completed,
)
from contextlib import contextmanager, nullcontext, suppress
from itertools import count
from multiprocessing.connection import Connection, wait
from multiprocessing.synchronize import Lock
from tempfile import TemporaryDirectory
from threading import Thread
from types import FrameType, TracebackType
from typing import Any, Self
from weakref import WeakValueDictionary

from esscher.core.errors import InputError
from esscher.runs.executors import (
    TRIES,
    CellExecutor,
    FailedCells,
    Task,
    call_alone,
    reason_of,
    threads_per_worker,
    use_threads,
)

#: What stops a command: Ctrl-C, and what batch systems send.
STOPPING = (signal.SIGINT, signal.SIGTERM)
#: Seconds after which workers that have started meanwhile are watched, too.
LOOK = 1.0
#: Environment variable: Python imports nothing from the working directory of a process.
SAFE_PATH = "PYTHONSAFEPATH"


@contextmanager
def _safe_path() -> Iterator[None]:
    """Keep processes that start inside from importing, say, a pickle.py of the working directory.

    They get the import path of this process once they have started.
    """
    before = os.environ.get(SAFE_PATH)
    os.environ[SAFE_PATH] = "1"
    try:
        yield
    finally:
        if before is None:
            del os.environ[SAFE_PATH]
        else:
            os.environ[SAFE_PATH] = before


@contextmanager
def signals_held(numbers: tuple[signal.Signals, ...] = STOPPING) -> Iterator[None]:
    """Hold Ctrl-C and SIGTERM back inside the block, then let them do what they do.

    Processes that start inside never see them: they inherit them as blocked. A terminal or a batch
    system sends a signal to all processes of a command; the command alone decides what it means.
    (To end such a process, kill it.)

    Parameters
    ----------
    numbers
        The signals.
    """
    if threading.current_thread() is not threading.main_thread():
        yield  # only the main thread runs handlers
        return
    came: list[int] = []

    def remember(number: int, frame: FrameType | None) -> None:
        came.append(number)

    # Blocking alone holds nothing back here: other threads of this process take the signal, and
    # Python runs its handler in this one.
    handlers = {n: h for n in numbers if (h := signal.getsignal(n)) is not None}
    for number in handlers:
        signal.signal(number, remember)
    mask = None
    if hasattr(signal, "pthread_sigmask"):
        mask = signal.pthread_sigmask(signal.SIG_BLOCK, numbers)
    try:
        yield
    finally:
        if mask is not None:
            signal.pthread_sigmask(signal.SIG_SETMASK, mask)
        for number, handler in handlers.items():
            signal.signal(number, handler)
        for arrived in dict.fromkeys(came):
            signal.raise_signal(arrived)


class OnFutures(CellExecutor):
    """Computes tasks on a ``concurrent.futures.Executor``, which is used and not shut down."""

    remote = True
    #: Signals that processes which start for a task never see; the owner of others ends them by
    #: SIGTERM.
    _unseen: tuple[signal.Signals, ...] = (signal.SIGINT,)

    def __init__(self, executor: Executor) -> None:
        self._executor = executor

    def run(self, tasks: Sequence[Task]) -> Iterator[tuple[str, Any]]:
        """Yield (name, result) as they are done, in any order.

        Raises
        ------
        FailedCells
            At the end, if tasks raised exceptions again and again.
        InputError
            At once, if a task says that its input cannot be used, or a worker process died.
        """
        for number in range(TRIES):
            failed: dict[str, str] = {}
            # at last one by one: a task may fail since another one killed the worker of both
            for group in [tasks] if number < TRIES - 1 else [[task] for task in tasks]:
                yield from self._try(group, failed)
            tasks = [task for task in tasks if task.name in failed]
            if not tasks:
                return
        raise FailedCells(failed)

    def _try(self, tasks: Sequence[Task], failed: dict[str, str]) -> Iterator[tuple[str, Any]]:
        """Yield the results of tasks; note the reasons of those that raise exceptions."""
        waiting: dict[Future[Any], str] = {}
        try:
            with signals_held(self._unseen):
                for task in tasks:
                    waiting[self._submit(task)] = task.name
            for future in as_completed(list(waiting)):
                name = waiting.pop(future)
                try:
                    result = future.result()
                except (InputError, BrokenExecutor, CancelledError):
                    raise
                except Exception as error:
                    failed[name] = reason_of(error)
                    continue
                yield name, result
        except BrokenExecutor as error:
            # Its own thread ends what waits; to cancel it meanwhile would be an error there.
            waiting.clear()
            raise InputError(
                f"a worker process died ({error}); the machine may have run out of memory. "
                "Everything stored so far is kept: start again, with fewer workers"
            ) from error
        finally:
            for future in waiting:
                future.cancel()

    def _submit(self, task: Task) -> Future[Any]:
        return self._executor.submit(call_alone, task.function, *task.arguments)


class LocalPool(OnFutures):
    """Computes tasks in worker processes of its own; a context that leaves no process behind.

    Workers start with the first tasks and share the cores. When the block ends by an exception,
    they are killed: a task may take minutes.

    Parameters
    ----------
    workers
        Number of processes.
    """

    _unseen = STOPPING

    def __init__(self, workers: int) -> None:
        context = multiprocessing.get_context("spawn")
        self._shared: WeakValueDictionary[int, _Shared] = WeakValueDictionary()
        self._numbers = count()
        self._ours, self._theirs = context.Pipe()
        with _safe_path():  # the first lock starts a process that looks after all of them
            one_at_a_time = context.Lock()
        # A worker that is killed cannot clear up: what tasks put into temporary files lies here.
        self._scratch = TemporaryDirectory(prefix="esscher-pool-", ignore_cleanup_errors=True)
        self._pool = ProcessPoolExecutor(
            workers,
            mp_context=context,
            initializer=_start_worker,
            initargs=(
                self._theirs,
                one_at_a_time,
                threads_per_worker(workers),
                self._scratch.name,
            ),
        )
        super().__init__(self._pool)
        self._giver = Thread(target=self._give, daemon=True)
        self._giver.start()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        with nullcontext() if kind is None else signals_held():
            if kind is not None:
                for process in list((self._pool._processes or {}).values()):
                    process.kill()  # SIGTERM is blocked there
            self._pool.shutdown(cancel_futures=True)
            self._theirs.close()  # the last on that side: ends the thread, whatever it waits for
            self._giver.join()
            self._ours.close()
            self._scratch.cleanup()

    def share(self, value: Any) -> Any:
        """Return a handle for a value, which each worker fetches once, when it first needs it.

        It is kept here as long as the handle is, and in a worker until a task comes without it.
        """
        shared = _Shared(next(self._numbers), value)
        self._shared[shared.number] = shared
        return shared

    def _submit(self, task: Task) -> Future[Any]:
        with _safe_path():
            return self._pool.submit(_work, task.function, task.arguments)

    def _give(self) -> None:
        """Hand shared values to the workers that ask for them, until one of them ends.

        The executor overlooks the death of a worker that started after its own thread last looked
        (it wakes the thread before it starts the worker). Another task makes it look again.
        """
        with suppress(EOFError, OSError):  # all workers are gone
            while True:
                workers = list((self._pool._processes or {}).values())
                ready = wait([self._ours, *(w.sentinel for w in workers)], LOOK)
                if self._ours in ready:
                    self._hand_over(self._ours.recv())
                elif ready:
                    with suppress(RuntimeError):  # it knows
                        self._pool.submit(int)
                    return

    def _hand_over(self, number: int) -> None:
        shared = self._shared.get(number)
        # Not `send`: torch makes it share memory, with an open file for every tensor of a model.
        try:
            message = pickle.dumps((None if shared is None else shared.value, None))
        except Exception as error:
            message = pickle.dumps((None, reason_of(error)))
        self._ours.send_bytes(message)


class _Shared:
    """A value of the parent; where it travels with a task, its number alone."""

    def __init__(self, number: int, value: Any = None) -> None:
        self.number, self.value = number, value

    def __reduce__(self) -> tuple[type[_Shared], tuple[int]]:
        return _Shared, (self.number,)


#: In a worker process: what it asks its parent by, and the shared values of its last task.
_LINK: list[tuple[Connection, Lock]] = []
_VALUES: dict[int, Any] = {}


def _start_worker(theirs: Connection, one_at_a_time: Lock, threads: int, scratch: str) -> None:
    # The parent decides what Ctrl-C means. SIGTERM is blocked since the start of this process.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    Thread(target=_end_with_parent, args=(scratch,), daemon=True).start()
    tempfile.tempdir = scratch
    use_threads(threads)
    _LINK[:] = [(theirs, one_at_a_time)]


def _end_with_parent(scratch: str) -> None:
    """Leave when the parent is gone: after ``kill -9`` nobody else ends this process."""
    parent = multiprocessing.parent_process()
    if parent is not None:
        parent.join()
        shutil.rmtree(scratch, ignore_errors=True)
        os._exit(1)


def _work(function: Callable[..., Any], arguments: tuple[Any, ...]) -> Any:
    """Run a task in a worker, with shared values in place of their handles."""
    wanted = {argument.number for argument in arguments if isinstance(argument, _Shared)}
    for number in _VALUES.keys() - wanted:
        del _VALUES[number]
    for number in wanted - _VALUES.keys():
        _VALUES[number] = _fetch(number)
    return call_alone(
        function, *(_VALUES[a.number] if isinstance(a, _Shared) else a for a in arguments)
    )


def _fetch(number: int) -> Any:
    ((theirs, one_at_a_time),) = _LINK
    with one_at_a_time:
        theirs.send(number)
        message = theirs.recv_bytes()
    value, problem = pickle.loads(message)
    if problem is not None:
        raise InputError(
            f"what tasks need cannot be sent to worker processes ({problem}); run without workers"
        )
    return value
