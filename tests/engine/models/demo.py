"""The real models that install from the package index; loaded once per test run."""

from __future__ import annotations

from functools import cache

import pytest

from esscher.core.errors import InputError
from esscher.engine.models.load import load_model


@cache
def _load(name):
    try:
        return load_model(name)
    except InputError as error:
        if "install it with" in str(error):
            return str(error)
        raise


def demo_model(name):
    """The model of that name; the test is skipped when its package is not installed."""
    loaded = _load(name)
    if isinstance(loaded, str):
        pytest.skip(loaded)
    return loaded
