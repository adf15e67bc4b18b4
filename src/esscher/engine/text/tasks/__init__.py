"""Retrieval tasks that are generated: sentences hidden in a text, and questions about them.

They follow RULER (Hsieh et al. 2024, arXiv:2404.06654) in spirit. Everything is drawn from a seed,
and nothing is downloaded. ``TASKS`` has them by name (``kinds.py``).
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

from esscher.engine.text.tasks.kinds import TASKS

if TYPE_CHECKING:
    from esscher.engine.text.tasks.asking import Answer, ask, ask_each, exact_match, read_context
    from esscher.engine.text.tasks.items import TaskItem, calibration_item, task_items

__all__ = [
    "TASKS",
    "Answer",
    "TaskItem",
    "ask",
    "ask_each",
    "calibration_item",
    "exact_match",
    "read_context",
    "task_items",
]

#: Names that bring torch with them, by module: imported when first asked for, so that names of
#: tasks are checked before.
_LATER = {
    "asking": ("Answer", "ask", "ask_each", "exact_match", "read_context"),
    "items": ("TaskItem", "calibration_item", "task_items"),
}


def __getattr__(name: str) -> Any:
    for module, names in _LATER.items():
        if name in names:
            return getattr(import_module(f"{__name__}.{module}"), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
