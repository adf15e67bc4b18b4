"""Memory of this process: the most it had at a time, and what it can give back."""

from __future__ import annotations

import ctypes
import gc
import os
import sys
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from esscher.core.errors import InputError
from esscher.core.untrusted import open_regular_for_writing, read_file

#: Where Linux tells the highest mark, and takes it back to what is used now.
STATUS, CLEAR = Path("/proc/self/status"), Path("/proc/self/clear_refs")
#: Peaks that differ by no more are the same: in one process, the same prompt of 2,048 tokens read
#: four times by SmolLM2 had peaks of 1,241 to 1,341 MB.
NOISE = 100_000_000
#: Bytes of the status at most.
_LONGEST = 2**20


@dataclass(frozen=True)
class PeakMemory:
    """The most memory at a time.

    Attributes
    ----------
    bytes
        How much; None where the system does not tell.
    whole
        Whether it is of the whole process so far: not every system can begin anew.
    """

    bytes: int | None
    whole: bool


class MemoryWatch:
    """Watches memory from here on, where the system can.

    Parameters
    ----------
    status, clear
        Files of the system; of a test, others.
    """

    def __init__(self, status: Path = STATUS, clear: Path = CLEAR) -> None:
        self._status = status
        gc.collect()
        give_back()  # earlier work is not to count
        self._begun = False
        with suppress(OSError, InputError):
            handle = open_regular_for_writing(clear)
            try:
                self._begun = os.write(handle, b"5") == 1  # takes the mark back
            finally:
                os.close(handle)

    @property
    def peak(self) -> PeakMemory:
        """The most memory since the watch began, else since the process did."""
        with suppress(OSError, InputError):
            for line in read_file(self._status, _LONGEST).splitlines() if self._begun else ():
                words = line.split()  # VmHWM:   1234 kB
                if words[:1] == [b"VmHWM:"] and words[1:2] and words[1].isdigit():
                    return PeakMemory(1024 * int(words[1]), whole=False)
        try:
            import resource
        except ImportError:  # not on Windows
            return PeakMemory(None, whole=True)
        most = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
        return PeakMemory(most if sys.platform == "darwin" else 1024 * most, whole=True)


def give_back() -> None:
    """Give memory that is free, but that the allocator holds, back to the system.

    By itself the allocator of glibc keeps more and more of what was freed, in gaps between what is
    still used: the same work then has peaks that differ by hundreds of MB.
    """
    if sys.platform == "linux":
        with suppress(OSError, AttributeError):  # not every library of C has it
            ctypes.CDLL(None).malloc_trim(0)
