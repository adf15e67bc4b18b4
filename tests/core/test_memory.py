"""The most memory at a time, where the system tells it, and where it does not."""

from __future__ import annotations

import sys
from pathlib import Path

import numpy as np
import pytest

from esscher.core.memory import CLEAR, MemoryWatch

MB = 10**6


@pytest.mark.skipif(sys.platform != "linux" or not CLEAR.exists(), reason="Linux tells it")
def test_memory_that_was_freed_counts_for_its_own_watch_alone() -> None:
    first = MemoryWatch()
    before = first.peak
    taken = np.ones(25 * MB)  # 200 MB
    del taken
    most = first.peak
    if before.whole:
        pytest.skip("this system does not let the mark be taken back")
    assert before.bytes is not None
    assert most.bytes is not None
    assert most.bytes - before.bytes > 150 * MB
    after = MemoryWatch().peak
    assert after.bytes is not None
    assert after.bytes < most.bytes - 150 * MB


@pytest.mark.parametrize("text", ["", "VmHWM:\n", "VmHWM: much kB\n", "VmRSS: 12 kB\n"])
def test_a_system_that_tells_nothing(text: str, tmp_path: Path) -> None:
    (tmp_path / "clear").write_text("")
    (tmp_path / "status").write_text(text)
    assert MemoryWatch(tmp_path / "status", tmp_path / "clear").peak.whole


def test_the_line_is_in_units_of_1024(tmp_path: Path) -> None:
    (tmp_path / "clear").write_text("")
    (tmp_path / "status").write_text("VmPeak:\t 9 kB\nVmHWM:\t  2048 kB\n")
    found = MemoryWatch(tmp_path / "status", tmp_path / "clear").peak
    assert (found.bytes, found.whole) == (2048 * 1024, False)
