"""Pooled mode: the tokens of all passages as one cloud, n of them drawn with replacement.

This is the paper's protocol. The tokens of a sample are its queries and its keys; the reference is
attention among all N tokens, which is exactly the limit of drawing from them.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence
from dataclasses import replace

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from esscher.core.streams import random_stream
from esscher.core.validation import Array
from esscher.engine.models import LayerCapture
from esscher.engine.sampled.context import delimiter_shares
from esscher.engine.sampled.layer import METRICS, HeadNumbers, LayerMeasurement
from esscher.engine.sampled.outputs import (
    PRODUCTS,
    OutputProjection,
    attend,
    attend_nested,
    norms,
    soft_capped,
)
from esscher.engine.sampled.reference import LEVELS, Levels, PooledReference, pooled_reference
from esscher.engine.text import CloudFile, LayerCloud, Passage, read_rows
from esscher.engine.text.cloud import let_go
from esscher.engine.text.packing import first_tokens
from esscher.math.coupling import CoupledMoments, RowMoments

#: Queries at which the map error of a sample is measured, if the reference has not all of them.
MAP_QUERIES = 512
#: Rows from which errors are predicted, and tails judged.
PREDICTION_ROWS = 16_384
#: Rows of which moments are summed at a time.
MOMENT_ROWS = 32_768


class PassageMoments:
    """What all tokens of a cloud say where they stand, in their passages: summed as they are read.

    Attributes
    ----------
    delimiters
        By layer: share of their attention that goes to delimiters, per head.
    """

    def __init__(
        self, passages: Iterable[Passage], tokens: int, hidden: Collection[int] = ()
    ) -> None:
        """Passages, the number of their tokens in the cloud, and layers of hidden states."""
        self.delimiters: dict[int, Array] = {}
        self._tokens = tokens
        self._wanted = hidden
        self._hidden: dict[int, RowMoments] = {}
        chosen = zip(passages, first_tokens(passages, tokens), strict=True)
        self._asking = {passage.number: asking for passage, asking in chosen}

    def take(self, passages: Sequence[Passage], capture: LayerCapture) -> None:
        """Take in what a layer sees of some passages."""
        layer = capture.layer
        for i, passage in enumerate(passages):
            asking = self._asking[passage.number]
            share = delimiter_shares(capture, passage.is_delimiter, asking, i)
            share = share * (np.count_nonzero(asking) / self._tokens)
            self.delimiters[layer] = self.delimiters.get(layer, 0.0) + share
            if layer in self._wanted and capture.hidden is not None:
                rows = capture.hidden[i][torch.from_numpy(asking)].to("cpu", torch.float64)
                self._hidden.setdefault(layer, RowMoments()).add(rows.numpy())

    def covariance(self, layer: int) -> Array | None:
        """Covariance of the hidden states of a layer, if it is known."""
        return self._hidden[layer].covariance if layer in self._hidden else None


def measure_pooled(
    cloud: CloudFile,
    layer: int,
    sizes: tuple[int, ...],
    replicates: int,
    seed: int,
    sampling: str,
    projection: OutputProjection | None = None,
    *,
    alpha: float = 1.0,
    levels: Levels = LEVELS,
    map_queries: int = MAP_QUERIES,
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
    alpha
        Factor of the tilts.
    levels
        From how many tokens on the reference is estimated, and how well.
    map_queries
        Queries at which the map error is measured then.
    """
    view = cloud.layer(layer)
    view = replace(view, scaling=alpha * view.scaling)
    rng = random_stream(seed, "probe reference", layer)
    reference = pooled_reference(view, rng, levels)
    outputs = reference.outputs
    every = reference.coarse is None
    # all over the text
    chosen = np.linspace(0, len(reference.asking) - 1, map_queries).round().astype(np.int64)
    questions = None if every else _take(view.q, reference.asking[chosen])
    units = len(view.heads) + 1
    errors = np.empty((len(METRICS), units, replicates, len(sizes)))
    products = np.empty((len(PRODUCTS), replicates, len(sizes), units - 1, units - 1))
    for r in range(replicates):
        rows = _draw(cloud.rows, sizes[-1], seed, layer, r, sampling)
        q = _take(view.q, rows)
        # with some heads chosen, groups need not be whole
        k, v = (_take(array, rows)[view.served_by] for array in (view.k, view.v))
        nested = attend_nested(q, k, v, sizes, view.scaling, view.softcap)
        for j, (n, found) in enumerate(zip(sizes, nested, strict=True)):
            errors[0, :, r, j], errors[1, :, r, j], shift = reference.moments.moment_errors(found)
            if questions is None:
                gap = found - outputs[:, rows[:n]]
            else:
                other = attend(questions, k[:, :n], v[:, :n], view.scaling, view.softcap)
                gap = other - outputs[:, chosen]
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
        reference_error=reference.mean_error,
        reference=reference.record(),
        products=None if projection is None else products,
    )
    passage = np.asarray(cloud.passage, dtype=np.int64)
    return measurement, [_numbers(view, h, reference, passage, rng) for h in range(len(view.heads))]


