"""Context mode: real sequences, with positions and visibility kept.

In a decoder the queries come from the last quarter of a passage and the keys are what is before
it, all of them visible: what a key cache holds when these queries are made. In an encoder queries
and keys are both the whole passage. Delimiters and sinks are set apart: attention is renormalised
over the other keys, of which n are drawn with replacement.
"""

from __future__ import annotations

import numpy as np
import torch
from numpy.typing import NDArray

from esscher.core.errors import InputError
from esscher.core.streams import random_stream
from esscher.core.validation import Array
from esscher.engine.models import LayerInputs
from esscher.engine.models.inputs import QUERY_BLOCK
from esscher.engine.sampled.layer import (
    PRODUCTS,
    HeadNumbers,
    LayerMeasurement,
    OutputProjection,
    OutputReference,
    map_errors,
    norms,
)
from esscher.engine.sampled.sizes import METRICS, PREFIX
from esscher.math.coupling import CoupledMoments
from esscher.math.statistics import keys_apart

#: Queries of a passage at which errors are measured.
QUERIES = 384
#: Keys that a layer's queries must share.
FEWEST_KEYS = 32


def split(
    length: int, is_delimiter: NDArray[np.bool_], causal: bool, rng: np.random.Generator
) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Positions of queries and of candidate keys in a passage."""
    prefix = int(PREFIX * length) if causal else length
    keys = np.flatnonzero(~is_delimiter[:prefix])
    asking = np.flatnonzero(~is_delimiter)
    if causal:
        asking = asking[asking >= prefix]
    if len(asking) > QUERIES:
        asking = np.sort(rng.choice(asking, size=QUERIES, replace=False))
    return asking, keys


def measure_context(
    capture: LayerInputs,
    asking: NDArray[np.int64],
    keys: NDArray[np.int64],
    sizes: tuple[int, ...],
    draws: int,
    seed: int,
    passage: int,
    projection: OutputProjection | None = None,
) -> tuple[LayerMeasurement, list[HeadNumbers], list[NDArray[np.int64]]]:
    """Errors and one-pass numbers of one layer on one passage, and the sinks of each head."""
    asking, keys = _within_window(capture, asking, keys)
    heads = capture.q.shape[1]
    # logits only from the first query on: a decoder's queries are the end of its passage
    first = int(asking[0])
    rows = torch.from_numpy(asking - first)
    rng = random_stream(seed, "probe context", capture.layer, passage)
    # twice as many as are needed: heads share the draws, and each skips its own sinks
    picks = [rng.integers(len(keys), size=2 * sizes[-1]) for _ in range(draws)]
    found = np.empty((len(METRICS), heads + 1, draws, len(sizes)))
    products = np.empty((len(PRODUCTS), draws, len(sizes), heads, heads))
    outputs, samples, numbers, sinks = [], [], [], []
    for h in range(heads):
        logits = capture.logits(0, h, slice(first, None), torch.float32)
        logits = logits[rows][:, torch.from_numpy(keys)]
        value = capture.v[0, h // capture.group][torch.from_numpy(keys)].to(torch.float32)
        all_weights = torch.softmax(logits, dim=-1)
        received = all_weights.mean(0).to(torch.float64).numpy()
        sink = keys_apart(received)
        sinks.append(sink)
        kept = np.setdiff1d(np.arange(len(keys)), sink)
        inside = torch.from_numpy(kept)
        logits, value = logits[:, inside], value[inside]
        exact = torch.softmax(logits, dim=-1) @ value
        outputs.append(exact)
        more = random_stream(seed, "probe context of a head", capture.layer, passage, h)
        rows_of_head = [_skipping(pick, kept, len(keys), sizes[-1], more) for pick in picks]
        samples.append(_sampled(logits, value, rows_of_head, sizes))
        numbers.append(_numbers(capture, h, asking, keys[kept], exact, logits, received))
    joined = torch.stack(outputs)
    reference = OutputReference.of(joined)
    for r in range(draws):
        for j in range(len(sizes)):
            sampled = torch.stack([samples[h][r][j] for h in range(heads)])
            found[0, :, r, j], found[1, :, r, j], shift = reference.moment_errors(sampled)
            found[2, :, r, j] = map_errors(sampled, joined)
            if projection is not None:
                products[0, r, j] = projection.of_mean(shift)
                products[1, r, j] = projection.of_queries(sampled - joined)
    measurement = LayerMeasurement(
        layer=capture.layer,
        heads=tuple(range(heads)),
        sizes=sizes,
        errors=found,
        relative=norms(joined),
        reference_error=np.zeros(heads + 1),
        products=None if projection is None else products,
    )
    return measurement, numbers, sinks


def _within_window(
    capture: LayerInputs,
    asking: NDArray[np.int64],
    keys: NDArray[np.int64],
    fewest: int = FEWEST_KEYS,
) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Queries and keys of a layer with a sliding window, such that all queries see all keys."""
    if capture.window is None:
        return asking, keys
    if capture.causal:
        asking = asking[asking < keys[-1] + 1 + capture.window // 2]
        keys = keys[keys > asking[-1] - capture.window]
    else:
        middle = len(asking) // 2
        near = np.abs(asking - asking[middle]) < capture.window // 4
        asking = asking[near]
        keys = keys[(keys > asking[-1] - capture.window) & (keys < asking[0] + capture.window)]
    if len(keys) < fewest or not len(asking):
        raise InputError(
            f"layer {capture.layer} has a window of {capture.window} tokens, too short for queries "
            f"that share {fewest} keys; leave it out with layers, or use pooled mode"
        )
    return asking, keys


def _skipping(
    pick: NDArray[np.int64],
    kept: NDArray[np.int64],
    keys: int,
    count: int,
    more: np.random.Generator,
) -> NDArray[np.int64]:
    """The first ``count`` draws that are no sinks of a head, as indices into the kept keys.

    Leaving out what falls on a sink makes them uniform on the kept keys, and heads with different
    sinks still see the same tokens. Should too few be left, the head draws more of its own.
    """
    index = np.full(keys, -1)
    index[kept] = np.arange(len(kept))
    found = index[pick]
    found = found[found >= 0][:count]
    extra = more.integers(len(kept), size=count - len(found))
    return np.concatenate([found, extra])


def _sampled(
    logits: torch.Tensor,
    value: torch.Tensor,
    picks: list[NDArray[np.int64]],
    sizes: tuple[int, ...],
) -> list[list[torch.Tensor]]:
    """Outputs over samples of the keys, by draw and size."""
    shifted = torch.exp(logits - logits.amax(dim=-1, keepdim=True))
    # keys missed by a sample may hold nearly all the weight: the rest must not underflow
    floor = float(torch.finfo(torch.float32).tiny) * 1e6
    results = []
    for pick in picks:
        rows = torch.from_numpy(pick)
        drawn, taken = shifted[:, rows], value[rows]
        outputs = []
        for n in sizes:
            chosen = drawn[:, :n]
            total = chosen.sum(-1, keepdim=True)
            if float(total.min()) < floor:
                chosen = torch.softmax(logits[:, rows[:n]], dim=-1)
                total = torch.ones_like(total)
            outputs.append((chosen @ taken[:n]) / total)
        results.append(outputs)
    return results


def _numbers(
    capture: LayerInputs,
    h: int,
    asking: NDArray[np.int64],
    keys: NDArray[np.int64],
    exact: torch.Tensor,
    logits: torch.Tensor,
    received: Array,
) -> HeadNumbers:
    group = h // capture.group
    weights = torch.softmax(logits, dim=-1)
    kept = logits.numpy()
    tilts = capture.q[0, h][torch.from_numpy(asking)].to(torch.float64).numpy() * capture.scaling
    own_keys = capture.k[0, group][torch.from_numpy(keys)].to(torch.float64).numpy()
    return HeadNumbers(
        tilts=tilts,
        keys=own_keys,
        values=capture.v[0, group][torch.from_numpy(keys)].to(torch.float64).numpy(),
        outputs=exact.to(torch.float64).numpy(),
        logits=lambda chosen: kept[chosen].astype(np.float64),
        own=None,
        participation=1.0 / weights.to(torch.float64).square().sum(-1).numpy(),
        received=received,
        norm=float(exact.to(torch.float64).square().sum(-1).mean().sqrt()),
        coupled=CoupledMoments.of(tilts, own_keys),
    )


def delimiter_shares(
    capture: LayerInputs,
    is_delimiter: NDArray[np.bool_],
    asking: NDArray[np.bool_] | None = None,
    text: int = 0,
) -> Array:
    """Share of the attention of text tokens that goes to delimiters, per head.

    Parameters
    ----------
    capture
        A layer.
    is_delimiter
        Which tokens of the passage are delimiters.
    asking
        Which of them are asked; all that are no delimiters, if left out.
    text
        Number of the passage among those that the layer sees.
    """
    heads = capture.q.shape[1]
    asked = torch.from_numpy(~is_delimiter if asking is None else asking)
    columns = torch.from_numpy(np.flatnonzero(is_delimiter))
    totals = np.zeros(heads)
    if not len(columns) or not asked.any():
        return totals
    for start in range(0, len(asked), QUERY_BLOCK):
        rows = slice(start, start + QUERY_BLOCK)
        for h in range(heads):
            weights = torch.softmax(capture.logits(text, h, rows, torch.float32), dim=-1)
            totals[h] += float(weights[:, columns].sum(-1)[asked[rows]].sum(dtype=torch.float64))
    return np.asarray(totals / int(asked.sum()))
