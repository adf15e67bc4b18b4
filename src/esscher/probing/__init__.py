"""Probing real models: the numbers for every layer and head."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from esscher.probing.result import Probe
    from esscher.probing.run import load_probe, probe

__all__ = ["Probe", "load_probe", "probe"]


def __getattr__(name: str) -> Any:
    """Import what reads models only when it is asked for: it brings torch and transformers."""
    if name in ("load_probe", "probe"):
        from esscher.probing import run

        return getattr(run, name)
    if name == "Probe":
        from esscher.probing.result import Probe

        return Probe
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
