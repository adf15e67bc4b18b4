"""Exact theory of the error of attention: exponents, constants, curves, bounds, hardmax."""

from __future__ import annotations

from esscher.theory.ball import BallBound, ball_bound, head_ball_bound, measured_supremum
from esscher.theory.constants import MeanConstant, cov_constant, map_constant, mean_constant
from esscher.theory.curve import Curve
from esscher.theory.exponents import Exponents, exponents
from esscher.theory.hardmax import HardmaxCurve, hardmax_curve
from esscher.theory.map_curve import map_curve
from esscher.theory.moment_curves import moment_curves
from esscher.theory.pointwise import PointwiseError, pointwise_error
from esscher.theory.prediction import Constants, Prediction, constants, log_burn_in, predict
from esscher.theory.softmax_mean import SoftmaxMoments, softmax_moments

__all__ = [
    "BallBound",
    "Constants",
    "Curve",
    "Exponents",
    "HardmaxCurve",
    "MeanConstant",
    "PointwiseError",
    "Prediction",
    "SoftmaxMoments",
    "ball_bound",
    "constants",
    "cov_constant",
    "exponents",
    "hardmax_curve",
    "head_ball_bound",
    "log_burn_in",
    "map_constant",
    "map_curve",
    "mean_constant",
    "measured_supremum",
    "moment_curves",
    "pointwise_error",
    "predict",
    "softmax_moments",
]
