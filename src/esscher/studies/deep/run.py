"""``deep``: how the sampling error of attention travels through the layers of a stack."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import fields
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np

from esscher.core.errors import InputError
from esscher.core.validation import Array, as_path
from esscher.engine.models import AnyModel, LoadedModel, ModelChoice, Outline, opened_model
from esscher.engine.reading import check_supported
from esscher.engine.text import Passage, PassageSet, TextSource, read_text
from esscher.engine.text import passages as text_passages
from esscher.engine.text.documents import source_name
from esscher.math.limits import GaussianStack, StackLimit
from esscher.runs import Cell, CellRun, open_run, read_run, run_folder
from esscher.runs.executors import CellExecutor, Task, compute_cells
from esscher.runs.folder import LOG
from esscher.runs.progress import Reporter
from esscher.studies.deep.arguments import (
    GAUSSIAN,
    KIND,
    TERCILES,
    ModelRequest,
    StackRequest,
    check_budgets,
)
from esscher.studies.deep.horizons import head_horizons, split_terciles
from esscher.studies.deep.measure import PassageMeasurement
from esscher.studies.deep.model_results import model_results
from esscher.studies.deep.passes import SampledPassage, certain_keys
from esscher.studies.deep.result import Depth, headline
from esscher.studies.deep.simulate import measure_replicate
from esscher.studies.deep.stack import random_stack
from esscher.studies.deep.stack_results import stack_results


def load_deep(out: str | Path) -> Depth:
    """Read the results of a stored run, complete or not."""
    return finish(read_run(as_path(out, "out"), KIND), write=False)


def finish(run: CellRun, write: bool = True) -> Depth:
    """Put the parts together; results that are there already are not fitted again."""
    configuration = run.configuration
    request = _request(configuration)
    found = {name: part for name in request.cells if (part := run.read(name)) is not None}
    stored = run.read_results()
    if stored is not None and stored.get("cells") == len(found):
        return Depth(stored, run.folder)
    results: dict[str, Any] = {
        "kind": KIND,
        "complete": len(found) == len(request.cells),
        "configuration": configuration,
        "versions": run.about["versions"],
        "created": run.about["created"],
        "cells": len(found),
    }
    if isinstance(request, StackRequest):
        results |= stack_results(list(found.values()), request, *_stack(request))
    else:
        looked = found.pop("horizons", None)
        horizons = None if looked is None else np.array(looked.about["horizons"])
        causal = bool(configuration["model"]["causal"])
        results |= model_results(list(found.values()), horizons, request, causal)
    results["headline"] = headline(results)
    if write:
        run.write_results(results)
    return Depth(results, run.folder)


def _request(configuration: dict[str, Any]) -> StackRequest | ModelRequest:
    """What a stored configuration asked for."""
    kind = StackRequest if configuration.get("stack") == GAUSSIAN else ModelRequest
    values: dict[str, Any] = {}
    for field in fields(kind):
        value = configuration[field.name]
        values[field.name] = tuple(value) if isinstance(value, list) else value
    return kind(**values)


def _stack(request: StackRequest) -> tuple[GaussianStack, StackLimit]:
    return random_stack(
        request.depth, request.dim, request.horizon, residual=request.residual,
        output_scale=request.output_scale, tau=request.tau, seed=request.seed,
    )  # fmt: skip


def run_stack(
    request: StackRequest, out: str | Path | None, executor: CellExecutor, progress: bool | None
) -> Depth:
    """Measure a Gaussian stack."""
    stack, limit = _stack(request)  # an impossible stack is said before anything is written
    with run_folder(out) as folder, open_run(folder, KIND, GAUSSIAN, request.to_dict()) as run:
        source = executor.share((stack, limit))
        with Reporter(folder / LOG, progress, "cells") as reporter:
            compute_cells(
                run,
                request.cells,
                lambda name: Task(name, _stack_cell, (source, request, int(name.split("-")[1]))),
                reporter,
                executor,
            )
        return finish(run)


def _stack_cell(
    source: tuple[GaussianStack, StackLimit], request: StackRequest, replicate: int
) -> Cell:
    stack, limit = source
    return measure_replicate(stack, limit, request.sizes, replicate, request.seed)


def run_model(
    choice: ModelChoice,
    text: TextSource,
    column: str | None,
    ask: Callable[[Outline], ModelRequest],
    out: str | Path | None,
    executor: CellExecutor,
    progress: bool | None,
) -> Depth:
    """Load the model and measure what is asked for."""
    loaded, shipped = choice.for_tasks(executor.remote, progress)
    check_supported(loaded)
    request = ask(loaded.outline)
    passages = _whole_passages(loaded, text, column, request)
    configuration = request.to_dict() | {
        **loaded.record,
        "text": passages.source,
        "text_hash": passages.text_hash,
    }
    subject = configuration["model"]["name"]
    with run_folder(out) as folder, open_run(folder, KIND, subject, configuration) as run:
        dense = DensePasses()  # in this process; workers have their own
        with Reporter(folder / LOG, progress, "cells") as reporter:

            def horizons_task(name: str) -> Task:
                return Task(name, _horizons_cell, (shipped, tuple(passages)))

            def passage_task(name: str) -> Task:
                _, number, part = name.split("-")
                variants: dict[str, Any] = {part: (part, None)}
                if part == "terciles":
                    heads = split_terciles(_stored_horizons(run), request.terciles)
                    variants = {t: (request.tercile_mode, heads[t]) for t in TERCILES}
                passage = passages[int(number)]
                kept = None if executor.remote else dense
                return Task(name, _passage_cell, (shipped, passage, variants, request, kept))

            # which heads are in which tercile must be known before any of them is measured
            first = [name for name in request.cells if name == "horizons"]
            rest = [name for name in request.cells if name != "horizons"]
            missing = run.missing(request.cells)
            reporter.expect(len(request.cells), len(request.cells) - len(missing))
            compute_cells(run, first, horizons_task, reporter, executor, expected=True)
            compute_cells(run, rest, passage_task, reporter, executor, expected=True)
        return finish(run)


def _horizons_cell(model: AnyModel, passages: tuple[Passage, ...]) -> Cell:
    """Horizon of every head, mean over the passages."""
    with opened_model(model) as loaded:
        found = [head_horizons(SampledPassage(loaded, passage)) for passage in passages]
    return Cell({"horizons": np.asarray(np.mean(found, axis=0)).tolist()})


def _stored_horizons(run: CellRun) -> Array:
    part = run.read("horizons")
    assert part is not None  # computed before all other cells
    return np.array(part.about["horizons"])


class DensePasses:
    """The dense pass of the last passage, which serves several cells."""

    def __init__(self) -> None:
        self._last: tuple[LoadedModel, tuple[int, bytes], PassageMeasurement] | None = None

    def of(self, loaded: LoadedModel, passage: Passage) -> PassageMeasurement:
        """The passage, read by the model."""
        # the number too: samples depend on it, and passages of a text may be equal
        which = passage.number, passage.ids.tobytes()
        if self._last is None or self._last[0] is not loaded or self._last[1] != which:
            self._last = None  # two passages need not be in memory together
            self._last = (loaded, which, PassageMeasurement(SampledPassage(loaded, passage)))
        return self._last[2]


#: That of a worker of a cluster.
_DENSE = DensePasses()


def _passage_cell(
    model: AnyModel,
    passage: Passage,
    variants: dict[str, Any],
    request: ModelRequest,
    dense: DensePasses | None = None,
) -> Cell:
    """Some variants on one passage."""
    with opened_model(model) as loaded:
        measured = (_DENSE if dense is None else dense).of(loaded, passage)
        return measured.cell(variants, request.budgets, request.draws, request.seed)


def _whole_passages(
    loaded: LoadedModel, text: TextSource, column: str | None, request: ModelRequest
) -> PassageSet:
    """As many whole passages as are asked for, with room for every budget."""
    stream = text_passages(
        loaded, read_text(text, column=column), context=request.context, keep_short=False
    )
    chosen = tuple(islice(stream, request.passages))
    name = source_name(text)
    if len(chosen) < request.passages:
        raise InputError(
            f"{name!r} has only {len(chosen)} whole passages of {request.context} tokens, but "
            f"{request.passages} are asked for; give more text, a shorter context"
            + (f", or ask for at most {len(chosen)} passages" if chosen else "")
        )
    eligible = [int(np.count_nonzero(~certain_keys(loaded, p))) for p in chosen]
    check_budgets(request.budgets, eligible)
    return PassageSet(chosen, name, stream.text_hash, stream.text_tokens, request.context)
