"""Rates with honest intervals: from measured errors to exponents, and from one pass to the same.

:func:`fit_rate` fits error ~ C n^-beta to the errors of independent replicates and returns a
:class:`Rate`; :func:`select_law` asks whether it is a power law at all. :func:`received_exponent`
reads the exponent off the attention that tokens receive in a single pass.
"""

from __future__ import annotations

from esscher.rates.fit import SUMMARIES, fit_rate
from esscher.rates.laws import LAWS, LawFit
from esscher.rates.local import LocalSlopes
from esscher.rates.onepass import TailIndex, received_exponent
from esscher.rates.rate import Rate
from esscher.rates.resampling import Resamples, resample
from esscher.rates.selection import Selection, select_law
from esscher.rates.sinks import dominant_keys, find_sinks
from esscher.rates.tail import TailShape, tail_count, tail_shape, values_needed
from esscher.rates.tokens import TokensNeeded

__all__ = [
    "LAWS",
    "SUMMARIES",
    "LawFit",
    "LocalSlopes",
    "Rate",
    "Resamples",
    "Selection",
    "TailIndex",
    "TailShape",
    "TokensNeeded",
    "dominant_keys",
    "find_sinks",
    "fit_rate",
    "received_exponent",
    "resample",
    "select_law",
    "tail_count",
    "tail_shape",
    "values_needed",
]
