"""Real text: reading it, cutting it into passages, and the token clouds that models make of it."""

from __future__ import annotations

from esscher.text.cloud import (
    CloudFile,
    HeadCloud,
    LayerCloud,
    Rows,
    cloud_bytes,
    open_cloud,
    read_rows,
    seen_cloud,
    stored_layers,
)
from esscher.text.collect import collect_cloud
from esscher.text.context import iterate_passages, visit_passages
from esscher.text.documents import Document, TextSource, read_text
from esscher.text.passages import (
    Passage,
    PassageSet,
    PassageStream,
    passages,
    read_passages,
)

__all__ = [
    "CloudFile",
    "Document",
    "HeadCloud",
    "LayerCloud",
    "Passage",
    "PassageSet",
    "PassageStream",
    "Rows",
    "TextSource",
    "cloud_bytes",
    "collect_cloud",
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
