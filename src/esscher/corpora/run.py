"""``domains``: the same probe on several corpora, and what differs between them beyond chance."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from esscher.corpora.arguments import DomainsRequest, as_level, check_corpora, make_request
from esscher.corpora.assemble import assemble, nothing_yet
from esscher.corpora.blocks import cut_blocks, read_corpus
from esscher.corpora.measure import measure_block
from esscher.corpora.result import Domains
from esscher.models import AnyModel, LoadedModel, load_for_tasks, opened_model
from esscher.runs import Cell, CellRun, open_run, read_run, run_folder
from esscher.runs.executors import CellExecutor, Serial, Task, compute_cells
from esscher.runs.folder import LOG
from esscher.runs.progress import Reporter
from esscher.text import TextSource
from esscher.validation import as_path

KIND = "domains"
#: Fewest blocks of every corpus from which anything is compared.
FEWEST = 3


def domains(
    model: str | LoadedModel,
    texts: Mapping[str, TextSource],
    *,
    blocks: int = 6,
    block_tokens: int | None = None,
    mode: str | None = None,
    context: int | None = None,
    layers: Sequence[int] | None = None,
    heads: Sequence[int] | None = None,
    alpha: float = 0.05,
    measure: bool = False,
    replicates: int = 8,
    seed: int = 0,
    device: str = "cpu",
    dtype: str = "float32",
    revision: str | None = None,
    allow_pickle: bool = False,
    allow_remote_code: bool = False,
    out: str | Path | None = None,
    executor: CellExecutor | None = None,
    progress: bool | None = None,
) -> Domains:
    """Measure every head on several corpora, and say what differs beyond chance.

    Parameters
    ----------
    model
        Hub name, folder, GGUF file, ``"demo:minilm"``, ``"demo:smollm2"``, or a loaded model.
    texts
        Corpora by name; each a source as :func:`esscher.text.read_text` takes it.
    blocks
        Blocks of every corpus, at least 3; spread over the whole of it.
    block_tokens
        Tokens of a block: 2,000 in pooled mode, one passage in context mode, if left out.
    mode
        ``"pooled"``: the tokens of a block as one cloud, the default for encoders. ``"context"``:
        real sequences, the default for decoders.
    context
        Tokens that the model reads at a time: 512 pooled and 1,024 in context mode, if left out.
    layers, heads
        Which ones; all if left out.
    alpha
        False discovery rate, and one minus the level of intervals. Not part of the measurement:
        another one needs no new run.
    measure
        Also measure the exponent of the mean error in every block, by ``replicates`` samples.
    replicates
        Samples of a block with ``measure``.
    seed
        Seed of the places of the blocks, of samples and of permutations.
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
    level = as_level(alpha)
    named = check_corpora(texts)
    # read before the model is loaded: a wrong name should not take half a minute to be told
    corpora = [read_corpus(name, source) for name, source in named.items()]
    executor = executor or Serial()
    loaded, shipped = load_for_tasks(
        executor.remote, model, device=device, dtype=dtype, revision=revision,
        allow_pickle=allow_pickle, allow_remote_code=allow_remote_code,
    )  # fmt: skip
    request = make_request(
        loaded, mode=mode, blocks=blocks, block_tokens=block_tokens, context=context,
        layers=layers, heads=heads, measure=measure, replicates=replicates, seed=seed,
    )  # fmt: skip
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
