"""``domains``: the same probe on several corpora, and what differs between them beyond chance."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from esscher.core.validation import as_path
from esscher.engine.models import AnyModel, ModelChoice, Outline, opened_model
from esscher.engine.text import TextSource
from esscher.runs import Cell, CellRun, open_run, read_run, run_folder
from esscher.runs.executors import CellExecutor, Task, compute_cells
from esscher.runs.folder import LOG
from esscher.runs.progress import Reporter
from esscher.studies.domains.arguments import KIND, DomainsRequest, as_level
from esscher.studies.domains.assemble import assemble, nothing_yet
from esscher.studies.domains.blocks import cut_blocks, read_corpus
from esscher.studies.domains.measure import measure_block
from esscher.studies.domains.result import Domains

#: Fewest blocks of every corpus from which anything is compared.
FEWEST = 3


def run_domains(
    choice: ModelChoice,
    texts: Mapping[str, TextSource],
    ask: Callable[[Outline], DomainsRequest],
    level: float,
    out: str | Path | None,
    executor: CellExecutor,
    progress: bool | None,
) -> Domains:
    """Load the model and measure the corpora; see :func:`esscher.domains`."""
    # read before the model is loaded: what is wrong inside should not take half a minute to be told
    corpora = [read_corpus(name, source) for name, source in texts.items()]
    loaded, shipped = choice.for_tasks(executor.remote, progress, executor.share)
    request = ask(loaded.outline)
    cut = [cut_blocks(loaded, corpus, request.shape, request.seed) for corpus in corpora]
    configuration = request.to_dict() | {
        **loaded.record,
        "corpora": [corpus.summary() for corpus in corpora],
    }
    subject = configuration["model"]["name"]
    with run_folder(out) as folder, open_run(folder, KIND, subject, configuration) as run:
        with Reporter(folder / LOG, progress, "blocks") as reporter:
            places = cells(configuration)

            def task(name: str) -> Task:
                corpus, block = places[name]
                return Task(name, _block_cell, (shipped, cut[corpus][block], block, request))

            compute_cells(run, list(places), task, reporter, executor)
        return finish(run, level)


def _block_cell(model: AnyModel, text: str, block: int, request: DomainsRequest) -> Cell:
    with opened_model(model) as loaded:
        return measure_block(loaded, text, block, request)


def load_domains(out: str | Path, alpha: float | None = None) -> Domains:
    """Read the results of a stored run, complete or not; with another ``alpha`` they are redone."""
    run = read_run(as_path(out, "out"), KIND)
    stored = run.read_results() or {}
    level = as_level(stored.get("alpha", 0.05) if alpha is None else alpha)
    return finish(run, level, write=False)


def cells(configuration: dict[str, Any]) -> dict[str, tuple[int, int]]:
    """Corpus and block by name of the cell: all corpora take turns, so that a part says something.

    Corpora are numbered: their names are the user's, and no names of files.
    """
    return {
        f"block-{block}-corpus-{corpus}": (corpus, block)
        for block in range(configuration["blocks"])
        for corpus in range(len(configuration["corpora"]))
    }


def finish(run: CellRun, alpha: float, write: bool = True) -> Domains:
    """Compare what is there; results that are there already are not computed again."""
    places = cells(run.configuration)
    names = set(run.names())
    done = [name for name in places if name in names]
    stored = run.read_results()
    if stored is not None and stored.get("cells") == len(done) and stored.get("alpha") == alpha:
        return Domains(stored, run.folder)
    count = len(run.configuration["corpora"])
    found: list[list[Cell]] = [[] for _ in range(count)]
    for name in done:
        cell = run.read(name)
        corpus, block = places[name]
        if cell is not None and len(found[corpus]) == block:
            found[corpus].append(cell)
    blocks = min(len(row) for row in found)
    complete = len(done) == len(places)
    if blocks < FEWEST:
        results = nothing_yet(run.about, len(done), len(places), alpha)
    else:
        results = assemble([row[:blocks] for row in found], run.about, complete, alpha)
    results |= {"cells": len(done)}
    if write:
        run.write_results(results)
    return Domains(results, run.folder)
