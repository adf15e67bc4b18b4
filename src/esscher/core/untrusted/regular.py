"""Regular files, and nothing that waits, answers or leads elsewhere."""

from __future__ import annotations

import errno
import os
import stat
from pathlib import Path
from typing import BinaryIO

from esscher.core.errors import InputError

#: A pipe is opened without waiting for its other end, and seen to be one then.
_READ = os.O_RDONLY | getattr(os, "O_NONBLOCK", 0) | getattr(os, "O_CLOEXEC", 0)
_NO_LINK = getattr(os, "O_NOFOLLOW", 0)


def open_regular(path: Path, *, follow: bool = True) -> BinaryIO:
    """Open a regular file for reading.

    Parameters
    ----------
    path
        The file.
    follow
        Whether it may be a link. What the user names may be one; files inside a run directory,
        which somebody else may have made, may not: they would lead out of it.

    Raises
    ------
    FileNotFoundError
        If it is not there.
    InputError
        If it is a directory, a pipe, a device, a link that must not be followed, or cannot be read.
    """
    return os.fdopen(_opened(path, _READ | (0 if follow else _NO_LINK)), "rb")


def read_file(path: Path, limit: int, *, follow: bool = True) -> bytes:
    """The bytes of a regular file of at most ``limit`` bytes; see :func:`open_regular`."""
    with open_regular(path, follow=follow) as file:
        # one more than allowed: the size of a file that grows, or lies, says nothing
        size = os.fstat(file.fileno()).st_size
        data = b"" if size > limit else file.read(limit + 1)
        if size > limit or len(data) > limit:
            raise InputError(
                f"{path} has {max(size, len(data)):,} bytes; at most {limit:,} are read: it is not "
                "what its name says"
            )
        return data


def open_regular_for_writing(path: Path, flags: int = os.O_WRONLY) -> int:
    """A handle for writing to a regular file; never through a link, never to a pipe or device."""
    return _opened(path, flags | getattr(os, "O_NONBLOCK", 0) | _NO_LINK)


def append_line(path: Path, line: str) -> None:
    """Append a line to a log, which is made if need be; never through a link."""
    handle = open_regular_for_writing(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT)
    try:
        os.write(handle, f"{line}\n".encode("utf-8", "replace"))
    finally:
        os.close(handle)


def check_folder(folder: Path, name: str) -> Path:
    """The folder ``name`` in a run directory; one that is a link is refused.

    Raises
    ------
    InputError
        If it leads elsewhere: what is written into it would, too.
    """
    inner = folder / name
    if inner.is_symlink():
        raise InputError(
            f"{inner} is a link; nothing inside a run directory may lead out of it: put its "
            "contents there, or link the whole run directory"
        )
    return inner


def _opened(path: Path, flags: int) -> int:
    try:
        handle = os.open(path, flags, 0o666)
    except FileNotFoundError:
        raise
    except OSError as error:
        if error.errno == errno.ELOOP or (error.errno == errno.EMLINK and path.is_symlink()):
            raise InputError(
                f"{path} is a link, which is not followed here: put the file itself in its place"
            ) from error
        if error.errno == errno.ENXIO:
            raise InputError(_not_regular(path, "a pipe or socket")) from error
        raise InputError(f"cannot read {path}: {error.strerror or error}") from error
    except ValueError as error:  # a zero byte in a name
        raise InputError(f"{str(path)!r} is not a file name: {error}") from error
    mode = os.fstat(handle).st_mode
    if not stat.S_ISREG(mode):
        os.close(handle)
        kind = "a directory" if stat.S_ISDIR(mode) else "a pipe, socket or device"
        raise InputError(_not_regular(path, kind))
    return handle


def _not_regular(path: Path, kind: str) -> str:
    return f"{path} is {kind}, where a file is expected; remove it"
