"""A result of context lengths with known lengths, of a model with a hostile name."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import xarray as xr

from tests.runs.made import changed, make


def known_lengths(data: xr.Dataset) -> xr.Dataset:
    """Lengths within 128 tokens; but 1.1 has an open end, and 1.3 is extrapolated."""
    length = np.multiply.outer(20.0 + 8 * np.arange(12.0).reshape(3, 4), (1.0, 0.9, 1.2))
    length[1, 1] = np.nan, 300.0, 512.0
    length[1, 3] = 400.0, 200.0, 512.0
    return data.assign(length=(data["length"].dims, length))


@pytest.fixture(scope="session")
def result() -> Any:
    """A run of three layers of four heads, with these lengths."""
    return changed(make("context")[1], known_lengths)
