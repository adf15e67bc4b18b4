"""Simulated errors of attention at any length: only the extremes are drawn, the rest is summed."""

from __future__ import annotations

from esscher.math.simulation.extremes import SimulatedMap, simulate_map, simulate_query
from esscher.math.simulation.hardmax import HardmaxCurve, hardmax_curve
from esscher.math.simulation.mean import SimulatedMean, simulate_mean

__all__ = [
    "HardmaxCurve",
    "SimulatedMap",
    "SimulatedMean",
    "hardmax_curve",
    "simulate_map",
    "simulate_mean",
    "simulate_query",
]
