"""The command that is at work, so that what it stores can say what made it."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from contextvars import ContextVar

#: Words of the command that is at work; None when Esscher is called from Python.
_COMMAND: ContextVar[tuple[str, ...] | None] = ContextVar("command", default=None)


@contextmanager
def started_by(words: Sequence[str]) -> Iterator[None]:
    """Say within a block which command is at work, so that the runs it makes remember it."""
    before = _COMMAND.set(tuple(words))
    try:
        yield
    finally:
        _COMMAND.reset(before)


def command() -> list[str] | None:
    """Words of the command that is at work; None when Esscher is called from Python.

    Provenance only: it is no part of a configuration, and resuming does not compare it.
    """
    words = _COMMAND.get()
    return None if words is None else list(words)
