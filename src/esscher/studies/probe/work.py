"""What is computed: a layer is a cell in pooled mode, a passage in context mode."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace

import numpy as np
import torch
from numpy.typing import NDArray

from esscher.core.errors import InputError
from esscher.core.options import AtMost
from esscher.core.streams import random_stream
from esscher.core.validation import Array
from esscher.engine.models import (
    AnyModel,
    LayerCapture,
    LoadedModel,
    head_weights,
    opened_model,
)
from esscher.engine.sampled.context import delimiter_shares, measure_context, split
from esscher.engine.sampled.layer import LayerMeasurement, OutputProjection
from esscher.engine.sampled.pooled import PassageMoments, measure_pooled
from esscher.engine.sampled.sizes import FEWEST_KEYS, needed_context
from esscher.engine.text import (
    CloudFile,
    Passage,
    PassageSet,
    read_passages,
    seen_cloud,
    visit_passages,
)
from esscher.runs.executors import CellExecutor, Task
from esscher.runs.folder import Cell, CellRun
from esscher.studies.probe.cells import LayerFound, make_cell
from esscher.studies.probe.clouds import collected_clouds
from esscher.studies.probe.describe import describe_head, one_sided_psi
from esscher.studies.probe.study import ProbeStudy


def read_text(
    study: ProbeStudy, loaded: LoadedModel, model: AnyModel, executor: CellExecutor
) -> ProbeWork:
    """Cut the text into passages."""
    pooled, context = study.mode == "pooled", study.context
    least = FEWEST_KEYS if pooled else needed_context(loaded.outline)
    found = read_passages(
        loaded, study.text, tokens=study.tokens, context=context, column=study.column, least=least
    )
    longest = max(len(passage.ids) for passage in found)
    if not pooled and isinstance(context, AtMost):
        context = min(int(context), longest)
    if not pooled and context > longest:
        raise InputError(
            f"{found.source!r} has only {found.text_tokens} tokens, less than a passage of "
            f"{context}; give more text, or a context of at most {longest}"
        )
    tokens = min(int(study.tokens), found.text_tokens)
    study = replace(study, tokens=tokens, context=context).fill(loaded.outline)
    study = replace(study, model=loaded.record, text=found.record)
    return ProbeWork(study, loaded, model, found, executor)


@dataclass(frozen=True, eq=False)
class ProbeWork:
    """A probe that is ready: see :class:`esscher.runs.study.Work`."""

    study: ProbeStudy
    loaded: LoadedModel
    model: AnyModel
    passages: PassageSet
    executor: CellExecutor

    def batches(self, run: CellRun) -> Iterator[Mapping[str, Task]]:
        """Yield layers, as many as the disk has room for, or passages."""
        return self._layers(run) if self.study.mode == "pooled" else self._passages()

    def _layers(self, run: CellRun) -> Iterator[Mapping[str, Task]]:
        layers = [int(name.removeprefix("layer-")) for name in run.missing(self.study.cells())]
        if not layers:
            return
        asked = self._asked
        linear = [layer for layer in layers if head_weights(self.loaded, layer).linear]
        seen = PassageMoments(self.passages, asked.tokens, linear)
        for cloud in collected_clouds(
            self.loaded, self.passages, asked, layers, run, remote=self.executor.remote,
            watch=lambda read, layer: seen.take(read, _scaled(layer, asked.alpha)),
        ):  # fmt: skip
            tokens = str(cloud.folder.resolve()) if self.executor.remote else cloud
            shares = seen.delimiters
            yield {
                name: Task(
                    name,
                    _layer_cell,
                    (self.model, tokens, layer, shares[layer], seen.covariance(layer), asked),
                )
                for layer in layers
                if layer in cloud.layers
                for name in [f"layer-{layer}"]
            }

    def _passages(self) -> Iterator[Mapping[str, Task]]:
        names = self.study.cells()
        draws = -(-self.study.samples // len(names))
        yield {
            name: Task(
                name,
                _passage_cell,
                (self.model, self.passages.passages[number], draws, self._asked),
            )
            for number, name in enumerate(names)
        }

    @property
    def _asked(self) -> ProbeStudy:
        """The study as tasks take it: workers know nothing of who computes."""
        return replace(self.study, executor=None)


def _layer_cell(
    model: AnyModel,
    tokens: CloudFile | str,
    layer: int,
    shares: Array,
    covariance: Array | None,
    study: ProbeStudy,
) -> Cell:
    """One layer in pooled mode; on another machine, the cloud is mapped from its files."""
    cloud = seen_cloud(tokens) if isinstance(tokens, str) else tokens
    with opened_model(model) as loaded:
        weights = head_weights(loaded, layer)
        label = _labels(loaded, np.asarray(cloud.token_ids))
        measured, numbers = measure_pooled(
            cloud, layer, study.sizes, study.samples, study.seed, study.sampling,
            OutputProjection.of(weights.W_o[list(study.heads)]), alpha=study.alpha,
        )  # fmt: skip
        if study.sampling == "without":
            measured = _corrected(measured, cloud.rows)
        psi = one_sided_psi(weights, covariance, study.alpha)
        stats = tuple(
            describe_head(
                number, study.sizes, study.seed, label,
                context=loaded.max_positions, delimiters=float(shares[head]),
                psi=None if psi is None else psi[head],
            )
            for head, number in zip(measured.heads, numbers, strict=True)
        )  # fmt: skip
    return make_cell([LayerFound(measured, stats)])


def _passage_cell(model: AnyModel, passage: Passage, draws: int, study: ProbeStudy) -> Cell:
    """One passage in context mode."""
    with opened_model(model) as loaded:
        rng = random_stream(study.seed, "probe queries", passage.number)
        asking, keys = split(len(passage.ids), passage.is_delimiter, loaded.causal, rng)
        layers: list[LayerFound] = []

        def sink(passage: Passage, capture: LayerCapture) -> None:
            capture = _scaled(capture, study.alpha)
            with torch.inference_mode():
                measured, numbers, sinks = measure_context(
                    capture, asking, keys, study.sizes, draws, study.seed, passage.number,
                    OutputProjection.of(head_weights(loaded, capture.layer).W_o),
                )  # fmt: skip
                shares = delimiter_shares(capture, passage.is_delimiter)
            label = _labels(loaded, passage.ids[keys])
            stats = tuple(
                describe_head(
                    numbers[h], study.sizes, study.seed, label,
                    context=loaded.max_positions, passages=len(study.cells()),
                    delimiters=float(shares[h]), apart=sinks[h],
                )
                for h in study.heads
            )  # fmt: skip
            layers.append(LayerFound(_chosen(measured, study.heads), stats))

        visit_passages(loaded, [passage], sink, layers=study.layers)
    return make_cell(layers)


def _scaled(capture: LayerCapture, alpha: float) -> LayerCapture:
    """A layer whose tilts are scaled; its tokens are those of the model as it is."""
    return replace(capture, scaling=alpha * capture.scaling)


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
        products=None if products is None else products[..., heads, :][..., heads],
    )


def _labels(loaded: LoadedModel, ids: NDArray[np.int64]) -> Callable[[int], str]:
    return lambda row: str(loaded.tokenizer.decode([int(ids[row])]))
