"""Tails of clouds of tokens: worst directions, sub-Gaussian parameters, types, verdicts."""

from __future__ import annotations

from esscher.math.tails.candidates import Cloud, TailComparison, VarianceProxy
from esscher.math.tails.cloud import cloud_tails
from esscher.math.tails.verdict import VERDICTS, judge

__all__ = [
    "VERDICTS",
    "Cloud",
    "TailComparison",
    "VarianceProxy",
    "cloud_tails",
    "judge",
]
