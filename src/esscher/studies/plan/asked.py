"""Does what is kept answer questions? Generated tasks on the caches of all configurations."""

from __future__ import annotations

import pandas as pd

from esscher.engine.cache.budgets import Keeping, Score
from esscher.engine.cache.prompt import ObservedPrompt
from esscher.engine.models import LoadedModel
from esscher.engine.text.tasks import TaskItem, ask, ask_each
from esscher.runs.folder import Cell
from esscher.studies.plan.configurations import Chosen, count_kept, kept_layers
from esscher.studies.plan.records import END, PlanCell


def item_cell(
    loaded: LoadedModel,
    item: TaskItem,
    chosen: Chosen,
    keeping: Keeping,
    score: Score,
    seed: int,
) -> Cell:
    """Ask the question of an item with a dense cache, and with those of all configurations.

    The table is as that of a checked passage, with the measures ``score`` and
    ``log_probability``.
    """
    prompt = ObservedPrompt(loaded, item.context, keeping, score, chosen.rules)
    kept = kept_layers(prompt, chosen, (f"task {item.task} {item.haystack}", item.number), seed)
    reduced = ask_each(loaded, prompt.reduced(*kept.values()), item, len(kept))
    found_by = {"dense": ask(loaded, prompt.cache, item), **dict(zip(kept, reduced, strict=True))}
    rows: list[tuple[str, int, str, float]] = []
    answers: dict[str, str] = {}
    for name, found in found_by.items():
        answers[name] = found.text
        rows += [
            (name, END, "score", found.score),
            (name, END, "log_probability", found.log_probability),
        ]
    about = PlanCell(
        task=item.task,
        haystack=item.haystack,
        answer=item.answer,
        answers=answers,
        kept={name: count_kept(own) for name, own in kept.items()},
    )
    return Cell(about, pd.DataFrame(rows, columns=["configuration", "layer", "measure", "value"]))
