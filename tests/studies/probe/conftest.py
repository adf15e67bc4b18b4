"""A small probe, measured."""

from __future__ import annotations

from typing import Any

import pytest

from tests.runs.made import make


@pytest.fixture(scope="session")
def result() -> Any:
    """Two layers of three heads; model and text have hostile names."""
    return make("probe")[1]
