"""Peak memory of this process, and returning free memory to the system."""

from __future__ import annotations

import ctypes
import gc
import sys
from contextlib import suppress
from pathlib import Path

#: Where Linux tells the highest mark, and takes it back to what is used now.
STATUS, CLEAR = Path("/proc/self/status"), Path("/proc/self/clear_refs")
#: Peaks that differ by no more are the same: in one process, the same prompt of 2,048 tokens read
#: four times by SmolLM2 had peaks of 1,241 to 1,341 MB.
NOISE = 100_000_000


class MemoryWatch:
    """Watches memory from here on, where the system can: on Linux."""

    def __init__(self) -> None:
        gc.collect()
        give_back()  # earlier work is not to count
        self._begun = False
        with suppress(OSError):
            CLEAR.write_text("5")  # takes the mark back
            self._begun = True

    @property
    def peak(self) -> int | None:
        """The most bytes at a time since the watch began; None where the system does not tell."""
        with suppress(OSError):
            for line in STATUS.read_text().splitlines() if self._begun else ():
                if line.startswith("VmHWM:"):  # VmHWM:   1234 kB
                    return 1024 * int(line.split()[1])
        return None


def give_back() -> None:
    """Give memory that is free, but that the allocator holds, back to the system.

    By itself the allocator of glibc keeps more and more of what was freed, in gaps between what is
    still used: the same work then has peaks that differ by hundreds of MB.
    """
    if sys.platform == "linux":
        with suppress(OSError, AttributeError):  # not every library of C has it
            ctypes.CDLL(None).malloc_trim(0)
