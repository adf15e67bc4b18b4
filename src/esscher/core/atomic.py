"""Atomic writes: a file is complete or absent, even after a crash."""

from __future__ import annotations

import errno
import os
import stat
from contextlib import suppress
from pathlib import Path

from esscher.core.errors import InputError

#: Ending of temporary files; those that remain after a crash can be deleted.
TEMPORARY = ".tmp"


def write_atomically(path: Path, data: bytes, *, named: bool = True) -> None:
    """Write a temporary file next to ``path``, flush it to the disk, and rename it.

    Parameters
    ----------
    path
        The file.
    data
        Its contents.
    named
        Whether to bring its name to the disk, too. Another file that is written after it into the
        same folder does so for both.

    Raises
    ------
    InputError
        When the disk is full or cannot be written, or ``path`` is there and is no regular file; the
        old contents of ``path`` are untouched.
    """
    _check_replaceable(path, str(path))
    temporary = path.with_name(f".{path.name}.{os.getpid()}{TEMPORARY}")
    try:
        try:
            # The name is predictable: whatever is there already, perhaps a link, is removed first.
            temporary.unlink(missing_ok=True)
            flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | getattr(os, "O_NOFOLLOW", 0)
            handle = os.open(temporary, flags, 0o666)
            try:
                rest = memoryview(data)
                while rest:
                    rest = rest[os.write(handle, rest) :]
                os.fsync(handle)
            finally:
                os.close(handle)
            os.replace(temporary, path)
            if named:  # a rename survives a power cut once its folder is flushed
                handle = os.open(path.parent, os.O_RDONLY)
                try:
                    os.fsync(handle)
                except OSError as error:
                    if error.errno != errno.EINVAL:  # not every file system can, nor needs to
                        raise
                finally:
                    os.close(handle)
        except BaseException:
            with suppress(OSError):
                temporary.unlink(missing_ok=True)
            raise
    except OSError as error:
        raise InputError(
            f"cannot write {path}: {error.strerror or error}; nothing that was stored before is "
            "lost: free some space (or change the permissions of the directory) and run the same "
            "command again"
        ) from error


def write_output(path: Path, data: bytes) -> None:
    """Write a file that a user asked for, in a folder that is made if need be.

    Raises
    ------
    InputError
        If the folder cannot be made, or the file not be written.
    """
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise InputError(f"cannot create {path.parent}: {error.strerror or error}") from error
    write_atomically(path, data)


def check_writable(path: Path, what: str) -> None:
    """Refuse a file that could not be written in the end, before anything is computed.

    Parameters
    ----------
    path
        The file; directories above it may be missing.
    what
        What to call it, such as an option with its value.

    Raises
    ------
    InputError
        If it is a directory, a link or a device, or the directory that it would be in cannot be
        written or made.
    """
    _check_replaceable(path, what)
    check_room_for(path.parent, what)


def _check_replaceable(path: Path, what: str) -> None:
    """Refuse to put a file in the place of anything but a regular file.

    A rename would replace a link, a pipe or a device by the file; root may do that even in /dev.
    """
    try:
        mode = path.lstat().st_mode
    except (OSError, ValueError):  # nothing is there, or writing says what is wrong
        return
    if stat.S_ISREG(mode):
        return
    if stat.S_ISDIR(mode):
        raise InputError(f"{what} is a directory; give the name of a file")
    kind = "a link" if stat.S_ISLNK(mode) else "a pipe, socket or device"
    raise InputError(f"{what} is {kind}, which would be replaced by a file; give another name")


def check_room_for(folder: Path, what: str) -> None:
    """Refuse a directory that can neither be written nor made."""
    there = folder
    while not there.exists() and there != there.parent:
        there = there.parent
    if not there.is_dir():
        raise InputError(f"{what}: {there} is a file, not a directory; choose another place")
    if not os.access(there, os.W_OK | os.X_OK):
        raise InputError(
            f"{what}: {there} cannot be written; choose another place, or give the directory other "
            "rights"
        )
