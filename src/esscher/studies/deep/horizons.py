"""Horizons of a model's heads on real passages, and the terciles they fall into."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from esscher.core.validation import Array
from esscher.engine.models import LayerInputs
from esscher.math.coupling import CoupledMoments
from esscher.math.statistics import keys_apart
from esscher.studies.deep.records import TERCILES, TercileHeads
from esscher.studies.deep.sampling import SampledPassage


def head_horizons(reader: SampledPassage) -> Array:
    """Horizon of every head on a passage, [layer, head], from one dense pass.

    As :func:`esscher.probe` has it in context mode: queries against the keys that can be sampled,
    sinks set apart.
    """
    found: list[list[float]] = []

    def look(inputs: LayerInputs) -> None:
        keys = inputs.k.shape[2]
        candidates = np.flatnonzero(~reader.certain[-keys:])
        heads = range(inputs.q.shape[1])
        found.append([_horizon(inputs, head, reader.asking, candidates) for head in heads])

    reader.read(look)
    return np.array(found)


def _horizon(
    inputs: LayerInputs, head: int, asking: Tensor, candidates: NDArray[np.int64]
) -> float:
    logits = inputs.logits(0, head, dtype=torch.float32)[asking][:, torch.from_numpy(candidates)]
    # a window hides some keys from some queries; one that sees none of them has no say
    rows = torch.isfinite(logits).any(dim=-1)
    received = torch.softmax(logits[rows], dim=-1).mean(0).double().cpu().numpy()
    sinks = keys_apart(received)
    kept = np.setdiff1d(np.arange(len(candidates)), sinks)
    keys = inputs.k[0, head // inputs.group][torch.from_numpy(candidates[kept])]
    tilts = inputs.q[0, head][asking] * inputs.scaling
    found = CoupledMoments.of(tilts.double().cpu().numpy(), keys.double().cpu().numpy())
    return found.horizon


def split_terciles(horizons: Array, scope: str) -> dict[str, dict[int, tuple[int, ...]]]:
    """Heads of each tercile of the horizon, by layer.

    Parameters
    ----------
    horizons
        Of every head, [layer, head].
    scope
        ``"model"``: of all heads together. ``"layer"``: of the heads of each layer, so that every
        tercile has heads in every layer and depth plays no part.
    """
    layers, heads = horizons.shape
    if scope == "model":
        ranks = horizons.ravel().argsort(kind="stable").argsort().reshape(layers, heads)
        third = ranks * 3 // (layers * heads)
    else:
        ranks = horizons.argsort(axis=1, kind="stable").argsort(axis=1)
        third = ranks * 3 // heads
    return {
        name: {
            layer: tuple(int(h) for h in np.flatnonzero(third[layer] == number))
            for layer in range(layers)
        }
        for number, name in enumerate(TERCILES)
    }


def describe_terciles(
    horizons: Array, terciles: Mapping[str, Mapping[int, tuple[int, ...]]]
) -> dict[str, TercileHeads]:
    """How many heads each tercile has, their horizons, and how deep they lie on average."""
    out = {}
    for name, by_layer in terciles.items():
        own = [(layer, head) for layer, heads in by_layer.items() for head in heads]
        values = np.array([horizons[place] for place in own])
        out[name] = TercileHeads(
            heads=len(own),
            horizon_min=float(values.min()) if own else None,
            horizon_median=float(np.median(values)) if own else None,
            horizon_max=float(values.max()) if own else None,
            mean_layer=float(np.mean([layer for layer, _ in own])) if own else None,
        )
    return out
