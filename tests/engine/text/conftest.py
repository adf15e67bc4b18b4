"""Tiny models that read."""

from __future__ import annotations

import pytest

from tests.engine.models.folders import tiny


@pytest.fixture(scope="module")
def bert():
    return tiny("bert")


@pytest.fixture(scope="module")
def llama():
    return tiny("llama")
