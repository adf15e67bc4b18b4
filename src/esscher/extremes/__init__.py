"""Is the sub-Gaussian assumption true? Tails of tokens, keys and logits of real models."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from esscher.extremes.cloud import CloudTails, cloud_tails
from esscher.extremes.verdict import VERDICTS

if TYPE_CHECKING:
    from esscher.extremes.result import Tails
    from esscher.extremes.run import load_tails, tails

__all__ = ["VERDICTS", "CloudTails", "Tails", "cloud_tails", "load_tails", "tails"]


def __getattr__(name: str) -> Any:
    """Import what reads models only when it is asked for: it brings torch and transformers."""
    if name in ("load_tails", "tails"):
        from esscher.extremes import run

        return getattr(run, name)
    if name == "Tails":
        from esscher.extremes.result import Tails

        return Tails
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
