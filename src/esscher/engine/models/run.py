"""Run a model over token ids for the sake of its attention."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Sequence

import torch
from torch import Tensor

from esscher.engine.models.capture import capturing
from esscher.engine.models.inputs import LayerCapture
from esscher.engine.models.loaded import LoadedModel
from esscher.engine.models.selection import as_indices


class _Enough(Exception):
    """Raised behind the last layer that is wanted, so that the rest need not be computed."""


def run_captured(
    loaded: LoadedModel,
    input_ids: Tensor,
    sink: Callable[[LayerCapture], object],
    *,
    layers: Sequence[int] | None = None,
) -> None:
    """Run the model up to the last chosen layer and hand every chosen layer to ``sink``.

    Parameters
    ----------
    loaded
        The model.
    input_ids
        Token ids [batch, n], without padding.
    sink
        Takes :class:`LayerCapture`, layer after layer; nothing else keeps what it is handed.
    layers
        Numbers of the layers; all of them if left out.
    """
    chosen = as_indices(layers, loaded.shape.layers, "layers")

    def watch(capture: LayerCapture) -> None:
        sink(capture)
        if capture.layer == chosen[-1]:
            raise _Enough

    ids = input_ids.to(loaded.device)
    options = {"use_cache": False} if loaded.family.decoder else {}
    with torch.no_grad(), capturing(loaded, watch, layers=chosen), contextlib.suppress(_Enough):
        loaded.backbone(input_ids=ids, attention_mask=torch.ones_like(ids), **options)
