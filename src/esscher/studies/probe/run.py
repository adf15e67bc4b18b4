"""``probe``: the numbers for every layer and head of a model on a text."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from esscher.core.errors import InputError
from esscher.core.streams import random_stream
from esscher.core.validation import Array, as_path
from esscher.engine.models import (
    AnyModel,
    LayerCapture,
    LoadedModel,
    ModelChoice,
    Outline,
    head_weights,
    opened_model,
)
from esscher.engine.sampled.context import delimiter_shares, measure_context, split
from esscher.engine.sampled.layer import LayerMeasurement
from esscher.engine.sampled.outputs import OutputProjection
from esscher.engine.sampled.pooled import measure_pooled
from esscher.engine.sampled.sizes import FEWEST_KEYS
from esscher.engine.text import (
    CloudFile,
    Passage,
    PassageSet,
    TextSource,
    read_passages,
    seen_cloud,
    visit_passages,
)
from esscher.runs import Cell, CellRun, open_run, read_run, run_folder
from esscher.runs.executors import CellExecutor, Task, compute_cells
from esscher.runs.folder import LOG
from esscher.runs.progress import Reporter
from esscher.studies.probe.arguments import KIND, ProbeRequest
from esscher.studies.probe.clouds import collected_clouds
from esscher.studies.probe.combine import combine
from esscher.studies.probe.describe import describe_head, one_sided_psi
from esscher.studies.probe.result import Probe, assemble
from esscher.studies.probe.store import LAYOUT, make_cell, read_part

#: Passages by which delimiters and hidden states are judged in pooled mode.
LOOKED_AT = 2


def run_probe(
    choice: ModelChoice,
    text: TextSource,
    column: str | None,
    ask: Callable[[Outline], ProbeRequest],
    out: str | Path | None,
    executor: CellExecutor,
    progress: bool | None,
) -> Probe:
    """Load the model and measure what is asked for; see :func:`esscher.probe`."""
    loaded, shipped = choice.for_tasks(executor.remote, progress)
    request = ask(loaded.outline)
    passages = read_passages(
        loaded, text, tokens=request.tokens, context=request.context, column=column,
        least=FEWEST_KEYS,
    )  # fmt: skip
    configuration = request.to_dict() | {
        "layout": LAYOUT,
        **loaded.record,
        "text": passages.source,
        "text_hash": passages.text_hash,
    }
    subject = configuration["model"]["name"]
    with run_folder(out) as folder, open_run(folder, KIND, subject, configuration) as run:
        with Reporter(folder / LOG, progress, "cells") as reporter:
            measure = _pooled if request.mode == "pooled" else _context
            measure(loaded, shipped, passages, request, run, reporter, executor)
        return finish(run)


def load_probe(out: str | Path) -> Probe:
    """Read the results of a stored run, complete or not."""
    run = read_run(as_path(out, "out"), KIND)
    layout = run.configuration.get("layout", 1)
    if layout != LAYOUT:
        raise InputError(
            f"{out} holds a probe of layout {layout}; this version of Esscher reads {LAYOUT}: "
            "probe the model again in another directory"
        )
    return finish(run, write=False)


def finish(run: CellRun, write: bool = True) -> Probe:
    """Put the parts together; results that are there already are not fitted again."""
    configuration = run.configuration
    names = cells(configuration)
    parts = [part for name in names if (part := read_part(run, name)) is not None]
    stored = run.read_results()
    if stored is not None and stored.get("cells") == len(parts):
        return Probe(stored, run.folder)
    by_layer: dict[int, list[LayerMeasurement]] = {}
    for part in parts:
        for measurement in part:
            by_layer.setdefault(measurement.layer, []).append(measurement)
    layers = [combine(by_layer[layer]) for layer in sorted(by_layer)]
    results = assemble(layers, run.about, complete=len(parts) == len(names)) | {"cells": len(parts)}
    if write:
        run.write_results(results)
    return Probe(results, run.folder)


def cells(configuration: dict[str, Any]) -> list[str]:
    """Names of the cells of a run."""
    if configuration["mode"] == "pooled":
        return [f"layer-{layer}" for layer in configuration["layers"]]
    # as many passages as the tokens fill, at least one
    count = max(1, configuration["tokens"] // configuration["context"])
    return [f"passage-{number}" for number in range(count)]


def _pooled(
    loaded: LoadedModel,
    shipped: AnyModel,
    passages: PassageSet,
    request: ProbeRequest,
    run: CellRun,
    reporter: Reporter,
    executor: CellExecutor,
) -> None:
    names = cells(run.configuration)
    missing = [n for n in names if read_part(run, n) is None]
    reporter.expect(len(request.layers), len(request.layers) - len(missing))
    if not missing:
        return
    layers = [_layer_of(name) for name in missing]
    shares, hidden = _look(loaded, list(passages)[:LOOKED_AT], layers)
    for cloud in collected_clouds(
        loaded, passages, request, layers, run.folder, reporter, remote=executor.remote
    ):
        tokens = str(cloud.folder.resolve()) if executor.remote else cloud

        def task(name: str, tokens: CloudFile | str = tokens) -> Task:
            layer = _layer_of(name)
            looked = shares[layer], hidden[layer]
            return Task(name, _layer_cell, (shipped, tokens, layer, looked, request))

        here = [name for name in missing if _layer_of(name) in cloud.layers]
        compute_cells(run, here, task, reporter, executor, expected=True)


def _layer_of(cell: str) -> int:
    return int(cell.split("-")[1])


def _layer_cell(
    model: AnyModel,
    tokens: CloudFile | str,
    layer: int,
    looked: tuple[Array, Array],
    request: ProbeRequest,
) -> Cell:
    """One layer in pooled mode; on another machine, the cloud is mapped from its files."""
    cloud = seen_cloud(tokens) if isinstance(tokens, str) else tokens
    shares, hidden = looked
    with opened_model(model) as loaded:
        weights = head_weights(loaded, layer)
        label = _labels(loaded, np.asarray(cloud.token_ids))
        measured, numbers = measure_pooled(
            cloud, layer, request.sizes, request.replicates, request.seed, request.sampling,
            OutputProjection.of(weights.W_o[list(request.heads)]),
        )  # fmt: skip
        if request.sampling == "without":
            measured = _corrected(measured, cloud.rows)
        psi = one_sided_psi(weights, hidden)
        stats = []
        for head, number in zip(measured.heads, numbers, strict=True):
            found = describe_head(number, request.sizes, request.seed, label)
            found["delimiter_share"] = float(shares[head])
            found["psi"]["one-sided"] = None if psi is None else psi[head]
            stats.append(found)
    return make_cell([replace(measured, stats=stats)])


def _context(
    loaded: LoadedModel,
    shipped: AnyModel,
    passages: PassageSet,
    request: ProbeRequest,
    run: CellRun,
    reporter: Reporter,
    executor: CellExecutor,
) -> None:
    names = cells(run.configuration)
    for name in names:
        read_part(run, name)  # damaged ones are an error before anything is computed
    draws = -(-request.replicates // len(names))

    def task(name: str) -> Task:
        passage = passages.passages[int(name.split("-")[1])]
        return Task(name, _passage_cell, (shipped, passage, draws, request))

    compute_cells(run, names, task, reporter, executor)


def _passage_cell(model: AnyModel, passage: Passage, draws: int, request: ProbeRequest) -> Cell:
    """One passage in context mode."""
    with opened_model(model) as loaded:
        rng = random_stream(request.seed, "probe queries", passage.number)
        asking, keys = split(len(passage.ids), passage.is_delimiter, loaded.causal, rng)
        layers: list[LayerMeasurement] = []

        def sink(passage: Passage, capture: LayerCapture) -> None:
            with torch.inference_mode():
                measured, numbers, sinks = measure_context(
                    capture, asking, keys, request.sizes, draws, request.seed, passage.number,
                    OutputProjection.of(head_weights(loaded, capture.layer).W_o),
                )  # fmt: skip
                shares = delimiter_shares(capture, passage.is_delimiter)
            label = _labels(loaded, passage.ids[keys])
            stats = []
            for h, number in enumerate(numbers):
                found = describe_head(number, request.sizes, request.seed, label, sinks[h])
                found["delimiter_share"] = float(shares[h])
                found["psi"]["one-sided"] = None
                stats.append(found)
            layers.append(_chosen(replace(measured, stats=stats), request.heads))

        visit_passages(loaded, [passage], sink, layers=request.layers)
    return make_cell(layers)


def _look(
    loaded: LoadedModel, passages: Sequence[Passage], layers: Sequence[int]
) -> tuple[dict[int, Array], dict[int, Array]]:
    """Attention that delimiters take, and hidden states, by layer, from a few passages."""
    shares: dict[int, list[Array]] = {layer: [] for layer in layers}
    hidden: dict[int, list[Array]] = {layer: [] for layer in layers}

    def sink(passage: Passage, capture: LayerCapture) -> None:
        shares[capture.layer].append(delimiter_shares(capture, passage.is_delimiter))
        if capture.hidden is not None:
            text = torch.from_numpy(~passage.is_delimiter)
            hidden[capture.layer].append(capture.hidden[0][text].to(torch.float64).numpy())

    visit_passages(loaded, passages, sink, layers=layers)
    return (
        {layer: np.mean(found, axis=0) for layer, found in shares.items()},
        {layer: np.concatenate(found) for layer, found in hidden.items() if found},
    )


def _corrected(measured: LayerMeasurement, tokens: int) -> LayerMeasurement:
    """Errors of samples without replacement, divided by sqrt((N - n)/(N - 1))."""
    n = np.asarray(measured.sizes, dtype=np.float64)
    factor = (tokens - n) / (tokens - 1)
    products = measured.products
    return replace(
        measured,
        errors=measured.errors / np.sqrt(factor),
        products=None if products is None else products / factor[:, None, None],
    )


def _chosen(measured: LayerMeasurement, heads: tuple[int, ...]) -> LayerMeasurement:
    """Some heads of a layer, and the layer as a whole."""
    units = [*heads, len(measured.heads)]
    products = measured.products
    return replace(
        measured,
        heads=heads,
        errors=measured.errors[:, units],
        relative=measured.relative[units],
        reference_error=measured.reference_error[units],
        stats=[measured.stats[h] for h in heads],
        products=None if products is None else products[..., heads, :][..., heads],
    )


def _labels(loaded: LoadedModel, ids: NDArray[np.int64]) -> Callable[[int], str]:
    return lambda row: str(loaded.tokenizer.decode([int(ids[row])]))
