"""Cells that are no sweeps: computed once, kept as JSON, found again when a command is resumed."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from esscher import __version__
from esscher.core.atomic import write_atomically
from esscher.core.codec import Name, Record, as_json, as_record, as_tree
from esscher.core.errors import InputError
from esscher.core.untrusted import check_folder, limits, parse_json, read_json
from esscher.runs.executors import CellExecutor, Serial, Task


class StoredCell(Record, frozen=True, kw_only=True):
    """A file in the folder ``cells`` of an experiment.

    Attributes
    ----------
    cell, key, version
        What it is, all that it is a function of, and the version that computed it.
    result
        Plain numbers, lists and strings.
    """

    cell: Name
    key: dict[str, Any]
    version: Name
    result: dict[str, Any]


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
        self._about: dict[str, Any] = {"cell": name, "key": key, "version": __version__}
        digest = hashlib.sha256(json.dumps(self._about, sort_keys=True).encode()).hexdigest()[:12]
        self.path = check_folder(folder, "cells") / f"{name}-{digest}.json"

    def read(self) -> dict[str, Any] | None:
        try:
            tree = read_json(self.path, limits.PART, follow=False)
            stored = as_record(tree, StoredCell, str(self.path))
        except (OSError, InputError):
            return None  # not there, or damaged: computed again
        same = all(getattr(stored, field) == value for field, value in self._about.items())
        return stored.result if same else None

    def write(self, result: dict[str, Any]) -> dict[str, Any]:
        self.path.parent.mkdir(parents=True, exist_ok=True)
        text = as_json(StoredCell(**self._about, result=as_tree(result)))
        write_atomically(self.path, text)
        return dict(parse_json(text, str(self.path))["result"])
