"""From answered items to scores of tasks, with intervals."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from esscher.core.codec import Interval
from esscher.core.validation import Array
from esscher.math.statistics.intervals import mean_and_interval, wilson
from esscher.runs.folder import Cell
from esscher.studies.plan.records import Mean, TaskScore, TaskScores

#: A task on which the dense model scores less than this is one that it cannot do.
PASSES = 0.5


def task_results(items: Sequence[Cell]) -> dict[str, Any]:
    """Scores of all tasks, those that the dense model cannot do, and totals over the others."""
    tasks = list(dict.fromkeys(cell.about.task for cell in items))
    scores = {task: _scores([cell for cell in items if cell.about.task == task]) for task in tasks}
    cannot = tuple(task for task in tasks if scores[task]["dense"].score < PASSES)
    counted = [cell for cell in items if cell.about.task not in cannot]
    return {
        "tasks": scores,
        "dense_cannot": cannot,
        "totals": _scores(counted) if counted else {},
    }


def _scores(items: Sequence[Cell]) -> TaskScores:
    kinds = np.array([cell.about.haystack for cell in items])
    names = list(dict.fromkeys(items[0].table["configuration"]))
    logs = {name: _values(items, name, "log_probability") for name in names}
    found: TaskScores = {}
    for name in names:
        own = _values(items, name, "score")
        likely = mean_and_interval(logs[name][:, None], highest=0.0)
        found[name] = TaskScore(
            score=float(own.mean()),
            interval=wilson(float(own.sum()), len(own)),
            n=len(own),
            log_probability=likely["mean"][0],
            log_probability_interval=_ends(likely["interval"][0]),
            of_dense=None if name == "dense" else _difference(logs[name] - logs["dense"]),
            **{
                kind: float(own[kinds == kind].mean())
                for kind in ("noise", "text")
                if np.any(kinds == kind)
            },
        )
    return found


def _difference(values: Array) -> Mean:
    found = mean_and_interval(values[:, None])
    return Mean(
        mean=found["mean"][0],
        standard_error=found["standard_error"][0],
        interval=_ends(found["interval"][0]),
    )


def _values(items: Sequence[Cell], name: str, measure: str) -> Array:
    """A measure of every item, for one configuration."""
    out = []
    for cell in items:
        table = cell.table
        own = table[(table["configuration"] == name) & (table["measure"] == measure)]["value"]
        out.append(float(own.iloc[0]))
    return np.array(out)


def _ends(interval: list[float] | None) -> Interval | None:
    return None if interval is None else (interval[0], interval[1])
