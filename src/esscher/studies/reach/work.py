"""What is computed: an item at a length is a cell; held-out items come when scales are known."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import pandas as pd

from esscher.core.errors import InputError
from esscher.engine.models import AnyModel, LoadedModel, opened_model
from esscher.engine.models.rotary import rotation_of
from esscher.engine.models.scaling import LogitScale
from esscher.engine.reading import check_supported
from esscher.engine.text import passages as text_passages
from esscher.engine.text import read_text as read_documents
from esscher.engine.text.documents import TextRecord, source_name
from esscher.engine.text.tasks import TaskItem, task_items
from esscher.runs.cells import Cell, CellRun
from esscher.runs.executors import Task
from esscher.studies.reach.check import check_item
from esscher.studies.reach.measure import log_probability, measure_item
from esscher.studies.reach.records import CheckCell, ItemCell
from esscher.studies.reach.result import assemble, chosen_scales
from esscher.studies.reach.study import ReachStudy

#: Text that measured items are hidden in, and that of held-out items after it, in longest lengths.
PARTS = 3
#: Tokens of a passage in which the text is read.
PASSAGE = 128


def read_text(study: ReachStudy, loaded: LoadedModel, model: AnyModel) -> ReachWork:
    """Hide needles in the first part of the text, and those of the check in the next.

    Raises
    ------
    InputError
        If the text is too short, or a check is longer than a model with learnt positions reads.
    """
    check_supported(loaded)
    name = source_name(study.text)
    stream = text_passages(
        loaded, read_documents(study.text, column=study.column), context=PASSAGE, delimiters=False
    )
    longest = study.lengths[-1]
    text = _tokens(stream, PARTS * longest)
    if len(text) < longest:
        raise InputError(
            f"{name!r} has {len(text):,} tokens, and the longest text takes {longest:,}; give more "
            "text, or shorter lengths"
        )
    study = replace(study, model=loaded.record, text=TextRecord(source=name, hash=stream.text_hash))
    items = {
        cell: _item(loaded, where, text, study.seed) for cell, where in study.item_cells.items()
    }
    held_out: dict[str, TaskItem] = {}
    if study.check_lengths:
        if study.check_lengths[-1] > loaded.max_positions and rotation_of(loaded, 0) is None:
            raise InputError(
                f"check ends at {study.check_lengths[-1]}, but {loaded.name!r} has positions for "
                f"{loaded.max_positions} tokens only; give at most as many"
            )
        rest = _tokens(stream, PARTS * study.check_lengths[-1])
        if len(rest) < study.check_lengths[-1]:
            raise InputError(
                f"{name!r} has {len(rest):,} tokens behind the {len(text):,} that are measured, "
                f"and held-out texts take {study.check_lengths[-1]:,}; give more text"
            )
        held_out = {
            cell: _item(_long(loaded, study.check_lengths[-1]), where, rest, study.seed + 1)
            for cell, where in study.check_cells.items()
        }
    return ReachWork(study, model, items, held_out)


def _tokens(stream: Any, count: int) -> Any:
    """The next tokens of a text, as many as there are."""
    parts, found = [], 0
    while found < count:
        passage = next(stream, None)
        if passage is None:
            break
        parts.append(passage.ids)
        found += len(passage.ids)
    return np.concatenate(parts) if parts else np.zeros(0, np.int64)


def _long(loaded: LoadedModel, length: int) -> LoadedModel:
    """A model that may be asked about texts longer than those it was made for."""
    return replace(loaded, max_positions=max(loaded.max_positions, 2 * length))


def _item(loaded: LoadedModel, where: tuple[str, int, int], text: Any, seed: int) -> TaskItem:
    task, number, length = where
    (item,) = task_items(loaded, task, 1, length, seed=seed, haystack=text, first=number)
    return item


@dataclass(frozen=True, eq=False)
class ReachWork:
    """A reach, ready to be measured: see :class:`esscher.runs.study.Work`."""

    study: ReachStudy
    model: AnyModel
    items: Mapping[str, TaskItem]
    held_out: Mapping[str, TaskItem]

    def batches(self, run: CellRun) -> Iterator[Mapping[str, Task]]:
        """Yield all items, then those of the check."""
        study = self.study
        lengths = {name: study.lengths if n == study.lengths[0] else ()
                   for name, (_, _, n) in study.item_cells.items()}  # fmt: skip
        yield {
            name: Task(name, _item_cell, (self.model, item, lengths[name], study.seed))
            for name, item in self.items.items()
        }
        if not self.held_out or not run.missing(list(study.check_cells)):
            return
        found = {name: cell for name in self.items if (cell := run.read(name)) is not None}
        scales = chosen_scales(assemble(study, found, run))
        yield {
            name: Task(name, _check_cell, (self.model, item, scales))
            for name, item in self.held_out.items()
        }


def _item_cell(model: AnyModel, item: TaskItem, lengths: tuple[int, ...], seed: int) -> Cell:
    with opened_model(model) as loaded:
        found = measure_item(loaded, item, lengths, seed)
    about = ItemCell(
        task=item.task,
        number=item.number,
        length=len(item.context),
        log_probability=log_probability(found.answered.odds),
        right=found.answered.right,
        others=found.others,
        predicted=found.predicted,
    )
    return Cell(about, pd.DataFrame(found.rows))


def _check_cell(model: AnyModel, item: TaskItem, scales: dict[str, LogitScale | None]) -> Cell:
    with opened_model(model) as loaded:
        arms: Any = check_item(loaded, item, scales)
    return Cell(CheckCell(task=item.task, number=item.number, length=len(item.context), arms=arms))
