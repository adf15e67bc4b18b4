"""Commands under test: started, watched, ended, and their processes counted."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import esscher

#: Commands import Esscher and these tests from where this process has them.
PLACES = (Path(esscher.__file__).parents[1], Path(__file__).parents[2])
ENVIRONMENT = os.environ | {
    "PYTHONPATH": os.pathsep.join(map(str, PLACES)),
    "OMP_NUM_THREADS": "1",
    "HF_HUB_OFFLINE": "1",
}
#: Seconds after which a command that should have ended is a failure.
PATIENCE = 120.0


class Command:
    """One process of the command line, in a session of its own."""

    def __init__(self, pid: int, ended: Any, stderr: Path) -> None:
        self.pid, self._ended, self._stderr = pid, ended, stderr

    def poll(self) -> int | None:
        """Exit code, or minus the signal; None while it runs."""
        code: int | None = self._ended()
        return code

    def wait(self, patience: float = PATIENCE) -> int:
        """Exit code, once there is one."""
        end = time.monotonic() + patience
        while (code := self.poll()) is None:
            if time.monotonic() > end:
                self.signal(signal.SIGKILL, group=True)
                raise AssertionError(f"process {self.pid} did not end\n{self.error()}")
            time.sleep(0.003)
        return code

    def signal(self, number: int, group: bool = False) -> None:
        """Send a signal to the process, or to all of its group."""
        try:
            (os.killpg if group else os.kill)(self.pid, number)
        except ProcessLookupError:
            assert self.poll() is not None

    def error(self) -> str:
        """What it wrote to standard error."""
        return self._stderr.read_text(errors="replace")

    def workers(self) -> list[int]:
        """Its worker processes."""
        found = []
        for pid in session(self.pid):
            try:
                words = Path(f"/proc/{pid}/cmdline").read_bytes().split(b"\0")
            except OSError:
                continue
            if any(b"spawn_main" in word for word in words):
                found.append(pid)
        return found


class Starter:
    """Starts commands, quickly by forking, or as a user does."""

    def __init__(self, folder: Path, modules: Sequence[str] = ()) -> None:
        self._folder, self._count = folder, 0
        folder.mkdir(parents=True, exist_ok=True)
        self._launcher = subprocess.Popen(
            [sys.executable, "-m", "tests.soak.launcher", *modules],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            env=ENVIRONMENT,
        )
        assert self._line()["ready"]

    def close(self) -> None:
        """End the launcher."""
        self._launcher.communicate()

    def forked(self, words: Sequence[str], file_size: int = 0, clock: int | None = None) -> Command:
        """Start a command at once.

        Parameters
        ----------
        words
            The command line.
        file_size
            Limit of the files that it may write; 0 for none.
        clock
            Seed of the jumps of its clock; None for a clock that does not jump.
        """
        stdout, stderr = self._files()
        request = {"start": list(words), "stdout": str(stdout), "stderr": str(stderr)}
        pid = int(self._ask(request | {"file_size": file_size, "clock": clock})["pid"])
        return Command(pid, lambda: self._ask({"poll": pid})["code"], stderr)

    def fresh(self, words: Sequence[str]) -> Command:
        """Start a command as a user does."""
        stdout, stderr = self._files()
        with stdout.open("wb") as out, stderr.open("wb") as error:
            process = subprocess.Popen(
                [sys.executable, "-m", "esscher", *words],
                stdin=subprocess.DEVNULL,
                stdout=out,
                stderr=error,
                start_new_session=True,
                env=ENVIRONMENT,
                # in the background of a shell Ctrl-C is ignored, and that is inherited
                preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_DFL),
            )
        return Command(process.pid, process.poll, stderr)

    def _files(self) -> tuple[Path, Path]:
        self._count += 1
        stderr = self._folder / f"{self._count:04d}.stderr"
        stderr.touch()
        return self._folder / f"{self._count:04d}.stdout", stderr

    def _ask(self, request: dict[str, Any]) -> dict[str, Any]:
        assert self._launcher.stdin is not None
        self._launcher.stdin.write(json.dumps(request) + "\n")
        self._launcher.stdin.flush()
        return self._line()

    def _line(self) -> dict[str, Any]:
        assert self._launcher.stdout is not None
        found: dict[str, Any] = json.loads(self._launcher.stdout.readline())
        return found


def session(leader: int) -> list[int]:
    """Processes in the session of a process, without those that only wait to be reaped."""
    found = []
    for place in Path("/proc").glob("[0-9]*/stat"):
        try:
            fields = place.read_text().rsplit(")", 1)[1].split()
        except OSError:
            continue
        if fields[0] != "Z" and int(fields[3]) == leader:
            found.append(int(place.parent.name))
    return found
