"""Esscher answers one question: how many tokens does attention need.

Softmax attention over n tokens is a Monte Carlo estimate of an infinite-token limit, the Esscher
transform of the token law. Its error falls like C n^-beta. Esscher computes the limit, predicts
beta and C, and says from which n on they hold.

>>> import esscher
>>> head = esscher.gaussian_head(horizon=0.5, dim=8)
>>> round(esscher.exponents(head.horizon).mean, 3)
0.5
"""

from __future__ import annotations

__version__ = "0.1.0.dev0"

from importlib import import_module
from typing import TYPE_CHECKING, Any

from esscher.errors import EsscherError, InputError, UndefinedError
from esscher.heads import (
    ArrayHead,
    Head,
    Tokens,
    WeightHead,
    array_head,
    gaussian_head,
    law_head,
    weight_head,
)
from esscher.laws import (
    Cube,
    FiniteTokens,
    Gaussian,
    GaussianMixture,
    Laplace,
    Law,
    Signs,
    Sphere,
    StudentT,
    make_law,
    standard_law,
)
from esscher.limits import (
    AttentionLayer,
    GaussianStack,
    MapLimit,
    NoLimit,
    OutputMoments,
    StackLimit,
    limit_map,
    limit_moments,
)
from esscher.rates import Rate, fit_rate, received_exponent
from esscher.sweep import ErrorCurve, SweepInterrupted, load_curve, sweep
from esscher.theory import (
    Curve,
    Exponents,
    Prediction,
    ball_bound,
    constants,
    cov_constant,
    exponents,
    hardmax_curve,
    head_ball_bound,
    map_constant,
    map_curve,
    mean_constant,
    measured_supremum,
    moment_curves,
    pointwise_error,
    predict,
)

if TYPE_CHECKING:
    from esscher.experiments import reproduce
    from esscher.probing import Probe, load_probe, probe

__all__ = [
    "ArrayHead",
    "AttentionLayer",
    "Cube",
    "Curve",
    "ErrorCurve",
    "EsscherError",
    "Exponents",
    "FiniteTokens",
    "Gaussian",
    "GaussianMixture",
    "GaussianStack",
    "Head",
    "InputError",
    "Laplace",
    "Law",
    "MapLimit",
    "NoLimit",
    "OutputMoments",
    "Prediction",
    "Probe",
    "Rate",
    "Signs",
    "Sphere",
    "StackLimit",
    "StudentT",
    "SweepInterrupted",
    "Tokens",
    "UndefinedError",
    "WeightHead",
    "__version__",
    "array_head",
    "ball_bound",
    "constants",
    "cov_constant",
    "exponents",
    "fit_rate",
    "gaussian_head",
    "hardmax_curve",
    "head_ball_bound",
    "law_head",
    "limit_map",
    "limit_moments",
    "load_curve",
    "load_probe",
    "make_law",
    "map_constant",
    "map_curve",
    "mean_constant",
    "measured_supremum",
    "moment_curves",
    "pointwise_error",
    "predict",
    "probe",
    "received_exponent",
    "reproduce",
    "standard_law",
    "sweep",
    "weight_head",
]


def __getattr__(name: str) -> Any:
    """What brings torch and transformers with it is imported when it is first asked for."""
    if name in ("Probe", "load_probe", "probe"):
        probing = import_module("esscher.probing")
        return getattr(probing, name)
    if name == "reproduce":
        return import_module("esscher.experiments").reproduce
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
