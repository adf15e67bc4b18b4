"""Esscher answers one question: how many tokens does attention need.

Softmax attention over n tokens is a Monte Carlo estimate of an infinite-token limit, the Esscher
transform of the token law. Its error falls like C n^-beta. Esscher computes the limit, predicts
beta and C, and says how large n must be.

>>> import esscher
>>> head = esscher.gaussian_head(horizon=0.5, dim=8)
>>> round(esscher.exponents(head.horizon).mean, 3)
0.5
"""

from __future__ import annotations

__version__ = "0.1.0"

from importlib import import_module
from typing import TYPE_CHECKING, Any

from esscher.core.errors import EsscherError, InputError, UndefinedError
from esscher.studies import STUDIES

if TYPE_CHECKING:
    from esscher import results, theory
    from esscher.engine import patterns
    from esscher.engine.cache.saved import load_cache
    from esscher.engine.models.load import load_model
    from esscher.engine.models.loaded import LoadedModel, wrap_model
    from esscher.engine.text.documents import read_text
    from esscher.math import laws
    from esscher.math.heads import Head, array_head, gaussian_head, law_head, weight_head
    from esscher.math.limits import limit_map, limit_moments
    from esscher.math.statistics import fit_rate
    from esscher.math.theory import exponents, predict
    from esscher.runs.registry import load
    from esscher.runs.report import report
    from esscher.runs.study import Interrupted
    from esscher.studies.context import context
    from esscher.studies.deep import deep, deep_stack
    from esscher.studies.domains import domains
    from esscher.studies.paper import paper
    from esscher.studies.plan import plan
    from esscher.studies.probe import probe
    from esscher.studies.sparse import sparse, sparse_law
    from esscher.studies.sweep import sweep
    from esscher.studies.tails import tails

__all__ = [
    "EsscherError",
    "Head",
    "InputError",
    "Interrupted",
    "LoadedModel",
    "UndefinedError",
    "__version__",
    "array_head",
    "context",
    "deep",
    "deep_stack",
    "domains",
    "exponents",
    "fit_rate",
    "gaussian_head",
    "law_head",
    "laws",
    "limit_map",
    "limit_moments",
    "load",
    "load_cache",
    "load_model",
    "paper",
    "patterns",
    "plan",
    "predict",
    "probe",
    "read_text",
    "report",
    "results",
    "sparse",
    "sparse_law",
    "sweep",
    "tails",
    "theory",
    "weight_head",
    "wrap_model",
]


#: Public names by package, imported when they are first asked for: numpy and scipy take longer than
#: most commands, torch and transformers longer than all others together. Studies come from the
#: list of studies.
_LAZY = {
    "esscher.engine.cache.saved": ("load_cache",),
    "esscher.engine.models.load": ("load_model",),
    "esscher.engine.models.loaded": ("LoadedModel", "wrap_model"),
    "esscher.engine.text.documents": ("read_text",),
    "esscher.math.heads": ("Head", "array_head", "gaussian_head", "law_head", "weight_head"),
    "esscher.math.limits": ("limit_map", "limit_moments"),
    "esscher.math.statistics": ("fit_rate",),
    "esscher.math.theory": ("exponents", "predict"),
    "esscher.runs.registry": ("load",),
    "esscher.runs.report": ("report",),
    "esscher.runs.study": ("Interrupted",),
}
_NAMESPACES = {
    "laws": "esscher.math.laws",
    "patterns": "esscher.engine.patterns",
    "results": "esscher.results",
    "theory": "esscher.theory",
}


def __getattr__(name: str) -> Any:
    if name in _NAMESPACES:
        return import_module(_NAMESPACES[name])
    for package, names in _LAZY.items():
        if name in names:
            return getattr(import_module(package), name)
    if name.replace("_", "-") in STUDIES:
        module = STUDIES[name.replace("_", "-")][0].partition(":")[0]
        return getattr(import_module(module.removesuffix(".study")), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted(__all__)
