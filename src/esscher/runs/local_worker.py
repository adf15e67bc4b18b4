"""Loaded by the worker processes of a local cluster: Ctrl-C is for the command alone.

A terminal sends Ctrl-C to all processes of a command. The command decides what it means; workers
that took it themselves would print tracebacks over its message.
"""

from __future__ import annotations

import signal
from contextlib import suppress
from typing import Any


def dask_setup(worker: Any) -> None:
    """Leave Ctrl-C alone; Dask calls this when a worker has started."""
    with suppress(ValueError):  # a worker in a thread of the command itself
        signal.signal(signal.SIGINT, signal.SIG_IGN)
