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
import weakref
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import (
    BrokenExecutor,
    CancelledError,
    Executor,
    Future,
    ProcessPoolExecutor,
    as_completed,
)
from contextlib import contextmanager, nullcontext
from itertools import count
from pathlib import Path
from tempfile import TemporaryDirectory
from types import FrameType, TracebackType
from typing import Any, Self

from esscher.core.errors import InputError
from esscher.core.shown import counted
from esscher.core.untrusted import first_line
from esscher.runs.executors import (
    TRIES,
    CellExecutor,
    Task,
    call_alone,
    threads_per_worker,
    use_threads,
)

#: What stops a command: Ctrl-C, and what batch systems send.
STOPPING = (signal.SIGINT, signal.SIGTERM)
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
        InputError
            At once, if a task says that its input cannot be used, or a worker process died; at the
            end, if tasks raised exceptions again and again.
        """
        for number in range(TRIES):
            failed: dict[str, str] = {}
            # at last one by one: a task may fail since another one killed the worker of both
            for group in [tasks] if number < TRIES - 1 else [[task] for task in tasks]:
                yield from self._try(group, failed)
            tasks = [task for task in tasks if task.name in failed]
            if not tasks:
                return
        cells = "; ".join(f"{name}: {reason}" for name, reason in sorted(failed.items()))
        raise InputError(
            f"{counted(len(failed), 'cell')} could not be computed ({cells}). All others were. If "
            "the results have a directory, they are stored, and the same command tries only these "
            "again"
        )

    def _try(self, tasks: Sequence[Task], failed: dict[str, str]) -> Iterator[tuple[str, Any]]:
        """Yield the results of tasks; note the reasons of those that raise exceptions."""
        waiting: dict[Future[Any], str] = {}
        try:
            with signals_held(self._unseen):
                waiting = self._submit(tasks)
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
            # Its own thread ends what waits; to cancel it meanwhile would be an error there.
            waiting.clear()
            raise InputError(
                f"a worker process died ({error}); the machine may have run out of memory. "
                "Everything stored so far is kept: start again, with fewer workers"
            ) from error
        finally:
            for future in waiting:
                future.cancel()

    def _submit(self, tasks: Sequence[Task]) -> dict[Future[Any], str]:
        submit = self._executor.submit
        return {submit(call_alone, t.function, *t.arguments): t.name for t in tasks}


class SharedValue:
    """A value that many tasks need: in a file, which each worker reads once.

    The file is written when the first task with it is submitted, and goes when nobody has the value
    any more. Only the name of the file travels with a task.
    """

    def __init__(self, path: Path, value: Any = None) -> None:
        self.path, self.value = path, value

    def __reduce__(self) -> tuple[type[SharedValue], tuple[Path]]:
        return SharedValue, (self.path,)


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
        self._numbers = count()
        # A worker that is killed cannot clear up: what tasks put into temporary files lies here.
        self._scratch = TemporaryDirectory(prefix="esscher-pool-", ignore_cleanup_errors=True)
        with _safe_path():  # its locks start a process that looks after all of them
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
        with nullcontext() if kind is None else signals_held():
            if kind is not None:
                for process in list((self._pool._processes or {}).values()):
                    process.kill()  # SIGTERM is blocked there
            self._pool.shutdown(cancel_futures=True)
            self._scratch.cleanup()

    def share(self, value: Any) -> Any:
        """Return a handle for a value, which each worker reads once, when it first needs it."""
        shared = SharedValue(Path(self._scratch.name) / f"shared-{next(self._numbers)}", value)
        weakref.finalize(shared, shared.path.unlink, missing_ok=True)
        return shared

    def _submit(self, tasks: Sequence[Task]) -> dict[Future[Any], str]:
        arguments = [argument for task in tasks for argument in task.arguments]
        for shared in {a for a in arguments if isinstance(a, SharedValue)}:
            if shared.path.exists():
                continue
            try:
                with shared.path.open("wb") as file:
                    pickle.dump(shared.value, file)
            except Exception as error:
                shared.path.unlink(missing_ok=True)
                raise InputError(
                    "what tasks need cannot be sent to worker processes "
                    f"({type(error).__name__}: {first_line(error)}); run without workers"
                ) from error
        with _safe_path():
            submit = self._pool.submit
            futures = {submit(_work, t.function, t.arguments): t.name for t in tasks}
            # The executor overlooks the death of a worker that started after its own thread last
            # looked (it wakes the thread before it starts the worker). This makes it look again.
            submit(int)
        return futures


#: In a worker process: the shared values of its last task, by their files.
_VALUES: dict[Path, Any] = {}


def _start_worker(threads: int, scratch: str) -> None:
    # The parent decides what Ctrl-C means. SIGTERM is blocked since the start of this process.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
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
