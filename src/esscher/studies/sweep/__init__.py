"""Monte Carlo measurement of errors."""

from __future__ import annotations

from esscher.runs.study import function_of
from esscher.studies.sweep.study import Sweep, SweepStudy

sweep = function_of(SweepStudy)

__all__ = ["Sweep", "SweepStudy", "sweep"]
