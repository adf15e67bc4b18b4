"""Monte Carlo measurement of errors."""

from __future__ import annotations

from esscher.studies.sweep.curve import ErrorCurve
from esscher.studies.sweep.engine import SweepInterrupted, load_curve, sweep

__all__ = ["ErrorCurve", "SweepInterrupted", "load_curve", "sweep"]
