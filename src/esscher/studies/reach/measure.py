"""One item: what every head does at the queries that answer, and what the answer owes to it.

The queries are the last token of the question and the tokens of the right answer. Each has to copy
the next token of the answer, which stands in the needle: that key is what the query needs. The
other keys of the text are those that a longer text has more of; the first tokens, the recent ones,
the needle's own and those of the question are there at every length.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from esscher.core.errors import InputError
from esscher.core.streams import random_stream
from esscher.core.validation import Array
from esscher.engine.models import LayerInputs, LoadedModel, attention_override
from esscher.engine.text.tasks import TaskItem, read_context
from esscher.math.statistics.tail import tail_shape
from esscher.studies.reach.budgets import budget_coverage
from esscher.studies.reach.growth import Grown, grown_weights

#: First and last tokens of a text that are there at every length.
SINKS, RECENT = 4, 64
#: Distances from the largest logit at which keys are counted.
GAPS = (1.0, 2.0, 4.0, 8.0)
#: Total variation of attention to the largest keys alone.
TOLERANCES = (0.01, 0.05)


@dataclass(frozen=True, eq=False)
class Answered:
    """A question answered with the right answer, and what of it every layer saw.

    Attributes
    ----------
    odds
        Logarithms of the odds of every token of the right answer.
    right
        Whether the model would have given just that answer.
    layers
        Inputs of every layer's attention at question and answer.
    gradients
        Of the sum of the log-odds, by the attention output of every layer. (Probabilities near 1
        have no gradient to speak of.)
    rows
        The queries that answer, among those of question and answer.
    """

    odds: Array
    right: bool
    layers: list[LayerInputs]
    gradients: tuple[Tensor, ...]
    rows: slice


def answer_item(loaded: LoadedModel, item: TaskItem) -> Answered:
    """Let a model read the text of an item, the question and the right answer."""
    cache = read_context(loaded, item)
    ids = np.concatenate([item.question, item.answer_ids[:-1]])
    layers: list[LayerInputs] = []
    leaves: list[Tensor] = []

    def watch(inputs: LayerInputs) -> Tensor:
        own = inputs.own()
        leaf = torch.zeros_like(own, requires_grad=True)
        layers.append(inputs)
        leaves.append(leaf)
        return own + leaf

    count = len(item.answer_ids)
    with torch.enable_grad(), attention_override(loaded, watch):
        output = loaded.model(
            input_ids=torch.from_numpy(ids)[None].to(loaded.device),
            past_key_values=cache, use_cache=True, logits_to_keep=count,
        )  # fmt: skip
        logits = output.logits[0, -count:].float()
        wanted = torch.from_numpy(item.answer_ids).to(logits.device)[:, None]
        rest = logits.scatter(1, wanted, -torch.inf)
        odds = logits.gather(1, wanted)[:, 0] - torch.logsumexp(rest, dim=-1)
        gradients = torch.autograd.grad(odds.sum(), leaves)
    right = bool((logits.argmax(dim=-1) == wanted[:, 0]).all())
    rows = slice(len(item.question) - 1, len(ids))
    return Answered(odds.detach().double().cpu().numpy(), right, layers, gradients, rows)


def log_probability(odds: Array) -> float:
    """Mean logarithm of probabilities with these log-odds."""
    return float(-np.logaddexp(0.0, -odds).mean())


def needed_keys(item: TaskItem) -> NDArray[np.int64]:
    """Places in the text of the tokens that the answer copies.

    Raises
    ------
    InputError
        If the tokenizer writes the answer with other tokens than the needle.
    """
    start, end = item.needles[0]
    needle, answer = item.context[start:end], item.answer_ids
    for first in range(len(needle) - len(answer) + 1):
        if np.array_equal(needle[first : first + len(answer)], answer):
            return np.arange(len(answer)) + start + first
    raise InputError(
        f"the tokenizer writes the answer of {item.task!r} with other tokens than the text does; "
        "what a head has to copy is not known: choose other tasks"
    )


def other_keys(item: TaskItem) -> NDArray[np.int64]:
    """Keys of the text that a longer text has more of."""
    others = np.ones(len(item.context), dtype=bool)
    others[:SINKS] = others[-RECENT:] = False
    for start, end in item.needles:
        others[start:end] = False
    return np.flatnonzero(others)


@dataclass(frozen=True, eq=False)
class Measured:
    """An item: the answer, a row per head, and the answer's predicted log-probability by length."""

    answered: Answered
    rows: list[dict[str, Any]]
    others: int
    predicted: tuple[float, ...]


