"""Passages with their structure: who sees whom, in what order."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence

from esscher.engine.models.inputs import LayerCapture
from esscher.engine.models.loaded import LoadedModel
from esscher.engine.models.run import run_captured
from esscher.engine.text.collect import batch_ids
from esscher.engine.text.packing import Passage


def visit_passages(
    loaded: LoadedModel,
    text: Iterable[Passage],
    sink: Callable[[Passage, LayerCapture], object],
    *,
    layers: Sequence[int] | None = None,
) -> None:
    """Run the model over passages one by one; hand every layer to ``sink`` while it runs.

    Holds one layer of one passage at a time.
    """
    for passage in text:
        run_captured(
            loaded,
            batch_ids([passage]),
            lambda capture, passage=passage: sink(passage, capture),  # type: ignore[misc]
            layers=layers,
        )


def iterate_passages(
    loaded: LoadedModel, text: Iterable[Passage], *, layers: Sequence[int] | None = None
) -> Iterator[tuple[Passage, LayerCapture]]:
    """Yield every chosen layer of every passage, layer after layer within a passage.

    Holds the chosen layers of one passage at a time; :func:`visit_passages` holds only one layer.
    """
    for passage in text:
        captured: list[LayerCapture] = []
        run_captured(loaded, batch_ids([passage]), captured.append, layers=layers)
        captured.reverse()
        while captured:
            yield passage, captured.pop()
