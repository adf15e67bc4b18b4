"""What is computed: a layer is a cell."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace

from esscher.core.errors import InputError
from esscher.core.options import AtMost
from esscher.engine.models import AnyModel, LoadedModel, opened_model
from esscher.engine.text import PassageSet, read_passages
from esscher.engine.text.packing import equal_passages
from esscher.math.tails.cloud import FEWEST
from esscher.math.tails.directions import FEWEST as FEWEST_PASSAGES
from esscher.runs.executors import CellExecutor, Task
from esscher.runs.folder import Cell, CellRun
from esscher.studies.tails.collect import (
    HELD,
    LayerTokens,
    TokenRows,
    collect_layers,
    layer_groups,
    token_rows,
)
from esscher.studies.tails.measure import measure_layer
from esscher.studies.tails.study import TailsStudy


def read_text(
    study: TailsStudy, loaded: LoadedModel, model: AnyModel, executor: CellExecutor
) -> TailsWork:
    """Take as many whole passages as the tokens fill, at least four."""
    found = read_passages(
        loaded, study.text, tokens=study.tokens, context=study.context, column=study.column,
        least=FEWEST,
    )  # fmt: skip
    # what is left of the text at its end may be a passage of a few tokens only
    whole = tuple(p for p in found.passages if len(p.ids) == study.context)
    kept = whole if len(whole) >= FEWEST_PASSAGES else found.passages
    if len(kept) < FEWEST_PASSAGES and isinstance(study.context, AtMost):
        found = equal_passages(loaded, found, FEWEST_PASSAGES, study.context)
        kept = found.passages
    if len(kept) < FEWEST_PASSAGES:
        longest = (found.text_tokens - 1) // (FEWEST_PASSAGES - 1)
        raise InputError(
            f"{found.source!r} has only {found.text_tokens} tokens, in passages of "
            f"{study.context}, and at least {FEWEST_PASSAGES} passages are needed; give more text, "
            f"or a context of at most {longest}"
        )
    tokens = min(int(study.tokens), found.text_tokens)
    study = replace(study, tokens=tokens, context=found.context)
    study = replace(study, model=loaded.record, text=found.record)
    return TailsWork(study, loaded, model, replace(found, passages=kept), executor)


@dataclass(frozen=True, eq=False)
class TailsWork:
    """A test of tails that is ready: see :class:`esscher.runs.study.Work`.

    In this process, layers share a pass over the text if they take at most ``held`` bytes together.
    """

    study: TailsStudy
    loaded: LoadedModel
    model: AnyModel
    passages: PassageSet
    executor: CellExecutor
    held: int = HELD

    def batches(self, run: CellRun) -> Iterator[Mapping[str, Task]]:
        """Yield layers: here, as many as fit into memory, which share one pass over the text."""
        study = self.study
        if self.executor.remote:
            # a layer is a task, which reads the passages itself: keys of all layers are too much
            # to be shipped, and workers need not see the same directories
            text = self.executor.share(self.passages)
            yield {
                f"layer-{layer}": Task(
                    f"layer-{layer}",
                    _layer_cell,
                    (self.model, text, layer, study.heads, study.seed),
                )
                for layer in study.layers
            }
            return
        layers = [int(name.removeprefix("layer-")) for name in run.missing(study.cells())]
        if not layers:
            return
        rows = token_rows(self.passages, self.loaded.causal, study.seed)
        for group in layer_groups(self.loaded, layers, len(rows.ids), self.held):
            collected = collect_layers(self.loaded, self.passages, rows, group)
            yield {
                f"layer-{layer}": Task(
                    f"layer-{layer}",
                    _measured,
                    (self.loaded, layer, collected.pop(layer), rows, study.heads, study.seed),
                )
                for layer in group
            }


def _layer_cell(
    model: AnyModel, passages: PassageSet, layer: int, heads: tuple[int, ...], seed: int
) -> Cell:
    """One layer in another process."""
    with opened_model(model) as loaded:
        rows = token_rows(passages, loaded.causal, seed)
        tokens = collect_layers(loaded, passages, rows, [layer])[layer]
        return _measured(loaded, layer, tokens, rows, heads, seed)


def _measured(
    loaded: LoadedModel,
    layer: int,
    tokens: LayerTokens,
    rows: TokenRows,
    heads: tuple[int, ...],
    seed: int,
) -> Cell:
    group = loaded.shape.heads // loaded.shape.key_heads
    return Cell(measure_layer(layer, tokens, rows, heads, group, seed, _label(loaded)))


def _label(loaded: LoadedModel) -> Callable[[int], str]:
    return lambda token: str(loaded.tokenizer.decode([token]))