def measure_item(
    loaded: LoadedModel, item: TaskItem, lengths: tuple[int, ...], seed: int
) -> Measured:
    """Answer an item and look at every head.

    Parameters
    ----------
    loaded, item
        Model and item.
    lengths
        Lengths at which weights are predicted from this item; none for an item that is only
        measured.
    seed
        Seed of what is sampled.
    """
    answered = answer_item(loaded, item)
    needed, others = needed_keys(item), other_keys(item)
    grown = tuple(len(others) + length - len(item.context) for length in lengths)
    rows = []
    # log-odds follow the weights of all heads, to first order
    odds = np.repeat(answered.odds[None], len(lengths), axis=0)
    with torch.no_grad():
        for inputs, gradient in zip(answered.layers, answered.gradients, strict=True):
            for head in range(inputs.q.shape[1]):
                seen = _head(inputs, gradient, answered.rows, head, needed)
                place = {"layer": inputs.layer, "head": head}
                rng = random_stream(seed, "reach", item.number, len(item.context), *place.values())
                found = dict(_statistics(seen, others, rng))
                if grown:
                    weights, scales = _grown(seen, others, grown)
                    for i, length in enumerate(lengths):
                        found[f"predicted_{length}"] = float(weights[i].mean())
                        found[f"scale_{length}"] = _median(scales[i])
                    odds += seen.effects * (weights / seen.weights - 1)
                rows.append(place | found)
    predicted = tuple(log_probability(each) for each in odds)
    return Measured(answered, rows, len(others), predicted)


@dataclass(frozen=True, eq=False)
class _Head:
    """Logits [queries, keys], the key that each query needs, and its effect on the answer.

    ``first`` is the place of the first query; ``weights`` are those of the needed keys, and
    ``effects`` what they add to the log-odds of the answer, to first order.
    """

    logits: Array
    needed: NDArray[np.int64]
    first: int
    weights: Array
    effects: Array


def _head(
    inputs: LayerInputs, gradient: Tensor, rows: slice, head: int, needed: NDArray[np.int64]
) -> _Head:
    logits = inputs.logits(0, head, rows, torch.float32)
    value = inputs.v[0, head // inputs.group].float()
    weights = torch.softmax(logits, dim=-1)
    output = weights @ value
    at = torch.from_numpy(needed).to(logits.device)
    # what the head would say without the key that the query needs
    without = torch.softmax(logits.scatter(1, at[:, None], -torch.inf), dim=-1) @ value
    effects = (gradient[0, head, rows].float() * (output - without)).sum(dim=-1)
    own = weights.gather(1, at[:, None])[:, 0].clamp(min=torch.finfo(torch.float32).tiny)
    plain = [part.double().cpu().numpy() for part in (logits, own, effects)]
    return _Head(plain[0], needed, inputs.offset + rows.start, plain[1], plain[2])


def _statistics(
    seen: _Head, others: NDArray[np.int64], rng: np.random.Generator
) -> Iterator[tuple[str, float]]:
    logits = seen.logits
    each = np.arange(len(logits))
    top = logits.max(axis=1, keepdims=True)
    weights = np.exp(logits - top)
    weights /= weights.sum(axis=1, keepdims=True)
    noise = logits[:, others]
    mean = noise.mean(axis=1)
    yield "weight", float(weights[each, seen.needed].mean())
    yield "contribution", float(seen.effects.mean())
    yield "advantage", float((logits[each, seen.needed] - mean).mean())
    yield "spread", float(noise.std(axis=1).mean())
    yield "distance", _distance(noise - mean[:, None], seen.first + each[:, None] - others)
    with np.errstate(divide="ignore", invalid="ignore"):
        yield "entropy", float(-np.nansum(weights * np.log(weights), axis=1).mean())
    yield "largest", float(weights.max(axis=1).mean())
    for gap in GAPS:
        yield f"gap_{gap:g}", float((logits >= top - gap).sum(axis=1).mean())
    left = 1 - np.cumsum(-np.sort(-weights, axis=1), axis=1)
    for tolerance in TOLERANCES:
        yield f"certified_{tolerance:g}", int((left > tolerance).sum(axis=1).max()) + 1
    middle = len(logits) // 2
    row = np.exp(logits[middle] - top[middle])
    try:
        yield "tail", tail_shape(row[others]).k
    except InputError:  # equal keys, or too few, have no tail
        yield "tail", np.nan
    beside = float(row.sum() - row[others].sum())
    yield from budget_coverage(row[others], beside, rng)


def _distance(noise: Array, distance: NDArray[np.int64]) -> float:
    """Slope of logits over ln(distance), of all queries."""
    x = np.log(distance.astype(np.float64))
    x -= x.mean(axis=1, keepdims=True)
    return float((x * noise).sum() / (x * x).sum())


def _grown(seen: _Head, others: NDArray[np.int64], counts: tuple[int, ...]) -> tuple[Array, Array]:
    """Weights at each number of other keys, and scales that keep them; [count, query]."""
    fixed = np.ones(seen.logits.shape[1], dtype=bool)
    fixed[others] = False
    parts: list[Grown] = []
    for row, needed in zip(seen.logits, seen.needed, strict=True):
        own = fixed & np.isfinite(row)
        own[needed] = False
        parts.append(grown_weights(row[others], float(row[needed]), row[own], counts))
    return (
        np.array([part.weights for part in parts]).T, np.array([part.scales for part in parts]).T
    )  # fmt: skip


def _median(scales: Array) -> float:
    """Median over queries; nan if half of them or more have none."""
    known = scales[np.isfinite(scales)]
    return float(np.median(known)) if 2 * len(known) > len(scales) else float("nan")
