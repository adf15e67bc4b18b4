"""Progress: a bar with rate and time left on a terminal, a line a minute in a log file."""

from __future__ import annotations

import time
from contextlib import ExitStack, suppress
from datetime import UTC, datetime
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Any, Self

from esscher.core.shown import plain_count

if TYPE_CHECKING:
    from rich.progress import Progress

#: Seconds between two lines of the log, at least.
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
    """

    def __init__(self, log: Path | None, bar: bool | None = None, unit: str = "replicates") -> None:
        self._log, self._bar, self._unit = log, bar, unit
        self._stack = ExitStack()
        self._progress: Progress | None = None
        self._total = self._done = self._before = 0
        self._doing = ""
        self._start = self._last = time.monotonic()

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
        if time.monotonic() > self._last + INTERVAL:
            self.say(self.status())

    def status(self) -> str:
        """Say what is done, at which rate, and how long the rest takes."""
        text = f"{self._done} of {self._total} {self._unit}"
        if self._doing:
            return f"{text}; {self._doing}"
        new, elapsed = self._done - self._before, time.monotonic() - self._start
        if new <= 0 or elapsed <= 0:
            return text
        minutes = (self._total - self._done) * elapsed / new / 60
        return f"{text}, {plain_count(60 * new / elapsed)} a minute, {minutes:.0f} min left"

    def say(self, text: str) -> None:
        """Append a line to the log."""
        if self._log is None:
            return
        self._last = time.monotonic()
        stamp = datetime.now(UTC).isoformat(timespec="seconds")
        # A log that cannot be written must not end a run whose results can.
        with suppress(OSError), self._log.open("a", encoding="utf-8", errors="replace") as file:
            file.write(f"{stamp} {text}\n")
