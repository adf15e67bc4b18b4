"""Run directories: what every stored run has in common."""

from __future__ import annotations

from esscher.runs.cells import Cell, CellRun, open_run, read_run, run_folder, run_kind
from esscher.runs.result import HeadsResult, RunResult

__all__ = [
    "Cell",
    "CellRun",
    "HeadsResult",
    "RunResult",
    "open_run",
    "read_run",
    "run_folder",
    "run_kind",
]
