"""Tasks on a Dask cluster, whose scheduler restarts the tasks of workers that are lost."""

from __future__ import annotations

import asyncio
import logging
import socket
import warnings
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import CancelledError, Future, ThreadPoolExecutor
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path
from typing import Any

from esscher.core.errors import InputError
from esscher.core.untrusted import first_line, limits, read_json
from esscher.runs.executors import Task, asked_threads, call_alone, use_threads
from esscher.runs.pool import OnFutures
from esscher.runs.provenance import versions

#: Seconds to wait for a scheduler's answer, and for the first worker.
TIMEOUT, PATIENCE = 10.0, 300.0
#: Loggers that report a lost connection.
LOGGERS = ("distributed", "tornado", "asyncio")


class Cluster(OnFutures):
    """Computes tasks on the workers of a Dask cluster.

    Parameters
    ----------
    client
        A connected ``distributed.Client``.
    patience
        Seconds to wait for a worker.
    """

    def __init__(self, client: Any, patience: float = PATIENCE) -> None:
        super().__init__(client.get_executor(pure=False))
        self._client, self._patience = client, patience
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
            self._client.wait_for_workers(1, timeout=self._patience)
            yield from super().run(tasks)
        except TimeoutError as error:
            raise InputError(
                f"no worker has come to {self._address} within {self._patience:g} s; start one "
                f"with `dask worker {self._address}`"
            ) from error
        except (CancelledError, OSError) as error:  # a lost connection cancels all tasks
            raise KeyboardInterrupt(f"The scheduler at {self._address} is gone") from error

    def _submit(self, tasks: Sequence[Task]) -> dict[Future[Any], str]:
        submit, expected = self._executor.submit, self._versions
        return {submit(_on_worker, expected, t.function, *t.arguments): t.name for t in tasks}


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
def connected(
    scheduler: str, timeout: float = TIMEOUT, patience: float = PATIENCE
) -> Iterator[Cluster]:
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

    async def who_answers(address: str) -> str:
        """Ask before there is a client: closing one that nobody answers takes minutes."""
        security: Any = distributed.Security()  # type: ignore[no-untyped-call]
        rpc: Any = distributed.rpc
        options = security.get_connection_args("client")
        async with rpc(address, timeout=timeout, connection_args=options) as there:
            return str((await asyncio.wait_for(there.identity(), timeout))["type"])

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
                address = read_json(Path(scheduler), limits.SCHEDULER)["address"]
            # in a thread: a notebook has an event loop in this one
            kind = thread.submit(asyncio.run, who_answers(address)).result()
            if kind != "Scheduler":
                raise ValueError(f"a {kind.lower()} answers there")
            make_client: Any = distributed.Client
            client = make_client(address, timeout=timeout, set_as_default=False)
        except Exception as error:  # an answer that is not Dask's raises anything
            raise InputError(
                f"there is no scheduler at {scheduler} ({first_line(error)}); start one with `dask "
                "scheduler` and give the address that it prints (for tls:// your Dask "
                "configuration names the certificates)"
            ) from error
        try:
            yield Cluster(client, patience)
        finally:
            with suppress(Exception):  # its scheduler may be gone
                client.close(timeout=2)
