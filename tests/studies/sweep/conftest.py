"""Small sweeps: of several horizons, of one, and of tokens without a limit."""

from __future__ import annotations

import pytest

import esscher
from esscher.studies.sweep import Sweep

SIZES = (16, 32, 64, 128)


@pytest.fixture(scope="package")
def swept() -> Sweep:
    """Three horizons, out of order, with predictions."""
    head = esscher.gaussian_head(1.0, 2)
    return esscher.sweep(head, SIZES, 8, alpha=(0.5, 2.0, 1.0), predict=True)


@pytest.fixture(scope="package")
def one() -> Sweep:
    """One horizon, with predictions."""
    return esscher.sweep(esscher.gaussian_head(0.6, 2), SIZES, 8, predict=True)


@pytest.fixture(scope="package")
def laplace() -> Sweep:
    """Tokens without a limit, without predictions."""
    head = esscher.law_head(esscher.laws.standard_law("laplace", 2), horizon=0.5)
    return esscher.sweep(head, SIZES, 6, reference_tokens=500)
