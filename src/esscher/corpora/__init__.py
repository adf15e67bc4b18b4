"""The same probe on several corpora: what changes between them beyond chance."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from esscher.corpora.result import Domains
    from esscher.corpora.run import domains, load_domains

__all__ = ["Domains", "domains", "load_domains"]


def __getattr__(name: str) -> Any:
    """Import what reads models only when it is asked for: it brings torch and transformers."""
    if name in ("domains", "load_domains"):
        from esscher.corpora import run

        return getattr(run, name)
    if name == "Domains":
        from esscher.corpora.result import Domains

        return Domains
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
