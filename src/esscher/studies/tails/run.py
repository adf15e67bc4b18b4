"""``tails``: the sub-Gaussian assumption, tested on the tokens of a model."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

from esscher.core.errors import InputError
from esscher.core.validation import as_path
from esscher.engine.models import AnyModel, LoadedModel, ModelChoice, Outline, opened_model
from esscher.engine.text import PassageSet, TextSource, read_passages
from esscher.runs import Cell, CellRun, open_run, read_run, run_folder
from esscher.runs.executors import CellExecutor, Task, call_alone, compute_cells
from esscher.runs.folder import LOG
from esscher.runs.progress import Reporter
from esscher.studies.tails.arguments import FEWEST, KIND, TailsRequest
from esscher.studies.tails.collect import (
    LayerTokens,
    TokenRows,
    collect_layers,
    layer_groups,
    token_rows,
)
from esscher.studies.tails.measure import measure_layer
from esscher.studies.tails.passages import FEWEST as FEWEST_PASSAGES
from esscher.studies.tails.result import Tails, assemble


def run_tails(
    choice: ModelChoice,
    text: TextSource,
    column: str | None,
    ask: Callable[[Outline], TailsRequest],
    out: str | Path | None,
    executor: CellExecutor,
    progress: bool | None,
) -> Tails:
    """Load the model and test what is asked for; see :func:`esscher.tails`."""
    loaded, shipped = choice.for_tasks(executor.remote, progress)
    request = ask(loaded.outline)
    passages = _passages(loaded, text, request, column)
    configuration: dict[str, Any] = request.to_dict() | {
        **loaded.record,
        "text": passages.source,
        "text_hash": passages.text_hash,
    }
    subject = configuration["model"]["name"]
    with run_folder(out) as folder, open_run(folder, KIND, subject, configuration) as run:
        with Reporter(folder / LOG, progress, "layers") as reporter:
            _measure(loaded, shipped, passages, run, reporter, executor)
        return finish(run)


def load_tails(out: str | Path) -> Tails:
    """Read the results of a stored run, complete or not."""
    return finish(read_run(as_path(out, "out"), KIND), write=False)


def finish(run: CellRun, write: bool = True) -> Tails:
    """Put the layers together and judge them."""
    names = cells(run.configuration)
    parts = [cell.about for name in names if (cell := run.read(name)) is not None]
    try:
        results = assemble(parts, run.about, complete=len(parts) == len(names))
    except (LookupError, TypeError) as error:
        raise InputError(
            f"{run.folder} holds layers that this version of Esscher cannot read ({error!r}); "
            "measure them again in another directory"
        ) from error
    if write:
        run.write_results(results)
    return Tails(results, run.folder)


def cells(configuration: dict[str, Any]) -> list[str]:
    """Names of the cells of a run."""
    return [f"layer-{layer}" for layer in configuration["layers"]]


def _passages(
    loaded: LoadedModel, text: TextSource, request: TailsRequest, column: str | None
) -> PassageSet:
    """As many whole passages as the tokens take, at least four."""
    context = request.context
    found = read_passages(
        loaded, text, tokens=request.tokens, context=context, column=column, least=FEWEST
    )
    # what is left of the text at its end may be a passage of a few tokens only
    whole = [p for p in found.passages if len(p.ids) == context]
    kept = tuple(whole) if len(whole) >= FEWEST_PASSAGES else found.passages
    return replace(found, passages=kept)


def _measure(
    loaded: LoadedModel,
    shipped: AnyModel,
    passages: PassageSet,
    run: CellRun,
    reporter: Reporter,
    executor: CellExecutor,
) -> None:
    configuration = run.configuration
    names = cells(configuration)
    if executor.remote:
        # a layer is a task, which reads the passages itself: keys of all layers are too much to
        # be shipped, and workers need not see the same directories
        text = executor.share(passages)
        heads, seed = configuration["heads"], configuration["seed"]

        def task(name: str) -> Task:
            return Task(name, _layer_cell, (shipped, text, int(name.split("-")[1]), heads, seed))

        compute_cells(run, names, task, reporter, executor)
        return
    missing = run.missing(names)
    reporter.expect(len(names), len(names) - len(missing))
    if not missing:
        return
    rows: TokenRows = token_rows(passages, loaded.causal, configuration["seed"])
    layers = [int(name.split("-")[1]) for name in missing]
    for group in layer_groups(loaded, layers, len(rows.ids)):
        collected = collect_layers(loaded, passages, rows, group)
        for layer in group:
            about = call_alone(
                _about_layer, loaded, layer, collected.pop(layer), rows, configuration["heads"],
                configuration["seed"],
            )  # fmt: skip
            run.write(f"layer-{layer}", Cell(about))
            reporter.advance()


def _layer_cell(
    model: AnyModel, passages: PassageSet, layer: int, heads: list[int], seed: int
) -> Cell:
    """One layer on another machine."""
    with opened_model(model) as loaded:
        rows = token_rows(passages, loaded.causal, seed)
        tokens = collect_layers(loaded, passages, rows, [layer])[layer]
        return Cell(_about_layer(loaded, layer, tokens, rows, heads, seed))


def _about_layer(
    loaded: LoadedModel,
    layer: int,
    tokens: LayerTokens,
    rows: TokenRows,
    heads: list[int],
    seed: int,
) -> dict[str, Any]:
    group = loaded.shape.heads // loaded.shape.key_heads
    return measure_layer(layer, tokens, rows, heads, group, seed, _label(loaded))


def _label(loaded: LoadedModel) -> Callable[[int], str]:
    return lambda token: str(loaded.tokenizer.decode([token]))
