"""How many threads arithmetic may use, so that neither bits nor speed depend on the workers.

Sums in numpy's linear algebra may be ordered differently on another number of threads. Around a
replicate it therefore always has one; the attention kernel brings its own threads, whose number
does not change its results. Models run on torch's threads, since one would take too long: small
matrix products of odd widths may then differ in their last bits between 2 threads and more.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from functools import cache
from threading import Lock
from typing import Any

from threadpoolctl import ThreadpoolController  # type: ignore[import-untyped]


@cache
def _libraries() -> Any:
    """The linear algebra of numpy and scipy; finding it takes milliseconds, so it is done once."""
    import scipy.linalg  # noqa: F401 - so that its library is among those that are found

    return ThreadpoolController()


class _Limit:
    """The limit of this process, shared by all threads that are inside :func:`one_blas_thread`.

    Linear algebra has one setting per process: the first to come sets it, the last to leave puts
    back what was there.
    """

    def __init__(self) -> None:
        self.lock = Lock()
        self.inside = 0
        self.limits: Any = None

    def enter(self) -> None:
        with self.lock:
            if self.inside == 0:
                self.limits = _libraries().limit(limits=1, user_api="blas")
            self.inside += 1

    def leave(self) -> None:
        with self.lock:
            self.inside -= 1
            if self.inside == 0 and self.limits is not None:
                self.limits.restore_original_limits()
                self.limits = None


_LIMIT = _Limit()


@contextmanager
def one_blas_thread() -> Iterator[None]:
    """Run numpy's linear algebra on one thread inside the block; may be nested and shared."""
    _LIMIT.enter()
    try:
        yield
    finally:
        _LIMIT.leave()


def available_cores() -> int:
    """Number of cores this process may use."""
    if hasattr(os, "sched_getaffinity"):
        return max(1, len(os.sched_getaffinity(0)))
    return os.cpu_count() or 1


def asked_threads() -> int | None:
    """Return the number of threads that OMP_NUM_THREADS asks for, None if it asks for none."""
    first = os.environ.get("OMP_NUM_THREADS", "").split(",")[0].strip()
    return int(first) if first.isdecimal() and int(first) > 0 else None


def threads_per_worker(workers: int) -> int:
    """Return the threads of each of ``workers`` processes: together they do not exceed the cores.

    OMP_NUM_THREADS may ask for fewer. More would not do: batch systems set it to the cores of the
    whole job.
    """
    share = max(1, available_cores() // workers)
    return min(share, asked_threads() or share)


def use_threads(number: int) -> None:
    """Give torch this many threads in this process, also if it is imported later."""
    os.environ["OMP_NUM_THREADS"] = str(number)
    torch = sys.modules.get("torch")
    if torch is not None and torch.get_num_threads() != number:
        torch.set_num_threads(number)
