"""Monte Carlo measurement of errors."""

from __future__ import annotations

from esscher.runs.old_study import function_of
from esscher.studies.sweep.result import Sweep
from esscher.studies.sweep.study import SweepStudy

sweep = function_of(SweepStudy)

__all__ = ["Sweep", "SweepStudy", "sweep"]