def _draw(
    tokens: int, n: int, seed: int, layer: int, replicate: int, sampling: str
) -> NDArray[np.int64]:
    """Rows of a sample; the same for all heads of a layer, so that their errors can be compared."""
    rng = random_stream(seed, "probe", layer, replicate)
    if sampling == "without":
        return np.asarray(rng.choice(tokens, size=n, replace=False), dtype=np.int64)
    return rng.integers(tokens, size=n)


def _take(array: NDArray[np.float32], rows: NDArray[np.int64]) -> Tensor:
    return torch.from_numpy(read_rows(array, rows))


def _numbers(
    view: LayerCloud,
    h: int,
    reference: PooledReference,
    passage: NDArray[np.int64],
    rng: np.random.Generator,
) -> HeadNumbers:
    """What the reference's pass over all keys says about a head."""
    head = view.head(view.heads[h])
    outputs = reference.outputs[h]
    norm = float(outputs.to(torch.float64).square().sum(-1).mean().sqrt())
    rows = np.arange(len(head.k))
    if len(rows) > PREDICTION_ROWS:
        # those that ask are among them: a query attends its own key, too
        others = np.setdiff1d(rows, reference.asking)
        more = rng.choice(others, size=PREDICTION_ROWS - len(reference.asking), replace=False)
        rows = np.sort(np.concatenate([reference.asking, more]))
    q, k, v = (
        _take(array, chosen)
        for array, chosen in ((head.q, reference.asking), (head.k, rows), (head.v, rows))
    )
    if len(rows) < len(head.k):
        # predictions are about draws from these rows, so their limit is attention over these
        outputs = attend(q[None], k[None], v[None], view.scaling, view.softcap)[0]
    tilts, keys = q.to(torch.float64).numpy() * view.scaling, k.to(torch.float64).numpy()
    asked, known = (q * view.scaling).numpy(), k.numpy()
    return HeadNumbers(
        tilts=tilts,
        keys=keys,
        values=v.to(torch.float64).numpy(),
        outputs=outputs.to(torch.float64).numpy(),
        logits=lambda chosen: soft_capped(asked[chosen] @ known.T, view.softcap),
        own=np.searchsorted(rows, reference.asking),
        participation=reference.participation[h],
        received=reference.received[h],
        norm=norm,
        coupled=CoupledMoments.from_moments(
            _moments(head.q, view.scaling), _moments(head.k), tilts
        ),
        passages=passage[rows],
    )


def _moments(array: NDArray[np.float32], factor: float = 1.0) -> RowMoments:
    """Moments of all tokens of a mapped array, times a factor."""
    found = RowMoments()
    for start in range(0, len(array), MOMENT_ROWS):
        found.add(array[start : start + MOMENT_ROWS].astype(np.float64) * factor)
        let_go(array)
    return found
