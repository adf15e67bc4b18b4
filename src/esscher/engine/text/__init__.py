"""Real text: reading it, cutting it into passages, and the token clouds that models make of it."""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

from esscher.engine.text.documents import Document, TextSource, check_text, read_text

if TYPE_CHECKING:
    from esscher.engine.text.cloud import (
        CloudFile,
        LayerCloud,
        cloud_bytes,
        open_cloud,
        read_rows,
        seen_cloud,
        stored_layers,
    )
    from esscher.engine.text.collect import collect_cloud, iterate_passages, visit_passages
    from esscher.engine.text.packing import (
        Passage,
        PassageSet,
        first_passages,
        passages,
        read_passages,
    )

__all__ = [
    "CloudFile",
    "Document",
    "LayerCloud",
    "Passage",
    "PassageSet",
    "TextSource",
    "check_text",
    "cloud_bytes",
    "collect_cloud",
    "first_passages",
    "iterate_passages",
    "open_cloud",
    "passages",
    "read_passages",
    "read_rows",
    "read_text",
    "seen_cloud",
    "stored_layers",
    "visit_passages",
]

#: Names that bring torch with them, by module: imported when first asked for, so that texts are
#: checked before.
_LATER = {
    "cloud": (
        "CloudFile",
        "LayerCloud",
        "cloud_bytes",
        "open_cloud",
        "read_rows",
        "seen_cloud",
        "stored_layers",
    ),
    "collect": ("collect_cloud", "iterate_passages", "visit_passages"),
    "packing": (
        "Passage",
        "PassageSet",
        "first_passages",
        "passages",
        "read_passages",
    ),
}


def __getattr__(name: str) -> Any:
    for module, names in _LATER.items():
        if name in names:
            return getattr(import_module(f"{__name__}.{module}"), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
