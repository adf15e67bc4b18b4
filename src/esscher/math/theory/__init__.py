"""Exact theory of the error of attention: exponents, constants, curves, bounds, hardmax."""

from __future__ import annotations

from esscher.math.theory.ball import log_ball_bound, measured_supremum
from esscher.math.theory.gaussian_map import map_curve
from esscher.math.theory.gaussian_moments import moment_curves
from esscher.math.theory.gaussian_tables import softmax_moments
from esscher.math.theory.hardmax import (
    HardmaxCurve,
    hardmax_curve,
    hardmax_exact,
    hardmax_leading,
)
from esscher.math.theory.prediction import Constants, Prediction, constants, log_burn_in, predict
from esscher.math.theory.rates import (
    Curve,
    Exponents,
    cov_constant,
    exponents,
    map_constant,
    mean_constant,
)

__all__ = [
    "Constants",
    "Curve",
    "Exponents",
    "HardmaxCurve",
    "Prediction",
    "constants",
    "cov_constant",
    "exponents",
    "hardmax_curve",
    "hardmax_exact",
    "hardmax_leading",
    "log_ball_bound",
    "log_burn_in",
    "map_constant",
    "map_curve",
    "mean_constant",
    "measured_supremum",
    "moment_curves",
    "predict",
    "softmax_moments",
]
