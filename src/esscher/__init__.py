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

from esscher.core.errors import EsscherError, InputError, UndefinedError
from esscher.math.heads import (
    ArrayHead,
    Head,
    Tokens,
    WeightHead,
    array_head,
    gaussian_head,
    law_head,
    weight_head,
)
from esscher.math.laws import (
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
from esscher.math.limits import (
    AttentionLayer,
    GaussianStack,
    MapLimit,
    NoLimit,
    OutputMoments,
    StackLimit,
    limit_map,
    limit_moments,
)
from esscher.math.simulation import hardmax_curve
from esscher.math.statistics import Rate, fit_rate, received_exponent
from esscher.math.theory import (
    Curve,
    Exponents,
    Prediction,
    ball_bound,
    constants,
    cov_constant,
    exponents,
    head_ball_bound,
    map_constant,
    map_curve,
    mean_constant,
    measured_supremum,
    moment_curves,
    pointwise_error,
    predict,
)
from esscher.runs.study import Interrupted
from esscher.studies.sweep import Sweep, sweep

if TYPE_CHECKING:
    from esscher.engine.models import LoadedModel, load_model, wrap_model
    from esscher.engine.text import read_text
    from esscher.runs.cluster import connect_cluster
    from esscher.runs.cluster_file import start_cluster
    from esscher.runs.registry import load
    from esscher.show.catalogue import figure, figures_of
    from esscher.show.write import write_report
    from esscher.studies.context import Context, context
    from esscher.studies.deep import Deep, deep, deep_stack
    from esscher.studies.domains import Domains, domains
    from esscher.studies.plan import Plan, plan
    from esscher.studies.probe import Probe, probe
    from esscher.studies.reproduce import reproduce
    from esscher.studies.sparse import Sparse, sparse, sparse_law
    from esscher.studies.tails import Tails, tails

__all__ = [
    "ArrayHead",
    "AttentionLayer",
    "Context",
    "Cube",
    "Curve",
    "Deep",
    "Domains",
    "EsscherError",
    "Exponents",
    "FiniteTokens",
    "Gaussian",
    "GaussianMixture",
    "GaussianStack",
    "Head",
    "InputError",
    "Interrupted",
    "Laplace",
    "Law",
    "LoadedModel",
    "MapLimit",
    "NoLimit",
    "OutputMoments",
    "Plan",
    "Prediction",
    "Probe",
    "Rate",
    "Signs",
    "Sparse",
    "Sphere",
    "StackLimit",
    "StudentT",
    "Sweep",
    "Tails",
    "Tokens",
    "UndefinedError",
    "WeightHead",
    "__version__",
    "array_head",
    "ball_bound",
    "connect_cluster",
    "constants",
    "context",
    "cov_constant",
    "deep",
    "deep_stack",
    "domains",
    "exponents",
    "figure",
    "figures_of",
    "fit_rate",
    "gaussian_head",
    "hardmax_curve",
    "head_ball_bound",
    "law_head",
    "limit_map",
    "limit_moments",
    "load",
    "load_model",
    "make_law",
    "map_constant",
    "map_curve",
    "mean_constant",
    "measured_supremum",
    "moment_curves",
    "plan",
    "pointwise_error",
    "predict",
    "probe",
    "read_text",
    "received_exponent",
    "reproduce",
    "sparse",
    "sparse_law",
    "standard_law",
    "start_cluster",
    "sweep",
    "tails",
    "weight_head",
    "wrap_model",
    "write_report",
]


#: What brings torch and transformers with it, by package: imported when it is first asked for.
_LAZY = {
    "esscher.studies.domains": ("Domains", "domains"),
    "esscher.studies.deep": ("Deep", "deep", "deep_stack"),
    "esscher.studies.reproduce": ("reproduce",),
    "esscher.studies.tails": ("Tails", "tails"),
    "esscher.engine.models": ("LoadedModel", "load_model", "wrap_model"),
    "esscher.studies.context": ("Context", "context"),
    "esscher.studies.plan": ("Plan", "plan"),
    "esscher.studies.probe": ("Probe", "probe"),
    "esscher.show.catalogue": ("figure", "figures_of"),
    "esscher.show.write": ("write_report",),
    "esscher.runs.cluster": ("connect_cluster",),
    "esscher.runs.registry": ("load",),
    "esscher.runs.cluster_file": ("start_cluster",),
    "esscher.studies.sparse": ("Sparse", "sparse", "sparse_law"),
    "esscher.engine.text": ("read_text",),
}


def __getattr__(name: str) -> Any:
    for package, names in _LAZY.items():
        if name in names:
            return getattr(import_module(package), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
