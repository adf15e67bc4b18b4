"""What is computed: a passage of a model's text, or a block of replicates, is a cell."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from esscher.engine.models import AnyModel, LoadedModel, opened_model
from esscher.engine.text import Passage, whole_passages
from esscher.math.heads import WeightHead
from esscher.runs.executors import CellExecutor, Task
from esscher.runs.folder import Cell
from esscher.runs.study import OneBatch
from esscher.studies.sparse.heads import measure_passage
from esscher.studies.sparse.laws import Sequences, make_sequences, measure_laws
from esscher.studies.sparse.store import make_cell
from esscher.studies.sparse.study import SparseLawStudy, SparseStudy


def read_text(study: SparseStudy, loaded: LoadedModel, model: AnyModel) -> OneBatch:
    """Take the passages that are asked for."""
    found = whole_passages(
        loaded, study.text, count=study.passages, context=study.context, column=study.column
    )
    study = study.fitted(found, loaded.outline, context=found.context, passages=len(found))
    study = replace(study, model=loaded.record, text=found.record)
    asked = {
        "patterns": study.patterns,
        "budgets": study.budgets,
        "layers": study.layers,
        "heads": study.heads,
        "queries": study.query_count,
        "draws": study.draws,
        "seed": study.seed,
    }
    tasks = {
        name: Task(name, _passage_cell, (model, passage, asked))
        for name, passage in zip(study.cells(), found, strict=True)
    }
    return OneBatch(study, tasks)


def _passage_cell(model: AnyModel, passage: Passage, asked: dict[str, Any]) -> Cell:
    """One passage that a model reads."""
    with opened_model(model) as loaded:
        measured = measure_passage(loaded, passage, **asked)
    return make_cell(measured, asked["patterns"], asked["budgets"])


def draw_queries(study: SparseLawStudy, executor: CellExecutor) -> OneBatch:
    """Draw the queries, which all replicates share."""
    head = study.head
    sequences = make_sequences(head, study.tokens, study.correlation, study.query_count, study.seed)
    source = executor.share((head, sequences))
    tasks = {
        name: Task(
            name, _block_cell, (source, study.patterns, study.budgets, replicates, study.seed)
        )
        for name, replicates in study.blocks().items()
    }
    return OneBatch(study, tasks)


def _block_cell(
    source: tuple[WeightHead, Sequences],
    patterns: tuple[str, ...],
    budgets: tuple[int, ...],
    replicates: range,
    seed: int,
) -> Cell:
    """Some replicates of a law."""
    head, sequences = source
    measured = measure_laws(head, sequences, patterns, budgets, replicates, seed)
    return make_cell(measured, patterns, budgets)
