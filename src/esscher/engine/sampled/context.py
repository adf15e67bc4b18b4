"""Context mode: real sequences, with positions and visibility kept.

In a decoder the queries come from the last quarter of a passage and the keys are what is before
it, all of them visible: what a key cache holds when these queries are made. In an encoder queries
and keys are both the whole passage. Delimiters and sinks are set apart: attention is renormalised
over the other keys, of which n are drawn with replacement.
"""

from __future__ import annotations

from functools import partial

import numpy as np
import torch
from numpy.typing import NDArray

from esscher.core.errors import InputError
from esscher.core.streams import random_stream
from esscher.core.validation import Array
from esscher.engine.models.inputs import QUERY_BLOCK, LayerInputs
from esscher.engine.sampled.layer import (
    PRODUCTS,
    HeadNumbers,
    LayerMeasurement,
    moment_errors,
    norms,
    output_moments,
    projected_products,
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
    queries = np.flatnonzero(~is_delimiter)
    if causal:
        queries = queries[queries >= prefix]
    if len(queries) > QUERIES:
        queries = np.sort(rng.choice(queries, size=QUERIES, replace=False))
    return queries, keys


def measure_context(
    capture: LayerInputs,
    queries: NDArray[np.int64],
    keys: NDArray[np.int64],
    sizes: tuple[int, ...],
    draws: int,
    seed: int,
    passage: int,
    gram: Array | None = None,
) -> tuple[LayerMeasurement, list[HeadNumbers], list[NDArray[np.int64]]]:
    """Errors and one-pass numbers of one layer on one passage, and the sinks of each head."""
    queries, keys = _within_window(capture, queries, keys)
    heads = capture.q.shape[1]
    # logits only from the first query on: a decoder's queries are the end of its passage
    first = int(queries[0])
    rows = torch.from_numpy(queries - first)
    rng = random_stream(seed, "probe context", capture.layer, passage)
    # twice as many as are needed: heads share the draws, and each skips its own sinks
    picks = [rng.integers(len(keys), size=2 * sizes[-1]) for _ in range(draws)]
    errors = np.empty((len(METRICS), heads + 1, draws, len(sizes)))
    products = np.empty((len(PRODUCTS), draws, len(sizes), heads, heads))
    outputs, samples, numbers, sinks = [], [], [], []
    for h in range(heads):
        group = h // capture.group
        logits = capture.logits(0, h, slice(first, None), torch.float32)
        logits = logits[rows][:, torch.from_numpy(keys)].cpu()
        value = capture.v[0, group][torch.from_numpy(keys)].to("cpu", torch.float32)
        received = torch.softmax(logits, dim=-1).mean(0).to(torch.float64).numpy()
        sinks.append(keys_apart(received))
        kept = np.setdiff1d(np.arange(len(keys)), sinks[h])
        logits, value = logits[:, torch.from_numpy(kept)], value[torch.from_numpy(kept)]
        weights = torch.softmax(logits, dim=-1)
        exact = weights @ value
        outputs.append(exact)
        more = random_stream(seed, "probe context of a head", capture.layer, passage, h)
        # the first draws that are no sinks of this head, as indices into the kept keys, and new
        # draws in place of those that are missing
        index = np.full(len(keys), -1)
        index[kept] = np.arange(len(kept))
        rows_of_head = []
        for pick in picks:
            some = index[pick]
            some = some[some >= 0][: sizes[-1]]
            extra = more.integers(len(kept), size=sizes[-1] - len(some))
            rows_of_head.append(np.concatenate([some, extra]))
        samples.append(_sampled(logits, value, rows_of_head, sizes))
        tilts = capture.q[0, h][torch.from_numpy(queries)].to("cpu", torch.float64).numpy()
        tilts = tilts * capture.scaling
        places = torch.from_numpy(keys[kept])
        own_keys = capture.k[0, group][places].to("cpu", torch.float64).numpy()
        numbers.append(
            HeadNumbers(
                tilts=tilts,
                keys=own_keys,
                values=capture.v[0, group][places].to("cpu", torch.float64).numpy(),
                outputs=exact.to(torch.float64).numpy(),
                logits=partial(_rows_of, logits.numpy()),
                query_rows=None,
                participation=1.0 / weights.to(torch.float64).square().sum(-1).numpy(),
                received=received,
                norm=float(exact.to(torch.float64).square().sum(-1).mean().sqrt()),
                coupled=CoupledMoments.of(tilts, own_keys),
            )
        )
    reference = torch.stack(outputs)
    mean, covariance = output_moments(reference)
    for r in range(draws):
        for j in range(len(sizes)):
            sampled = torch.stack([samples[h][r][j] for h in range(heads)])
            errors[0, :, r, j], errors[1, :, r, j], shift = moment_errors(sampled, mean, covariance)
            errors[2, :, r, j] = norms(sampled - reference)
            if gram is not None:
                products[:, r, j] = projected_products(gram, shift, sampled - reference)
    measurement = LayerMeasurement(
        layer=capture.layer,
        heads=tuple(range(heads)),
        sizes=sizes,
        errors=errors,
        reference_error=np.zeros(heads + 1),
        cov_error=None,
        products=None if gram is None else products,
    )
    return measurement, numbers, sinks


def _within_window(
    capture: LayerInputs,
    queries: NDArray[np.int64],
    keys: NDArray[np.int64],
) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Queries and keys of a layer with a sliding window, such that all queries see all keys."""
    if capture.window is None:
        return queries, keys
    if capture.causal:
        queries = queries[queries < keys[-1] + 1 + capture.window // 2]
        keys = keys[keys > queries[-1] - capture.window]
    else:
        middle = len(queries) // 2
        near = np.abs(queries - queries[middle]) < capture.window // 4
        queries = queries[near]
        keys = keys[(keys > queries[-1] - capture.window) & (keys < queries[0] + capture.window)]
    if len(keys) < FEWEST_KEYS or not len(queries):
        raise InputError(
            f"layer {capture.layer} has a window of {capture.window} tokens, too short for queries "
            f"that share {FEWEST_KEYS} keys; leave it out with layers, or use pooled mode"
        )
    return queries, keys


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


def _rows_of(logits: NDArray[np.float32], rows: NDArray[np.int64]) -> Array:
    return logits[rows].astype(np.float64)


def delimiter_shares(
    capture: LayerInputs,
    is_delimiter: NDArray[np.bool_],
    queries: NDArray[np.bool_] | None = None,
    text: int = 0,
) -> Array:
    """Share of the attention of text tokens that goes to delimiters, per head.

    Parameters
    ----------
    capture
        A layer.
    is_delimiter
        Which tokens of the passage are delimiters.
    queries
        Which of them attend; all that are no delimiters, if left out.
    text
        Number of the passage among those that the layer sees.
    """
    heads = capture.q.shape[1]
    chosen = torch.from_numpy(~is_delimiter if queries is None else queries)
    columns = torch.from_numpy(np.flatnonzero(is_delimiter))
    totals = np.zeros(heads)
    if not len(columns) or not chosen.any():
        return totals
    for start in range(0, len(chosen), QUERY_BLOCK):
        rows = slice(start, start + QUERY_BLOCK)
        for h in range(heads):
            weights = torch.softmax(capture.logits(text, h, rows, torch.float32), dim=-1)
            totals[h] += float(weights[:, columns].sum(-1)[chosen[rows]].sum(dtype=torch.float64))
    return np.asarray(totals / int(chosen.sum()))
