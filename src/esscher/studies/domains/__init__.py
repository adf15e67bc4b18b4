"""The same probe on several corpora: what changes between them beyond chance."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from esscher.studies.domains.entry import domains
    from esscher.studies.domains.result import Domains
    from esscher.studies.domains.run import load_domains

__all__ = ["Domains", "domains", "load_domains"]


def __getattr__(name: str) -> Any:
    """Import what reads models only when it is asked for: it brings torch and transformers."""
    if name == "domains":
        from esscher.studies.domains.entry import domains

        return domains
    if name == "load_domains":
        from esscher.studies.domains.run import load_domains

        return load_domains
    if name == "Domains":
        from esscher.studies.domains.result import Domains

        return Domains
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
