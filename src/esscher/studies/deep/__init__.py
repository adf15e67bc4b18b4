"""Deep stacks: how the sampling error of attention travels through layers."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from esscher.studies.deep.entry import deep
    from esscher.studies.deep.result import Depth
    from esscher.studies.deep.run import load_deep

__all__ = ["Depth", "deep", "load_deep"]


def __getattr__(name: str) -> Any:
    """Import what brings torch and transformers only when it is asked for."""
    if name == "deep":
        from esscher.studies.deep.entry import deep

        return deep
    if name == "load_deep":
        from esscher.studies.deep.run import load_deep

        return load_deep
    if name == "Depth":
        from esscher.studies.deep.result import Depth

        return Depth
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
