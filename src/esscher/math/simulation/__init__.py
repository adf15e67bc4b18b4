"""Simulated errors of attention: all tokens drawn, or at any length from the extremes alone."""

from __future__ import annotations

from esscher.math.simulation.direct import DirectErrors, direct_errors
from esscher.math.simulation.extremes import (
    SimulatedErrors,
    SimulatedMap,
    simulate_map,
    simulate_query,
)
from esscher.math.simulation.hardmax import HardmaxCurve, hardmax_curve
from esscher.math.simulation.mean import SimulatedMean, simulate_mean

__all__ = [
    "DirectErrors",
    "HardmaxCurve",
    "SimulatedErrors",
    "SimulatedMap",
    "SimulatedMean",
    "direct_errors",
    "hardmax_curve",
    "simulate_map",
    "simulate_mean",
    "simulate_query",
]
