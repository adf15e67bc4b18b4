"""Refuse stored numbers that do not fit together, and programs of strangers that do not end."""

from __future__ import annotations

import os
import signal
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from esscher.core.errors import EsscherError, InputError
from esscher.core.shown import printable
from esscher.core.untrusted import limits

#: Exceptions raised by numbers, names and lists that do not belong together.
_KINDS = (
    ArithmeticError,
    AssertionError,
    AttributeError,
    LookupError,
    MemoryError,
    RecursionError,
    TypeError,
    ValueError,
)


@contextmanager
def foreign(place: Path | str | None) -> Iterator[None]:
    """Turn exceptions that stored numbers cause within a block into an ``InputError``.

    Schemas tell what is wrong with a field; lists of different lengths, or numbers that no
    measurement gives, only show when they are used. ``place`` names the run; without one, numbers
    were made by this very process, and nothing is changed.
    """
    if place is None:
        yield
        return
    try:
        yield
    except EsscherError:
        raise
    except _KINDS as error:
        reason = printable(str(error).split("\n")[0])[:200]
        raise InputError(
            f"{place} holds numbers that do not fit together ({type(error).__name__}: {reason}); "
            "they are not what this version of Esscher writes: get the run again, or delete its "
            "results.json and run its command again, which recomputes it from the parts"
        ) from error


def bounded(call: Callable[[], str], what: str) -> str:
    """Return the text that a call gives; it runs in a child process of bounded time and memory.

    For what a stranger wrote and this process would carry out: templates, rules of tokenizers. Some
    of it runs in native code, which neither an alarm nor an exception stops. The child is forked,
    since starting Python and importing transformers takes seconds; it must not use PyTorch, whose
    threads it does not have. Systems without fork call it here.

    Parameters
    ----------
    call
        What to call.
    what
        What to call it in messages.

    Raises
    ------
    InputError
        If it raises an exception, or takes more than ``limits`` allow.
    """
    if not hasattr(os, "fork"):
        return call()
    reader, writer = os.pipe()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)  # of forks beside threads
        child = os.fork()
    if child == 0:  # sends the text of the call, or what went wrong, and ends
        try:
            import resource

            os.close(reader)
            os.dup2(os.open(os.devnull, os.O_WRONLY), 2)  # native code says there how it died
            resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
            resource.setrlimit(resource.RLIMIT_CPU, (limits.SECONDS, limits.SECONDS))
            with suppress(OSError):  # only Linux tells how much there is already
                pages = int(Path("/proc/self/statm").read_bytes().split()[0])
                most = pages * os.sysconf("SC_PAGE_SIZE") + limits.MEMORY
                resource.setrlimit(resource.RLIMIT_AS, (most, most))
            try:
                message = b"+" + call().encode("utf-8", "surrogatepass")
            except MemoryError:
                message = b""
            except BaseException as error:  # a panic in native code is no Exception
                reason = (str(error).splitlines() or [""])[0][:200]
                message = f"-{type(error).__name__}: {reason}".encode("utf-8", "replace")
            rest = memoryview(message)
            while rest:
                rest = rest[os.write(writer, rest) :]
        finally:
            os._exit(0)  # nothing of the parent's is written or closed twice
    os.close(writer)
    try:
        with os.fdopen(reader, "rb") as answers:
            answer = answers.read(limits.TEXT + 1)
    finally:
        with suppress(OSError):
            os.kill(child, signal.SIGKILL)
        os.waitpid(child, 0)
    if answer[:1] == b"+" and len(answer) <= limits.TEXT:
        return answer[1:].decode("utf-8", "surrogatepass")
    if answer[:1] == b"-":
        raise InputError(f"{what} fails ({printable(answer[1:].decode('utf-8', 'replace'))})")
    raise InputError(
        f"{what} takes more than {limits.SECONDS} s, {limits.MEMORY // limits.MIB:,} MiB of memory "
        f"or {limits.TEXT // limits.MIB} MiB of text"
    )
