"""Monte Carlo measurement of errors."""

from __future__ import annotations

from esscher.sweep.curve import ErrorCurve
from esscher.sweep.engine import SweepInterrupted, load_curve, sweep

__all__ = ["ErrorCurve", "SweepInterrupted", "load_curve", "sweep"]
