"""Tasks and cells: a passage is a cell."""

from __future__ import annotations

import numpy as np
import torch
import xarray as xr
from numpy.typing import NDArray

from esscher.core.validation import Array
from esscher.engine.models.choice import AnyModel, opened_model
from esscher.engine.models.inputs import LayerInputs
from esscher.engine.text.collect import visit_passages
from esscher.engine.text.packing import Passage
from esscher.studies.context.study import ContextSettings, PassageChanges

#: First tokens that are always seen.
SINKS = 4


def measure_passage(
    model: AnyModel, passage: Passage, number: int, settings: ContextSettings
) -> xr.Dataset:
    """Measure the changes of every head on one passage."""
    lengths = np.array(settings.lengths)
    changes: list[Array] = []
    norms: list[Array] = []
    windows: list[float] = []

    def sink(passage: Passage, capture: LayerInputs) -> None:
        with torch.inference_mode():
            change, norm = layer_changes(capture, settings.query_count, lengths)
        changes.append(change)
        norms.append(norm)
        windows.append(np.nan if capture.window is None else capture.window)

    with opened_model(model) as loaded:
        visit_passages(loaded, [passage], sink)
        shape = loaded.shape
    data = PassageChanges.new(
        passage=[number],
        layer=range(shape.layers),
        head=range(shape.heads),
        context=lengths[:-1],
    )
    data.square, data.norm, data.window = [changes], [norms], windows
    return data.dataset


def layer_changes(
    inputs: LayerInputs, queries: int, lengths: NDArray[np.int64]
) -> tuple[Array, Array]:
    """Squared changes [heads, doublings] and squared norms [heads] of the last queries of a layer.

    Parameters
    ----------
    inputs
        A whole passage.
    queries
        Number of queries, the last ones of the passage.
    lengths
        Context lengths, each twice the one before it.
    """
    count = inputs.q.shape[2]
    rows = slice(count - queries, count)
    at = torch.arange(count - queries, count)[:, None]
    keys = torch.arange(inputs.k.shape[2])[None, :]
    changes, norms = [], []
    for head in range(inputs.q.shape[1]):
        logits = inputs.logits(0, head, rows, torch.float32).cpu()
        value = inputs.v[0, head // inputs.group].to("cpu", torch.float32)
        outputs = []
        for length in lengths.tolist():
            seen = (keys < SINKS) | (keys > at - length)
            weights = torch.softmax(logits.masked_fill(~seen, -torch.inf), dim=-1)
            outputs.append(weights @ value)
        stacked = torch.stack(outputs).double()
        change = (stacked[1:] - stacked[:-1]).square().sum(-1).mean(-1)
        changes.append(change.numpy())
        norms.append(float(stacked[-1].square().sum(-1).mean()))
    return np.stack(changes), np.array(norms)
