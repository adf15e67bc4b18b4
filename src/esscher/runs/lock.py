"""One process per run: a lock of the operating system, which ends with the process that holds it.

A process forked while the lock is held shares it until it ends as well. The workers that Esscher
starts are not forked; for other executors start the workers before the sweep.
"""

from __future__ import annotations

import os
import platform
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from esscher.core.errors import InputError
from esscher.core.untrusted import open_regular, open_regular_for_writing, printable

#: Name of the locked file in a run directory.
LOCK = "lock"
#: How long to try: ``esscher ls`` holds a lock for an instant to see whether a run is active.
PATIENCE = 0.5


@contextmanager
def run_lock(folder: Path) -> Iterator[None]:
    """Hold the lock of a run directory, or say who does.

    Raises
    ------
    InputError
        If another process (or another sweep of this process) works on the run.
    """
    try:
        handle = open_regular_for_writing(folder / LOCK, os.O_RDWR | os.O_CREAT)
    except OSError as error:
        raise InputError(f"cannot write {folder / LOCK}: {error.strerror}") from error
    try:
        end = time.monotonic() + PATIENCE
        while not _try(handle):
            if time.monotonic() > end:
                owner = os.pread(handle, 200, 0).decode(errors="replace").strip()
                owner = printable(owner)
                raise InputError(
                    f"another process{f' ({owner})' if owner else ''} is working on {folder}; "
                    "wait until it has ended, stop it, or choose another directory"
                )
            time.sleep(0.02)
        with suppress(OSError):  # only a courtesy to whoever comes second
            os.ftruncate(handle, 0)
            os.pwrite(handle, f"pid {os.getpid()} on {platform.node()}\n".encode(), 0)
        yield
    finally:
        os.close(handle)


def is_locked(folder: Path) -> bool:
    """Tell whether some process works on a run."""
    try:
        file = open_regular(folder / LOCK, follow=False)
    except (OSError, InputError):
        return False
    with file:
        return not _try(file.fileno(), shared=True)


def _try(handle: int, shared: bool = False) -> bool:
    try:
        import fcntl
    except ImportError:
        raise InputError(
            "stored runs need file locks, which Python does not have on this system; "
            "leave the run directory out"
        ) from None
    try:
        fcntl.flock(handle, (fcntl.LOCK_SH if shared else fcntl.LOCK_EX) | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True
