"""Files of stored runs."""

from __future__ import annotations

from pathlib import Path


def stored_bytes(folder: Path) -> dict[str, bytes]:
    """The cells of a run as they are stored, by the names of their files."""
    return {path.name: path.read_bytes() for path in (folder / "parts").iterdir()}
