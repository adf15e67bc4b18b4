"""Studies and their runs: everything that is the same for all of them."""

from __future__ import annotations

from esscher.runs.executors import Task
from esscher.runs.folder import Cell, CellRun, open_run, read_run
from esscher.runs.old_model_study import ModelStudy
from esscher.runs.old_result import Result
from esscher.runs.old_study import OneBatch, Study, function_of

__all__ = [
    "Cell",
    "CellRun",
    "ModelStudy",
    "OneBatch",
    "Result",
    "Study",
    "Task",
    "function_of",
    "open_run",
    "read_run",
]
