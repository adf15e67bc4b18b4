"""Configuration of all tests."""

from __future__ import annotations

import gc
import signal


def pytest_configure() -> None:
    """Let Ctrl-C through to tests and their children, also in a script's background job.

    A shell starts such a job with SIGINT ignored, and children inherit that.
    """
    if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
        signal.signal(signal.SIGINT, signal.default_int_handler)


def pytest_collection_finish() -> None:
    """Leave what was imported out of garbage collection: it stays until the end.

    There are half a million objects of torch, transformers and the tests, and looking through them
    takes 0.25 s each time.
    """
    gc.collect()
    gc.freeze()
