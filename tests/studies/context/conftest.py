"""A result of context lengths that no model made, with a hostile name."""

from __future__ import annotations

import pytest

from esscher.studies.context import Context
from tests.runs.made import make


@pytest.fixture(scope="session")
def found() -> Context:
    """Three layers of four heads: 1.1 has an open end, 1.3 is extrapolated."""
    result: Context = make("context")[1]
    return result
