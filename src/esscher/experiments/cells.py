"""Cells that are no sweeps: computed once, kept as JSON, found again when a command is resumed."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

from esscher import __version__
from esscher.atomic import write_atomically


def cell(
    folder: Path, name: str, key: dict[str, Any], compute: Callable[[], dict[str, Any]]
) -> dict[str, Any]:
    """Return the stored result of a cell, or compute and store it.

    Parameters
    ----------
    folder
        Directory of the experiment.
    name
        What the cell is, for the name of its file.
    key
        All that the result is a function of; another key is another cell.
    compute
        Computes the result, plain numbers, lists and strings.
    """
    about = {"cell": name, "key": key, "version": __version__}
    digest = hashlib.sha256(json.dumps(about, sort_keys=True).encode()).hexdigest()[:12]
    path = folder / "cells" / f"{name}-{digest}.json"
    try:
        stored = json.loads(path.read_bytes())
        if {field: stored[field] for field in about} == about:
            return dict(stored["result"])
    except (OSError, ValueError, LookupError, TypeError):
        pass  # not there, or damaged: computed again
    result = compute()
    path.parent.mkdir(parents=True, exist_ok=True)
    text = json.dumps(about | {"result": result}, indent=1, allow_nan=False)
    write_atomically(path, text.encode())
    return dict(json.loads(text)["result"])
