"""Signals that would stop a command, held back while something must not be left half done."""

from __future__ import annotations

import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType

#: What stops a command: Ctrl-C, and what batch systems send.
STOPPING = (signal.SIGINT, signal.SIGTERM)


@contextmanager
def signals_held(numbers: tuple[signal.Signals, ...] = STOPPING) -> Iterator[None]:
    """Hold Ctrl-C and SIGTERM back inside the block, then let them do what they do.

    Processes that start inside never see them: they inherit them as blocked. A terminal or a batch
    system sends a signal to all processes of a command; the command alone decides what it means.
    (To end such a process, kill it.)

    Parameters
    ----------
    numbers
        The signals.
    """
    if threading.current_thread() is not threading.main_thread():
        yield  # only the main thread runs handlers
        return
    came: list[int] = []

    def remember(number: int, frame: FrameType | None) -> None:
        came.append(number)

    # Blocking alone holds nothing back here: other threads of this process take the signal, and
    # Python runs its handler in this one.
    handlers = {n: h for n in numbers if (h := signal.getsignal(n)) is not None}
    for number in handlers:
        signal.signal(number, remember)
    mask = None
    if hasattr(signal, "pthread_sigmask"):
        mask = signal.pthread_sigmask(signal.SIG_BLOCK, numbers)
    try:
        yield
    finally:
        if mask is not None:
            signal.pthread_sigmask(signal.SIG_SETMASK, mask)
        for number, handler in handlers.items():
            signal.signal(number, handler)
        for arrived in dict.fromkeys(came):
            signal.raise_signal(arrived)
