"""``sparse``: what patterns cost, on synthetic tokens or on the heads of a model."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from itertools import islice
from pathlib import Path
from typing import Any

from numpy.typing import ArrayLike

from esscher.errors import InputError
from esscher.heads import WeightHead
from esscher.laws import STANDARD_LAWS
from esscher.models import AnyModel, LoadedModel, load_for_tasks, opened_model
from esscher.runs import Cell, CellRun, open_run, read_run, run_folder
from esscher.runs.executors import CellExecutor, Serial, Task, compute_cells
from esscher.runs.folder import LOG
from esscher.runs.progress import Reporter
from esscher.sparsity.arguments import (
    LawRequest,
    ModelRequest,
    make_law_request,
    make_model_request,
)
from esscher.sparsity.assemble import assemble
from esscher.sparsity.heads import measure_passage
from esscher.sparsity.laws import blocks, make_sequences, measure_laws
from esscher.sparsity.result import Sparsity
from esscher.sparsity.sequences import Sequences
from esscher.sparsity.store import KIND, make_cell, read_part
from esscher.text import Passage, TextSource, passages, read_text
from esscher.text.documents import source_name
from esscher.validation import as_path

#: The text that a model reads unless another one is given.
TEXT = "demo:docs"


def sparse(
    subject: str | LoadedModel,
    text: TextSource | None = None,
    *,
    patterns: str | Iterable[str] = "all",
    budgets: ArrayLike | None = None,
    horizon: float | None = None,
    dim: int | None = None,
    spectrum: ArrayLike | None = None,
    tau: ArrayLike | float | None = None,
    df: float | None = None,
    correlation: float | None = None,
    tokens: int | None = None,
    replicates: int | None = None,
    context: int | None = None,
    passages: int | None = None,
    layers: Sequence[int] | None = None,
    heads: Sequence[int] | None = None,
    draws: int | None = None,
    queries: int | None = None,
    seed: int = 0,
    column: str | None = None,
    device: str | None = None,
    dtype: str | None = None,
    revision: str | None = None,
    allow_pickle: bool = False,
    allow_remote_code: bool = False,
    out: str | Path | None = None,
    executor: CellExecutor | None = None,
    progress: bool | None = None,
) -> Sparsity:
    """Measure the error of sparse patterns against dense attention, as their budget grows.

    Parameters
    ----------
    subject
        A law of tokens (``"gaussian"``, ...), or a model: hub name, folder, GGUF file,
        ``"demo:minilm"``, ``"demo:smollm2"``, or a loaded one.
    text
        For a model: file, folder, ``"demo:docs"``, ...; see :func:`esscher.text.read_text`.
    patterns
        Names of patterns, or ``"all"``; random selection is always among them.
    budgets
        Numbers of keys r that a query attends; 7 from 32 on if left out.
    horizon, dim, spectrum, tau, df
        For a law: the head, as for a sweep.
    correlation
        For Gaussian tokens: rho of an AR(1) sequence with the same marginal.
    tokens, replicates
        For a law: length of a sequence, and number of sequences.
    context, passages
        For a model: tokens of a passage, and number of passages.
    layers, heads
        For a model: which ones; all if left out.
    draws
        For a model: selections of every random pattern on a passage.
    queries
        Number of queries at which errors are measured.
    seed
        Seed of tokens, queries and selections.
    column
        Column of a table that holds the text.
    device, dtype, revision, allow_pickle, allow_remote_code
        How to load the model.
    out
        Directory of the run; the same call resumes it.
    executor
        Who computes the cells: this process, or a cluster from :func:`esscher.connect_cluster` or
        :func:`esscher.start_cluster`.
    progress
        Whether to draw a bar; by default if standard error is a terminal.
    """
    of_law = {
        "horizon": horizon, "dim": dim, "spectrum": spectrum, "tau": tau, "df": df,
        "correlation": correlation, "tokens": tokens, "replicates": replicates,
    }  # fmt: skip
    of_model = {
        "context": context, "passages": passages, "layers": layers, "heads": heads, "draws": draws,
    }  # fmt: skip
    loading = {
        "text": text, "column": column, "device": device, "dtype": dtype, "revision": revision,
        "allow_pickle": allow_pickle or None, "allow_remote_code": allow_remote_code or None,
    }  # fmt: skip
    common: dict[str, Any] = {
        "patterns": patterns, "budgets": budgets, "queries": queries, "seed": seed,
    }  # fmt: skip
    if isinstance(subject, str) and subject in STANDARD_LAWS:
        _refuse(of_model | loading, f"the law {subject!r}", "a model")
        law = make_law_request(subject, **of_law, **common)  # type: ignore[arg-type]
        return _run_laws(law, out, executor or Serial(), progress)
    name = subject if isinstance(subject, str) else getattr(subject, "name", subject)
    _refuse(of_law, f"the model {name!r}", f"a law ({', '.join(STANDARD_LAWS)})")
    executor = executor or Serial()
    loaded, shipped = load_for_tasks(
        executor.remote, subject, device=device or "cpu", dtype=dtype or "float32",
        revision=revision, allow_pickle=allow_pickle, allow_remote_code=allow_remote_code,
    )  # fmt: skip
    request = make_model_request(loaded, **of_model, **common)  # type: ignore[arg-type]
    source = TEXT if text is None else text
    return _run_model(loaded, shipped, source, column, request, out, executor, progress)


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


def _run_laws(
    request: LawRequest, out: str | Path | None, executor: CellExecutor, progress: bool | None
) -> Sparsity:
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


def _run_model(
    loaded: LoadedModel,
    shipped: AnyModel,
    text: TextSource,
    column: str | None,
    request: ModelRequest,
    out: str | Path | None,
    executor: CellExecutor,
    progress: bool | None,
) -> Sparsity:
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
            f"but {request.passages} are asked for; give more text, fewer passages or shorter ones"
        )
    return found, stream.text_hash


def _refuse(options: dict[str, Any], subject: str, other: str) -> None:
    """Refuse options that would do nothing."""
    for name, value in options.items():
        if value is not None:
            raise InputError(f"{name} is given, but {subject} has no use for it: it is for {other}")
