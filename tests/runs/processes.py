"""A real scheduler and real worker processes, and functions that workers can import."""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import esscher
from tests.runs.stack import ENVIRONMENT as ALONE

ENVIRONMENT = ALONE | {
    # a worker that is gone is noticed at once, and nobody writes reports about memory
    "DASK_DISTRIBUTED__WORKER__MEMORY__TERMINATE": "False",
    "DASK_DISTRIBUTED__COMM__TIMEOUTS__CONNECT": "5s",
    # by default a task may kill four workers before its scheduler gives it up
    "DASK_DISTRIBUTED__SCHEDULER__ALLOWED_FAILURES": "0",
}


NO_DASHBOARD = ("--no-dashboard", "--dashboard-address", "127.0.0.1:0")


class Machines:
    """Starts a scheduler and workers; whatever still runs at the end is killed."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.address = "tcp://127.0.0.1:0"  # the system chooses the port at the first start
        self._processes: list[subprocess.Popen[bytes]] = []

    def scheduler(self) -> subprocess.Popen[bytes]:
        """Start the scheduler, always at the same address."""
        file = self.folder / "scheduler.json"
        file.unlink(missing_ok=True)
        process = self._start(
            "scheduler",
            "distributed.cli.dask_scheduler",
            *("--host", self.address, *NO_DASHBOARD, "--scheduler-file", str(file)),
        )
        end = time.monotonic() + 120
        while True:
            with suppress(OSError, ValueError):  # it is written when the scheduler listens
                self.address = json.loads(file.read_text())["address"]
                return process
            assert process.poll() is None, (self.folder / "scheduler.log").read_text()
            assert time.monotonic() < end, (self.folder / "scheduler.log").read_text()
            time.sleep(0.1)

    def worker(self, nanny: bool = False) -> subprocess.Popen[bytes]:
        """Start a worker with one thread; a nanny starts it again when it dies."""
        return self._start(
            f"worker-{len(self._processes)}",
            "distributed.cli.dask_worker",
            self.address,
            *("--nthreads", "1", *NO_DASHBOARD, "--nanny" if nanny else "--no-nanny"),
            *("--local-directory", str(self.folder)),
        )

    def stop(self) -> None:
        """Kill everything, nannies with their workers."""
        for process in self._processes:
            if process.poll() is None:
                os.killpg(process.pid, signal.SIGKILL)
            process.wait()

    def _start(self, name: str, module: str, *arguments: str) -> subprocess.Popen[bytes]:
        with (self.folder / f"{name}.log").open("ab") as log:
            process = subprocess.Popen(
                [sys.executable, "-m", module, *arguments],
                stdout=log,
                stderr=log,
                start_new_session=True,
                env=ENVIRONMENT,
            )
        self._processes.append(process)
        return process


@contextmanager
def machines(folder: Path) -> Iterator[Machines]:
    """Machines for the time of a block."""
    folder.mkdir(exist_ok=True)
    started = Machines(folder)
    try:
        yield started
    finally:
        started.stop()


def free_port() -> int:
    """A port that nobody listens at."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def square(x: float) -> float:
    """A task that works."""
    return x * x


def slow_square(x: float, seconds: float) -> float:
    """A task that takes its time."""
    time.sleep(seconds)
    return x * x


def deadly(x: float) -> float:
    """A task that kills its worker, as one does that needs too much memory."""
    os.kill(os.getpid(), signal.SIGKILL)
    return x


def failing(x: float) -> float:
    """A task that raises an exception each time, and says that it was tried."""
    raise RuntimeError(f"no result for {x:g}")


def failing_at_first(folder: str, x: float) -> float:
    """A task that raises an exception the first two times."""
    tries = len(list(Path(folder).glob("try-*")))
    (Path(folder) / f"try-{tries}").touch()
    if tries < 2:
        raise OSError("busy")
    return x


def refusing(x: float) -> float:
    """A task that says that its input cannot be used."""
    raise esscher.InputError(f"x is {x:g}; it must be something else")


def identity(value: Any) -> Any:
    """The process, and the value it received."""
    return os.getpid(), value
