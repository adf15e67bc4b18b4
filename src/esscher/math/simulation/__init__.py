"""Simulated errors of attention, with all tokens drawn, and of its hardmax limit at any length."""

from __future__ import annotations

from esscher.math.simulation.direct import DirectErrors, direct_errors
from esscher.math.simulation.hardmax import HardmaxCurve, hardmax_curve

__all__ = ["DirectErrors", "HardmaxCurve", "direct_errors", "hardmax_curve"]
