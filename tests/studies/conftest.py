"""Fixtures that tests of several studies share."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
import torch

from esscher.runs.pool import LocalPool
from esscher.runs.threads import threads_per_worker


@pytest.fixture(scope="module")
def pool() -> Iterator[LocalPool]:
    """Two workers, who need seconds to start: torch is imported there.

    This process has as many threads as each of them: matrix products as small as those of tiny
    models depend on their number.
    """
    before = torch.get_num_threads()
    torch.set_num_threads(threads_per_worker(2))
    with LocalPool(2) as found:
        yield found
    torch.set_num_threads(before)
