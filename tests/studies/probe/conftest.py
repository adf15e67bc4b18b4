"""A small probe, measured."""

from __future__ import annotations

import pytest

from tests.runs.made import make


@pytest.fixture(scope="session")
def found():
    """Two layers of three heads; model and text have hostile names."""
    return make("probe")[1]
