"""Tasks on a Dask cluster: faults are survived, results stream back.

The cluster's scheduler restarts tasks whose worker is lost. What it gives up (a task that was on
several workers that died) is tried once more alone, at the end, since it may only have shared
workers with a deadly one; what fails then is reported, and nothing else is.
"""

from __future__ import annotations

import asyncio
import logging
import time
import uuid
import warnings
from collections import deque
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from pathlib import Path
from queue import Empty, SimpleQueue
from typing import Any

from esscher.core.errors import InputError
from esscher.core.untrusted import limits, read_json
from esscher.core.validation import as_positive
from esscher.runs import remote
from esscher.runs.executors import (
    TRIES,
    FailedCells,
    Say,
    SchedulerLost,
    Task,
    first_line,
    reason_of,
    say_nothing,
)
from esscher.runs.provenance import versions

#: How to install what clusters need.
INSTALL = 'pip install "esscher[cluster]"'
#: Tasks given to the cluster per thread of its workers: one at work, one waiting beside it.
AHEAD = 2
#: Seconds between two looks at the scheduler and at the number of workers.
LOOK = 1.0
#: Seconds without any worker after which that is said.
PATIENCE = 5.0
#: Seconds to wait for a scheduler's answer.
TIMEOUT = 10.0
#: What writes to the log when a connection is lost.
LOGGERS = ("distributed", "tornado", "asyncio")


class Cluster:
    """Computes tasks on the workers of a Dask cluster.

    Parameters
    ----------
    client
        A connected ``distributed.Client``.
    say
        Told what a user should know meanwhile, such as that there are no workers.
    timeout, patience
        See :func:`connect_cluster`.
    """

    remote = True

    def __init__(
        self,
        client: Any,
        say: Say = say_nothing,
        timeout: float = TIMEOUT,
        patience: float = PATIENCE,
    ) -> None:
        self._client, self._say = client, say
        self._timeout, self._patience = timeout, patience
        self._address = str(client.scheduler.address)
        self._versions = versions()

    def __repr__(self) -> str:
        return f"Cluster({self._address!r})"

    def share(self, value: Any) -> Any:
        """Give a value to the cluster once; workers pass it on to each other.

        It is a task that returns the value: workers that hold it may be lost, and the cluster
        forgets it when this client is gone.
        """
        self._check_alive()
        with warnings.catch_warnings():
            warnings.filterwarnings("ignore", message="Sending large graph")
            return self._client.submit(
                remote.keep, value, key=f"esscher-shared-{uuid.uuid4().hex}", pure=False
            )

    def run(self, tasks: Sequence[Task]) -> Iterator[tuple[str, Any]]:
        """Yield (name, result) as they are done, in any order.

        Raises
        ------
        FailedCells
            At the end, if tasks killed their workers or raised exceptions again and again.
        InputError
            At once, if a task says that its input cannot be used.
        SchedulerLost
            If the scheduler is gone.
        """
        first = _Round(self, tasks)
        yield from first.results()
        failed = dict(first.failed)
        for task in first.suspects:
            alone = _Round(self, [task])
            yield from alone.results()
            failed |= alone.failed
            failed |= {suspect.name: "it kills its workers" for suspect in alone.suspects}
        if failed:
            raise FailedCells(failed)

    def _submit(self, task: Task) -> Any:
        return self._client.submit(
            remote.call,
            self._versions,
            task.function,
            *task.arguments,
            key=f"{task.name}-{uuid.uuid4().hex}",
            pure=False,
        )

    def _result(self, future: Any) -> Any:
        return future.result(timeout=self._timeout * 6)

    def _threads(self) -> int:
        """Number of threads of all workers."""
        self._check_alive()
        try:
            return sum(self._client.nthreads().values())
        except (OSError, TimeoutError, ValueError, AttributeError) as error:
            raise self._lost() from error

    def _check_alive(self) -> None:
        if self._client.status != "running":
            raise self._lost()

    def _lost(self) -> SchedulerLost:
        return SchedulerLost(f"The scheduler at {self._address} is gone")

    def _cancel(self, futures: Sequence[Any]) -> None:
        if futures and self._client.status == "running":
            with suppress(Exception):  # a scheduler that goes away meanwhile has forgotten them
                self._client.cancel(list(futures), force=True)


