"""Commands that run for long: stopped by Ctrl-C or SIGTERM, they say how to go on."""

from __future__ import annotations

import shlex
import signal
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from types import FrameType

import click

from esscher.runs.executors import SchedulerLost
from esscher.sweep.engine import SweepInterrupted

#: Exit code of a command that was stopped from outside, by convention 128 + SIGINT.
STOPPED = 130


def how_to_resume(stop: KeyboardInterrupt, out: Path | None) -> str:
    """What to tell a user who stopped a command."""
    why = ""
    if isinstance(stop, SchedulerLost):
        why = f"{stop}. "
    elif isinstance(stop, SweepInterrupted) and stop.reason:
        why = f"{stop.reason}. "
    if out is None:
        return f"{why}Stopped. Nothing is stored; with --out RUN a run can be resumed."
    done = f" with {stop.done} replicates stored" if isinstance(stop, SweepInterrupted) else ""
    command = shlex.join([Path(sys.argv[0]).name, *sys.argv[1:]])
    return f"{why}Stopped{done} in {out}. Run the same command again to resume:\n  {command}"


@contextmanager
def stoppable() -> Iterator[None]:
    """Make a request to terminate (SIGTERM) stop the command as Ctrl-C does."""

    def stop(number: int, frame: FrameType | None) -> None:
        raise KeyboardInterrupt

    try:
        before = signal.signal(signal.SIGTERM, stop)
    except ValueError:  # not in the main thread: leave signals alone
        yield
        return
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, before)


@contextmanager
def resumable(out: Path | None) -> Iterator[None]:
    """A block that can be stopped from outside; then it says how to resume, and the command ends.

    Parameters
    ----------
    out
        Where the results are stored, if anywhere.
    """
    try:
        with stoppable():
            yield
    except KeyboardInterrupt as stop:
        click.echo(how_to_resume(stop, out), err=True)
        raise click.exceptions.Exit(STOPPED) from None
