"""A result of context lengths that no model made, with a hostile name."""

from __future__ import annotations

from typing import Any

import pytest

from tests.runs.made import make


@pytest.fixture(scope="session")
def result() -> Any:
    """Three layers of four heads: 1.1 has an open end, 1.3 is extrapolated."""
    return make("context")[1]
