"""The tasks by their names."""

from __future__ import annotations

from esscher.core.errors import InputError
from esscher.core.shown import shortened
from esscher.engine.text.tasks.keys import Keys
from esscher.engine.text.tasks.needle import Needle
from esscher.engine.text.tasks.quote import Quote
from esscher.engine.text.tasks.task import Task
from esscher.engine.text.tasks.values import Values
from esscher.engine.text.tasks.variables import Variables
from esscher.engine.text.tasks.words import Words

#: Tasks by name, in the order of tables.
TASKS: dict[str, Task] = {
    task.name: task for task in (Needle(), Keys(), Values(), Variables(), Words(), Quote())
}


def as_task(name: str) -> Task:
    """Return the task of that name.

    Raises
    ------
    InputError
        Naming the tasks that there are.
    """
    if not isinstance(name, str) or name not in TASKS:
        raise InputError(f"there is no task {shortened(name)}; choose from {', '.join(TASKS)}")
    return TASKS[name]
