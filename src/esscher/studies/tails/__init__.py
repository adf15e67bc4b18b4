"""Is the sub-Gaussian assumption true? Tails of tokens, keys and logits of real models."""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from esscher.studies.tails.cloud import CloudTails, cloud_tails
    from esscher.studies.tails.entry import tails
    from esscher.studies.tails.result import Tails
    from esscher.studies.tails.run import load_tails
    from esscher.studies.tails.verdict import VERDICTS

__all__ = ["VERDICTS", "CloudTails", "Tails", "cloud_tails", "load_tails", "tails"]

#: Where names are defined: imported when they are asked for, since some bring torch, some scipy.
_MODULES = {
    "CloudTails": "cloud",
    "Tails": "result",
    "VERDICTS": "verdict",
    "cloud_tails": "cloud",
    "load_tails": "run",
    "tails": "entry",
}


def __getattr__(name: str) -> Any:
    if name in _MODULES:
        return getattr(import_module(f"{__name__}.{_MODULES[name]}"), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
