"""Fixtures that tests of several studies share."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
import torch

from esscher.runs.executors import LocalPool, threads_per_worker


@pytest.fixture(scope="session")
def workers() -> Iterator[LocalPool]:
    """Two workers for all studies: starting them takes seconds, torch is imported there."""
    with LocalPool(2) as workers:
        yield workers


@pytest.fixture
def pool(workers: LocalPool) -> Iterator[LocalPool]:
    """The workers, while this process has as many threads as each of them.

    Matrix products as small as those of tiny models depend on their number.
    """
    before = torch.get_num_threads()
    torch.set_num_threads(threads_per_worker(2))
    yield workers
    torch.set_num_threads(before)
