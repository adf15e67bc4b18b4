"""A sweep that takes no time, and what it means that two are the same."""

from __future__ import annotations

from pathlib import Path

import numpy as np

import esscher
from esscher.studies.sweep import Sweep, sweep
from esscher.studies.sweep.measure import METRICS

SIZES = [8, 20]


def small_sweep(out: Path | None, replicates: int = 4, **change: object) -> Sweep:
    """Two sizes at two scales; some options changed."""
    arguments: dict[str, object] = {
        "head": esscher.gaussian_head(0.7, 2),
        "sizes": SIZES,
        "alpha": [0.5, 1.0],
        "seed": 3,
    }
    return sweep(replicates=replicates, out=out, **(arguments | change))  # type: ignore[arg-type]


def assert_same(one: Sweep, other: Sweep) -> None:
    """The same replicates, to the bit."""
    assert one.numbers == other.numbers
    assert one.complete == other.complete
    for metric in METRICS:
        np.testing.assert_array_equal(one.raw(metric), other.raw(metric))
