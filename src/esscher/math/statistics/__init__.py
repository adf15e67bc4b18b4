"""Rates with honest intervals: from measured errors to exponents, and from one pass to the same.

:func:`fit_rate` fits error ~ C n^-beta to the errors of independent replicates and returns a
:class:`Rate`; :func:`select_law` asks whether it is a power law at all, and whether that could be
seen. :func:`received_khat` reads the tail of the attention that tokens receive in a single pass.
"""

from __future__ import annotations

from esscher.math.statistics.fit import Rate, fit_rate
from esscher.math.statistics.intervals import (
    LEVEL,
    resample,
    resampling_counts,
)
from esscher.math.statistics.laws import LAWS
from esscher.math.statistics.selection import Selection, select_law
from esscher.math.statistics.tail import (
    dominant_keys,
    find_sinks,
    keys_apart,
    received_khat,
    tail_count,
    tail_shape,
    values_needed,
)

__all__ = [
    "LAWS",
    "LEVEL",
    "Rate",
    "Selection",
    "dominant_keys",
    "find_sinks",
    "fit_rate",
    "keys_apart",
    "received_khat",
    "resample",
    "resampling_counts",
    "select_law",
    "tail_count",
    "tail_shape",
    "values_needed",
]
