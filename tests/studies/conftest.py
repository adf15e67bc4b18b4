"""Fixtures that tests of several studies share."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from esscher.runs.pool import LocalPool


@pytest.fixture(scope="module")
def pool() -> Iterator[LocalPool]:
    """Two workers, who need seconds to start: torch is imported there."""
    with LocalPool(2) as found:
        yield found
