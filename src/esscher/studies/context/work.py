"""What is computed: a passage is a cell."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import pandas as pd
import torch
from numpy.typing import NDArray

from esscher.core.options import AtMost
from esscher.core.validation import Array
from esscher.engine.models.choice import AnyModel, opened_model
from esscher.engine.models.inputs import LayerInputs
from esscher.engine.models.loaded import LoadedModel
from esscher.engine.text.collect import visit_passages
from esscher.engine.text.packing import Passage, first_passages
from esscher.runs.executors import Task
from esscher.runs.folder import Cell, CellRun
from esscher.studies.context.study import ContextStudy, PassageCell

#: First tokens that are always seen.
SINKS = 4


def read_text(study: ContextStudy, loaded: LoadedModel, model: AnyModel) -> ContextWork:
    """Take passages from the beginning of the text."""
    text = first_passages(loaded, study.text, study.passages, study.length, study.column)
    queries = int(study.query_count)
    if text.context < study.length and isinstance(study.query_count, AtMost):
        queries = min(queries, max(1, text.context // 4))
    study = study.fitted(
        text,
        loaded.outline,
        context=text.context - queries + 1,
        query_count=queries,
        passages=len(text),
    )
    study = replace(study, model=loaded.record, text=text.record)
    return ContextWork(study, model, text.passages)


@dataclass(frozen=True, eq=False)
class ContextWork:
    """Context lengths, ready to be measured: see :class:`esscher.runs.old_study.Work`."""

    study: ContextStudy
    model: AnyModel
    passages: tuple[Passage, ...]

    def batches(self, run: CellRun) -> Iterator[Mapping[str, Task]]:
        """Yield all passages."""
        lengths, queries = self.study.lengths, self.study.query_count
        yield {
            name: Task(name, _passage_cell, (self.model, passage, queries, lengths))
            for name, passage in zip(self.study.cells(), self.passages, strict=True)
        }


def _passage_cell(
    model: AnyModel, passage: Passage, queries: int, lengths: NDArray[np.int64]
) -> Cell:
    rows: list[dict[str, Any]] = []
    norms: list[tuple[float, ...]] = []
    windows: list[int | None] = []

    def sink(passage: Passage, capture: LayerInputs) -> None:
        with torch.inference_mode():
            changes, norm = layer_changes(capture, queries, lengths)
        norms.append(tuple(norm.tolist()))
        windows.append(capture.window)
        for head, change in enumerate(changes):
            rows.extend(
                {"layer": capture.layer, "head": head, "length": int(n), "square": float(c)}
                for n, c in zip(lengths[:-1], change, strict=True)
            )

    with opened_model(model) as loaded:
        visit_passages(loaded, [passage], sink)
    return Cell(PassageCell(norms=tuple(norms), windows=tuple(windows)), pd.DataFrame(rows))


def layer_changes(
    inputs: LayerInputs, queries: int, lengths: NDArray[np.int64]
) -> tuple[Array, Array]:
    """Squared changes [heads, doublings] and squared norms [heads] of the last queries of a layer.

    Parameters
    ----------
    inputs
        A whole passage.
    queries
        Number of queries, the last ones of the passage.
    lengths
        Context lengths, each twice the one before it.
    """
    count = inputs.q.shape[2]
    rows = slice(count - queries, count)
    at = torch.arange(count - queries, count)[:, None]
    keys = torch.arange(inputs.k.shape[2])[None, :]
    changes, norms = [], []
    for head in range(inputs.q.shape[1]):
        logits = inputs.logits(0, head, rows, torch.float32)
        value = inputs.v[0, head // inputs.group].to(torch.float32)
        outputs = []
        for length in lengths.tolist():
            seen = (keys < SINKS) | (keys > at - length)
            weights = torch.softmax(logits.masked_fill(~seen, -torch.inf), dim=-1)
            outputs.append(weights @ value)
        stacked = torch.stack(outputs).double()
        change = (stacked[1:] - stacked[:-1]).square().sum(-1).mean(-1)
        changes.append(change.numpy())
        norms.append(float(stacked[-1].square().sum(-1).mean()))
    return np.stack(changes), np.array(norms)