class _Round:
    """Tasks on their way through a cluster, no more at a time than its workers can take."""

    def __init__(self, cluster: Cluster, tasks: Sequence[Task]) -> None:
        self._cluster = cluster
        self._waiting = deque(tasks)
        self._flying: dict[str, tuple[Any, Task]] = {}
        self._done: SimpleQueue[str] = SimpleQueue()
        self._raised: dict[str, int] = {}
        self._threads = 0
        self._looked = -LOOK
        self._with_workers = time.monotonic()
        self.suspects: list[Task] = []
        self.failed: dict[str, str] = {}

    def results(self) -> Iterator[tuple[str, Any]]:
        """Yield results; fill ``suspects`` and ``failed`` meanwhile."""
        try:
            while self._waiting or self._flying:
                self._look()
                self._launch()
                try:
                    key = self._done.get(timeout=LOOK)
                except Empty:
                    continue
                future, task = self._flying.pop(key)
                yield from self._finished(future, task)
        finally:
            self._cluster._cancel([future for future, _ in self._flying.values()])

    def _launch(self) -> None:
        while self._waiting and len(self._flying) < max(1, AHEAD * self._threads):
            task = self._waiting.popleft()
            future = self._cluster._submit(task)
            self._flying[future.key] = (future, task)
            future.add_done_callback(lambda done: self._done.put(done.key))

    def _look(self) -> None:
        """Count the workers now and then."""
        now = time.monotonic()
        if now - self._looked < LOOK:
            return
        self._threads, self._looked = self._cluster._threads(), now
        if self._threads:
            self._with_workers = now
        elif now - self._with_workers > self._cluster._patience:
            self._with_workers = float("inf")  # said once, until there are workers again
            self._cluster._say(f"There is no worker at {self._cluster._address}; waiting for one.")

    def _finished(self, future: Any, task: Task) -> Iterator[tuple[str, Any]]:
        from distributed.scheduler import KilledWorker

        if future.cancelled():
            # only a lost connection cancels: the scheduler may be back, but it forgot the tasks
            raise self._cluster._lost()
        try:
            result = self._cluster._result(future)
        except KilledWorker:
            self.suspects.append(task)
            return
        except InputError:
            raise
        except ModuleNotFoundError as error:
            raise InputError(
                f"a worker lacks the package {error.name}; install the same packages on all "
                "machines of the cluster"
            ) from error
        except Exception as error:
            if future.status in ("cancelled", "lost") or isinstance(error, TimeoutError):
                self._cluster._check_alive()
            count = self._raised[task.name] = self._raised.get(task.name, 0) + 1
            if count < TRIES:
                self._waiting.append(task)
            else:
                self.failed[task.name] = reason_of(error)
            return
        yield task.name, result


@contextmanager
def connect_cluster(
    scheduler: str,
    say: Say = say_nothing,
    *,
    timeout: float = TIMEOUT,
    patience: float = PATIENCE,
) -> Iterator[Cluster]:
    """Use a cluster that is there.

    For an address that begins with ``tls://`` Dask takes the certificates of its configuration.

    Parameters
    ----------
    scheduler
        Address of its scheduler, ``tcp://host:8786``, or the file it wrote (``scheduler.json``).
    say
        Told what a user should know meanwhile.
    timeout
        Seconds to wait for the scheduler's answer.
    patience
        Seconds without any worker after which that is said.

    Raises
    ------
    InputError
        If Dask is not installed, or the scheduler cannot be reached.
    """
    distributed = distributed_module()
    timeout, patience = as_positive(timeout, "timeout"), as_positive(patience, "patience")
    address = _address(scheduler, timeout)
    with _quiet():
        try:
            _check_answers(address, timeout)
            client = distributed.Client(address, timeout=timeout, set_as_default=False)
        except (OSError, RuntimeError, TypeError, ValueError, ImportError) as error:
            raise InputError(
                f"there is no scheduler at {scheduler} ({first_line(error)}); start one with `dask "
                "scheduler` and give the address that it prints (for tls:// your Dask "
                "configuration names the certificates)"
            ) from error
        try:
            yield Cluster(client, say, timeout, patience)
        finally:
            with suppress(Exception):  # its scheduler may be gone
                client.close(timeout=2)


