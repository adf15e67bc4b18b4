"""Monte Carlo measurement of errors."""

from __future__ import annotations

from esscher.sweeping.curve import ErrorCurve
from esscher.sweeping.engine import SweepInterrupted, load_curve, sweep

__all__ = ["ErrorCurve", "SweepInterrupted", "load_curve", "sweep"]
