"""Probing real models: the numbers for every layer and head."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from esscher.studies.probe.entry import probe
    from esscher.studies.probe.result import Probe
    from esscher.studies.probe.run import load_probe

__all__ = ["Probe", "load_probe", "probe"]


def __getattr__(name: str) -> Any:
    """Import what reads models only when it is asked for: it brings torch and transformers."""
    if name == "probe":
        from esscher.studies.probe.entry import probe

        return probe
    if name == "load_probe":
        from esscher.studies.probe.run import load_probe

        return load_probe
    if name == "Probe":
        from esscher.studies.probe.result import Probe

        return Probe
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
