"""Pooled mode: the tokens of all passages as one cloud, n of them drawn with replacement.

This is the paper's protocol. The tokens of a sample are its queries and its keys; the reference is
attention among all N tokens, which is exactly the limit of drawing from them.
"""

from __future__ import annotations

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from esscher.attention import attention_statistics
from esscher.probing.layer import METRICS, HeadNumbers, LayerMeasurement
from esscher.probing.measurement import OutputReference, attend, norms
from esscher.probing.projection import PRODUCTS, OutputProjection
from esscher.streams import random_stream
from esscher.text import CloudFile, LayerCloud
from esscher.validation import Array

#: Up to this many tokens the reference has all of them as queries; beyond, a random subset.
ALL_QUERIES = 16_384
#: Size of that subset.
SUBSET = 4_096
#: Queries of the subset at which the map error of a sample is measured.
MAP_QUERIES = 512
#: Rows from which moments (horizons, spectrum) are computed.
MOMENT_ROWS = 16_384


def measure_pooled(
    cloud: CloudFile,
    layer: int,
    sizes: tuple[int, ...],
    replicates: int,
    seed: int,
    sampling: str,
    projection: OutputProjection | None = None,
) -> tuple[LayerMeasurement, list[HeadNumbers]]:
    """Errors and one-pass numbers of one layer.

    Parameters
    ----------
    cloud, layer
        Which tokens.
    sizes, replicates, seed
        Samples of the largest size; smaller ones are their beginnings.
    sampling
        ``"with"`` or ``"without"`` replacement.
    projection
        Output projection of the cloud's heads, to see how their errors add up.
    """
    view = cloud.layer(layer)
    every = cloud.rows <= ALL_QUERIES
    rng = random_stream(seed, "probe reference", layer)
    asking = (
        np.arange(cloud.rows)
        if every
        else np.sort(rng.choice(cloud.rows, size=SUBSET, replace=False))
    )
    outputs = _reference_outputs(view, asking)
    reference = OutputReference.of(outputs)
    spread = np.sqrt(np.trace(reference.covariance) / len(asking))
    units = len(view.heads) + 1
    errors = np.empty((len(METRICS), units, replicates, len(sizes)))
    products = np.empty((len(PRODUCTS), replicates, len(sizes), units - 1, units - 1))
    for r in range(replicates):
        rows = _draw(cloud.rows, sizes[-1], seed, layer, r, sampling)
        q, k, v = (_take(array, rows) for array in (view.q, view.k, view.v))
        for j, n in enumerate(sizes):
            found = attend(q[:, :n], k[:, :n], v[:, :n], view.scaling, view.softcap)
            errors[0, :, r, j], errors[1, :, r, j], shift = reference.moment_errors(found)
            if every:
                gap = found - outputs[:, rows[:n]]
            else:
                other = attend(
                    _take(view.q, asking[:MAP_QUERIES]), k[:, :n], v[:, :n],
                    view.scaling, view.softcap,
                )  # fmt: skip
                gap = other - outputs[:, :MAP_QUERIES]
            errors[2, :, r, j] = norms(gap)
            if projection is not None:
                products[0, r, j] = projection.of_mean(shift)
                products[1, r, j] = projection.of_queries(gap)
    measurement = LayerMeasurement(
        layer=layer,
        heads=view.heads,
        sizes=sizes,
        errors=errors,
        relative=norms(outputs),
        reference_error=np.zeros(units) if every else np.full(units, spread),
        products=None if projection is None else products,
    )
    passage = np.asarray(cloud.passage, dtype=np.int64)
    return measurement, [
        _numbers(view, h, asking, outputs[h], passage, rng) for h in range(len(view.heads))
    ]


def _draw(
    tokens: int, n: int, seed: int, layer: int, replicate: int, sampling: str
) -> NDArray[np.int64]:
    """Rows of a sample; the same for all heads of a layer, so that their errors can be compared."""
    rng = random_stream(seed, "probe", layer, replicate)
    if sampling == "without":
        return np.asarray(rng.choice(tokens, size=n, replace=False), dtype=np.int64)
    return rng.integers(tokens, size=n)


def _take(array: NDArray[np.float32], rows: NDArray[np.int64]) -> Tensor:
    return torch.from_numpy(np.ascontiguousarray(array[:, rows]))


def _reference_outputs(view: LayerCloud, asking: NDArray[np.int64]) -> Tensor:
    """Attention of the asking tokens over all, [heads, queries, d], one key head at a time."""
    outputs = []
    for j in range(len(view.key_heads)):
        mine = [i for i, head in enumerate(view.heads) if head // view.group == view.key_heads[j]]
        k, v = (torch.from_numpy(np.array(array[j : j + 1])) for array in (view.k, view.v))
        q = torch.from_numpy(np.ascontiguousarray(view.q[mine][:, asking]))
        outputs.append(attend(q, k, v, view.scaling, view.softcap))
    return torch.cat(outputs)


def _numbers(
    view: LayerCloud,
    h: int,
    asking: NDArray[np.int64],
    outputs: Tensor,
    passage: NDArray[np.int64],
    rng: np.random.Generator,
) -> HeadNumbers:
    """One pass of all asking queries over all keys of a head."""
    head = view.head(view.heads[h])
    q = torch.from_numpy(np.ascontiguousarray(head.q[asking]))
    k, v = (torch.from_numpy(np.array(array)) for array in (head.k, head.v))
    found = attention_statistics(
        q,
        k,
        v,
        sizes=[len(k)],
        queries="separate",
        factor=view.scaling,
        received_sizes=[len(k)],
        weights=("participation",),
        per_query=True,
    )
    assert found.received is not None
    assert found.participation is not None
    assert found.participation.values is not None
    rows = np.arange(len(k))
    if len(rows) > MOMENT_ROWS:
        rows = np.sort(rng.choice(len(rows), size=MOMENT_ROWS, replace=False))
    tilts: Array = np.asarray(head.q[asking], dtype=np.float64) * view.scaling
    return HeadNumbers(
        tilts=tilts,
        keys=np.asarray(head.k[rows], dtype=np.float64),
        values=np.asarray(head.v[rows], dtype=np.float64),
        outputs=outputs.to(torch.float64).numpy(),
        participation=found.participation.values[0, 0],
        received=found.received[0, 0] / len(asking),
        norm=float(outputs.to(torch.float64).square().sum(-1).mean().sqrt()),
        passages=passage[rows],
    )
