"""Cells that are no sweeps: computed once, kept as JSON, found again when a command is resumed."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from esscher import __version__
from esscher.core.atomic import write_atomically
from esscher.core.errors import InputError
from esscher.core.untrusted import check_folder, limits, parse_json
from esscher.runs.executors import CellExecutor, Serial, Task
from esscher.runs.schema import read_checked


def compute_all(
    folder: Path,
    name: str,
    keys: Sequence[dict[str, Any]],
    compute: Callable[[dict[str, Any]], dict[str, Any]],
    executor: CellExecutor | None = None,
) -> list[dict[str, Any]]:
    """Return the results of cells in order; those that are not stored are computed and stored.

    Parameters
    ----------
    folder
        Directory of the experiment.
    name
        What the cells are, for the names of their files.
    keys
        For each cell, all that its result is a function of; another key is another cell.
    compute
        Computes the result of a key, plain numbers, lists and strings. A function at the top of a
        module, so that workers of a cluster find it.
    executor
        Who computes; this process if left out.
    """
    places = [_Place(folder, name, key) for key in keys]
    results = {place.path.stem: place.read() for place in places}
    by_name = {place.path.stem: place for place in places}
    tasks = [
        Task(stem, compute, (by_name[stem].key,))
        for stem, stored in results.items()
        if stored is None
    ]
    for stem, result in (executor or Serial()).run(tasks):
        results[stem] = by_name[stem].write(result)
    return [dict(results[place.path.stem] or {}) for place in places]


class _Place:
    """Where the result of one cell is kept."""

    def __init__(self, folder: Path, name: str, key: dict[str, Any]) -> None:
        self.key = key
        self._about = {"cell": name, "key": key, "version": __version__}
        digest = hashlib.sha256(json.dumps(self._about, sort_keys=True).encode()).hexdigest()[:12]
        self.path = check_folder(folder, "cells") / f"{name}-{digest}.json"

    def read(self) -> dict[str, Any] | None:
        try:
            stored = read_checked(self.path, "experiment", "cell", limits.PART)
        except (OSError, InputError):
            return None  # not there, or damaged: computed again
        same = {field: stored[field] for field in self._about} == self._about
        return dict(stored["result"]) if same else None

    def write(self, result: dict[str, Any]) -> dict[str, Any]:
        self.path.parent.mkdir(parents=True, exist_ok=True)
        text = json.dumps(self._about | {"result": result}, indent=1, allow_nan=False)
        write_atomically(self.path, text.encode())
        return dict(parse_json(text, str(self.path))["result"])
