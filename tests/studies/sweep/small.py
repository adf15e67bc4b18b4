"""A sweep that takes no time, and what it means that two are the same."""

from __future__ import annotations

from pathlib import Path

import numpy as np

import esscher
from esscher.studies.sweep import Sweep, sweep

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


def errors(curve: Sweep, metric: str) -> np.ndarray:
    """Errors of all replicates, [alpha, replicate, size]."""
    return curve["replicate_error"].sel(metric=metric).values


def assert_same(one: Sweep, other: Sweep) -> None:
    """The same replicates, to the bit, and all that follows from them."""
    assert one.complete == other.complete
    assert one.data.drop_attrs().identical(other.data.drop_attrs())
