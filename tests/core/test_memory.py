"""The most memory at a time, where the system tells it."""

from __future__ import annotations

import numpy as np
import pytest

from esscher.core.memory import MemoryWatch

MB = 10**6


def test_memory_that_was_freed_counts_for_its_own_watch_alone() -> None:
    first = MemoryWatch()
    before = first.peak
    if before is None:
        pytest.skip("this system does not tell")
    taken = np.ones(25 * MB)  # 200 MB
    del taken
    most = first.peak
    assert most is not None
    assert most - before > 150 * MB
    after = MemoryWatch().peak
    assert after is not None
    assert after < most - 150 * MB
