"""Progress: a bar with rate and time left on a terminal, a line a minute in a log file."""

from __future__ import annotations

import os
import time
from contextlib import ExitStack, suppress
from datetime import UTC, datetime
from pathlib import Path
from threading import Event, Thread
from types import TracebackType
from typing import TYPE_CHECKING, Any, Self

from esscher.core.errors import InputError
from esscher.core.shown import plain_count
from esscher.core.untrusted import open_regular_for_writing

if TYPE_CHECKING:
    from rich.progress import Progress

#: Seconds between two lines of the log.
INTERVAL = 60.0


class Reporter:
    """Counts what is done and tells the terminal and the log about it.

    Parameters
    ----------
    log
        File to append to, if any.
    bar
        Whether to draw a bar; None draws one if standard error is a terminal.
    unit
        What is counted.
    interval
        Seconds between two lines of the log.
    """

    def __init__(
        self,
        log: Path | None,
        bar: bool | None = None,
        unit: str = "replicates",
        interval: float = INTERVAL,
    ) -> None:
        self._log, self._bar, self._unit, self._interval = log, bar, unit, interval
        self._stack = ExitStack()
        self._progress: Progress | None = None
        self._total = self._done = self._before = 0
        self._doing = ""
        self._start = time.monotonic()

    def __enter__(self) -> Self:
        if self._bar is not False:
            from rich.console import Console
            from rich.progress import (
                BarColumn,
                MofNCompleteColumn,
                Progress,
                TextColumn,
                TimeRemainingColumn,
            )

            console = Console(stderr=True)
            if self._bar or console.is_terminal:
                self._progress = Progress(
                    TextColumn("{task.description}"),
                    BarColumn(),
                    MofNCompleteColumn(),
                    TimeRemainingColumn(),
                    console=console,
                    speed_estimate_period=600,
                )
                self._stack.enter_context(self._progress)
                self._progress.add_task(self._unit, total=None)
        if self._log is not None:
            stop = Event()

            def write() -> None:
                while not stop.wait(self._interval):
                    self.say(self.status())

            thread = Thread(target=write, daemon=True)
            thread.start()
            self._stack.callback(thread.join)
            self._stack.callback(stop.set)
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        reason = "" if kind is None else f" ({kind.__name__})"
        self.say(f"{'ended' if kind is None else 'stopped'}{reason}: {self.status()}")
        self._stack.close()

    def expect(self, total: int, done: int) -> None:
        """Say how many are wanted now, and how many of them are there."""
        if not self._total:
            self._before, self._start = done, time.monotonic()
            self.say(f"started: {done} of {total} {self._unit} are there")
        self._total, self._done = total, done
        self._update(total=total, completed=done)

    def advance(self) -> None:
        """One more is stored."""
        self._done += 1
        self._update(completed=self._done)

    def doing(self, what: str) -> None:
        """Say what is being done before the next one can be begun; nothing ends it."""
        self._doing = what
        self._update(description=what or self._unit)

    def _update(self, **fields: Any) -> None:
        if self._progress is not None:
            self._progress.update(self._progress.task_ids[0], **fields)

    def status(self) -> str:
        """Say what is done, at which rate, and how long the rest takes."""
        text = f"{self._done} of {self._total} {self._unit}"
        if self._doing:
            return f"{text}; {self._doing}"
        new, elapsed = self._done - self._before, time.monotonic() - self._start
        if new <= 0 or elapsed <= 0:
            return text
        rate = new / elapsed
        minutes = (self._total - self._done) / rate / 60
        left = f"{minutes / 60:.1f} h" if minutes >= 90 else f"{minutes:.0f} min"
        left = f"{60 * minutes:.0f} s" if minutes < 1.5 else left
        return f"{text}, {plain_count(rate * 60)} a minute, {left} left"

    def say(self, text: str) -> None:
        """Append a line to the log."""
        if self._log is None:
            return
        stamp = datetime.now(UTC).isoformat(timespec="seconds")
        # A log that cannot be written must not end a run whose results can.
        with suppress(OSError, InputError):
            flags = os.O_WRONLY | os.O_APPEND | os.O_CREAT
            handle = open_regular_for_writing(self._log, flags)
            try:
                os.write(handle, f"{stamp} {text}\n".encode("utf-8", "replace"))
            finally:
                os.close(handle)
