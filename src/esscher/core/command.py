"""The command that is at work, so that what it stores can say what made it."""

from __future__ import annotations

from contextvars import ContextVar

#: Words of the command that is at work; None when Esscher is called from Python. Provenance only:
#: they are no part of a configuration, and resuming does not compare them.
COMMAND: ContextVar[list[str] | None] = ContextVar("command", default=None)