def _check_answers(address: str, timeout: float) -> None:
    """Ask who is there, before there is a client: closing one that nobody answers takes minutes.

    Raises
    ------
    OSError, RuntimeError, TypeError, ValueError
        If it is no address, the configuration is wrong, or no scheduler answers in time.
    """
    from distributed.core import rpc
    from distributed.security import Security

    async def asked() -> str:
        security: Any = Security()  # type: ignore[no-untyped-call]
        options = security.get_connection_args("client")
        async with rpc(  # type: ignore[no-untyped-call]
            address, timeout=timeout, connection_args=options
        ) as there:
            return str((await there.identity())["type"])

    async def answered() -> str:
        return await asyncio.wait_for(asked(), timeout)

    # in a thread: a notebook has a loop of its own in this one
    with ThreadPoolExecutor(1) as thread:
        try:
            kind = thread.submit(lambda: asyncio.run(answered())).result()
        except TimeoutError as error:
            raise TimeoutError(f"no answer within {timeout:g} s") from error
        except (OSError, ValueError, ImportError):
            raise
        except Exception as error:  # a web server's "HTTP" is the length of a message to Dask
            raise ValueError("something else answers there") from error
    if kind != "Scheduler":
        raise ValueError(f"a {kind.lower()} answers there")


def _address(scheduler: str, timeout: float) -> str:
    """Address of a scheduler, or what stands in the file it wrote."""
    if not scheduler.endswith(".json"):
        if "://" not in scheduler:
            raise InputError(
                f"the scheduler is {scheduler!r}; write its address, such as tcp://host:8786, or "
                "the name of its scheduler file, which ends in .json"
            )
        return scheduler
    end = time.monotonic() + timeout
    while True:
        try:
            content = read_json(Path(scheduler), limits.SCHEDULER)
        except (OSError, InputError) as error:  # it starts just now, and has not written it all
            if time.monotonic() < end:
                time.sleep(0.05)
                continue
            raise InputError(
                f"the scheduler file {scheduler} cannot be read ({first_line(error)}); start a "
                f"scheduler with `dask scheduler --scheduler-file {scheduler}`"
            ) from error
        address = content.get("address") if isinstance(content, dict) else None
        if not isinstance(address, str) or "://" not in address:
            raise InputError(
                f"{scheduler} is not a scheduler file: it has no address; start a scheduler with "
                "`dask scheduler --scheduler-file FILE.json` and give that file"
            )
        return address


def distributed_module() -> Any:
    """The package ``distributed``.

    Raises
    ------
    InputError
        If it is not installed, with the command that installs it.
    """
    try:
        import distributed
    except ImportError as error:
        raise InputError(
            f"a cluster needs the packages dask and distributed; install them with: {INSTALL}"
        ) from error
    return distributed


@contextmanager
def _quiet() -> Iterator[None]:
    """Keep Dask's log of lost connections off the terminal: Esscher says it in its own words."""
    # Dask gives several loggers levels and handlers of their own: one level above all is no use.
    names = [name for name in logging.root.manager.loggerDict if name.startswith(LOGGERS)]
    before = {name: logging.getLogger(name).level for name in names}
    for name in names:
        logging.getLogger(name).setLevel(logging.CRITICAL + 1)
    try:
        yield
    finally:
        for name, level in before.items():
            logging.getLogger(name).setLevel(level)
