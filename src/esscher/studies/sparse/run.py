"""``sparse``: what patterns cost, on synthetic tokens or on the heads of a model."""

from __future__ import annotations

from collections.abc import Callable
from itertools import islice
from pathlib import Path
from typing import Any

from esscher.core.errors import InputError
from esscher.core.validation import as_path
from esscher.engine.models import AnyModel, LoadedModel, ModelChoice, Outline, opened_model
from esscher.engine.text import Passage, TextSource, passages, read_text
from esscher.engine.text.documents import source_name
from esscher.math.heads import WeightHead
from esscher.runs import Cell, CellRun, open_run, read_run, run_folder
from esscher.runs.executors import CellExecutor, Task, compute_cells
from esscher.runs.folder import LOG
from esscher.runs.progress import Reporter
from esscher.studies.sparse.arguments import KIND, LawRequest, ModelRequest
from esscher.studies.sparse.assemble import assemble
from esscher.studies.sparse.heads import measure_passage
from esscher.studies.sparse.laws import blocks, make_sequences, measure_laws
from esscher.studies.sparse.result import Sparsity
from esscher.studies.sparse.sequences import Sequences
from esscher.studies.sparse.store import make_cell, read_part


def load_sparse(out: str | Path) -> Sparsity:
    """Read the results of a stored study, complete or not."""
    return finish(read_run(as_path(out, "out"), KIND), write=False)


def finish(run: CellRun, write: bool = True) -> Sparsity:
    """Put the cells together; results that are there already are not fitted again."""
    names = cells(run.configuration)
    stored = run.read_results()
    parts = [part for name in names if (part := read_part(run, name)) is not None]
    if stored is not None and stored.get("cells") == len(parts):
        return Sparsity(stored, run.folder)
    results = assemble(parts, run.about, complete=len(parts) == len(names))
    results["cells"] = len(parts)
    found = Sparsity(results, run.folder)
    results["headline"] = found.headline
    if write:
        run.write_results(results)
    return found


def cells(configuration: dict[str, Any]) -> list[str]:
    """Names of the cells of a run."""
    if "model" in configuration:
        return [f"passage-{number}" for number in range(configuration["passages"])]
    return [f"replicates-{part[0]}" for part in blocks(configuration["replicates"])]


def run_laws(
    request: LawRequest, out: str | Path | None, executor: CellExecutor, progress: bool | None
) -> Sparsity:
    """Measure what is asked of synthetic tokens."""
    head = request.head
    sequences = make_sequences(
        head, request.tokens, request.correlation, request.queries, request.seed
    )
    configuration = request.to_dict()
    with run_folder(out) as folder, open_run(folder, KIND, request.law, configuration) as run:
        with Reporter(folder / LOG, progress, "cells") as reporter:
            names = cells(configuration)
            parts = dict(zip(names, blocks(request.replicates), strict=True))
            source = executor.share((head, sequences))
            compute_cells(
                run,
                names,
                lambda name: Task(name, _law_cell, (source, request, parts[name])),
                reporter,
                executor,
            )
        return finish(run)


def _law_cell(
    source: tuple[WeightHead, Sequences], request: LawRequest, replicates: tuple[int, ...]
) -> Cell:
    """Some replicates of a law."""
    head, sequences = source
    measured = measure_laws(
        head, sequences, request.patterns, request.budgets, replicates, request.seed
    )
    return make_cell(measured, request.patterns, request.budgets)


def run_model(
    choice: ModelChoice,
    text: TextSource,
    column: str | None,
    ask: Callable[[Outline], ModelRequest],
    out: str | Path | None,
    executor: CellExecutor,
    progress: bool | None,
) -> Sparsity:
    """Load the model and measure what is asked for."""
    loaded, shipped = choice.for_tasks(executor.remote, progress)
    request = ask(loaded.outline)
    found, text_hash = _read(loaded, text, column, request)
    configuration = request.to_dict() | {
        **loaded.record,
        "text": source_name(text),
        "text_hash": text_hash,
    }
    subject = configuration["model"]["name"]
    with run_folder(out) as folder, open_run(folder, KIND, subject, configuration) as run:
        with Reporter(folder / LOG, progress, "cells") as reporter:
            names = cells(configuration)
            passages_by_name = dict(zip(names, found, strict=True))
            compute_cells(
                run,
                names,
                lambda name: Task(name, _model_cell, (shipped, passages_by_name[name], request)),
                reporter,
                executor,
            )
        return finish(run)


def _model_cell(model: AnyModel, passage: Passage, request: ModelRequest) -> Cell:
    """One passage that a model reads."""
    with opened_model(model) as loaded:
        measured = measure_passage(
            loaded, passage, request.patterns, request.budgets,
            layers=request.layers, heads=request.heads, queries=request.queries,
            draws=request.draws, seed=request.seed,
        )  # fmt: skip
    return make_cell(measured, request.patterns, request.budgets)


def _read(
    loaded: LoadedModel, text: TextSource, column: str | None, request: ModelRequest
) -> tuple[list[Passage], str]:
    """The whole passages that are asked for, and the hash of the text they are from."""
    stream = passages(
        loaded, read_text(text, column=column), context=request.context, keep_short=False
    )
    found = list(islice(stream, request.passages))
    if len(found) < request.passages:
        raise InputError(
            f"{source_name(text)!r} has only {len(found)} passages of {request.context} tokens, "
            f"but {request.passages} are asked for; give more text, a shorter context"
            + (f", or ask for at most {len(found)} passages" if found else "")
        )
    return found, stream.text_hash
