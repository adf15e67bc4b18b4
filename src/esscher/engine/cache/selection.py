"""Which keys of a key head are kept, with which weight, and attention over what is kept.

Sinks and recent keys are kept for certain. The rest of a budget is a sample of the others: key j is
kept with the probability ``pi_j = min(1, c (s_j + floor)^power)``, s its score, c such that the
expected number is the budget, and then counts ``1/pi_j`` times (log-weight ``-ln pi_j``): numerator
and denominator of the softmax are unbiased. Keys with a large score are kept for certain: how a
budget is split into heavy hitters and sample follows from the scores and the power. A large power
keeps hardly more than heavy hitters, power 0 would be a uniform sample; each head has its own (see
``effects.py``).

Keeping the heaviest keys and forgetting the others, as published methods do, has no variance but a
bias. Biases of heads and layers add up, errors of samples average out: on SmolLM2 the sample was
closer to dense at every budget.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from esscher.core.validation import Array
from esscher.engine.models import LayerInputs

#: ``pi ~ (s + FLOOR mean(s))^power``: the floor is for keys that the observed queries overlooked.
FLOOR = 0.1


@dataclass(frozen=True, eq=False)
class Kept:
    """Keys that are kept of one key head.

    Attributes
    ----------
    index
        Their positions, increasing.
    log_weight
        What is added to their logits.
    """

    index: Tensor
    log_weight: Tensor


def inclusion_probabilities(scores: Array, n: float, power: float) -> Array:
    """Probabilities ``min(1, c (s + floor)^power)`` that sum to n; all 1 if n is not smaller."""
    if n >= len(scores):
        return np.ones(len(scores))
    strength = (scores + FLOOR * scores.mean()) ** power
    if not np.any(strength > 0):
        return np.full(len(scores), n / len(scores))
    order = np.argsort(-strength, kind="stable")
    ordered = strength[order]
    # with the m strongest certain, c = (n - m)/(sum of the others); m is the smallest that fits
    left = np.cumsum(ordered[::-1])[::-1]
    m = np.arange(len(ordered))
    fits = (n - m) * ordered <= left
    first = int(np.argmax(fits))
    out = np.ones(len(scores))
    out[order[first:]] = (n - first) * ordered[first:] / left[first]
    return np.minimum(out, 1.0)


def systematic_sample(probabilities: Array, start: float) -> NDArray[np.int64]:
    """Indices of a sample of fixed size with given probabilities, evenly spread over the order.

    Parameters
    ----------
    probabilities
        Of each index; their sum is rounded to the size of the sample.
    start
        A uniform number in [0, 1).
    """
    total = np.cumsum(probabilities)
    size = round(float(total[-1])) if len(total) else 0
    if size == 0:
        return np.array([], dtype=np.int64)
    # rounding must not cost the last one
    total *= size / total[-1]
    points = np.arange(size) + start
    found = np.searchsorted(total, points, side="right")
    return np.unique(np.minimum(found, len(probabilities) - 1)).astype(np.int64)


def spread_starts(start: float, draws: int) -> Array:
    """Starts of several samples, evenly spread: together they vary less than independent ones."""
    return np.asarray((start + np.arange(draws) / draws) % 1.0)


def select_sample(
    scores: Tensor, certain: NDArray[np.bool_], budget: int, power: float, start: float
) -> Kept:
    """Choose the keys of one key head: certain ones, and a sample of the others.

    Parameters
    ----------
    scores
        Of every key, [n_k].
    certain
        True at keys that are kept for certain, [n_k].
    budget
        Keys in all, the certain ones included.
    power
        Power of the scores in the probabilities.
    start
        A uniform number in [0, 1), the randomness of the sample.
    """
    others = np.flatnonzero(~certain)
    room = min(max(0, budget - int(certain.sum())), len(others))
    probabilities = np.ones(len(certain))
    values = scores.numpy().astype(np.float64)[others]
    probabilities[others] = inclusion_probabilities(values, room, power) if room else 0.0
    kept = certain.copy()
    kept[others[systematic_sample(probabilities[others], start)]] = True
    index = np.flatnonzero(kept)
    weight = torch.from_numpy(-np.log(probabilities[index])).to(torch.float32)
    return Kept(torch.from_numpy(index), weight)


def select_largest(scores: Tensor, certain: NDArray[np.bool_], budget: int) -> Kept:
    """Choose the certain keys and those with the largest scores; forget the others."""
    others = np.flatnonzero(~certain)
    room = min(max(0, budget - int(certain.sum())), len(others))
    kept = certain.copy()
    kept[others[np.argsort(-scores.numpy()[others], kind="stable")[:room]]] = True
    index = torch.from_numpy(np.flatnonzero(kept))
    return Kept(index, torch.zeros(len(index)))


def certain_keys(length: int, sinks: int, recent: int) -> NDArray[np.bool_]:
    """True at keys that are kept for certain: the first and the last ones."""
    out = np.zeros(length, dtype=bool)
    out[:sinks] = True
    out[length - min(recent, length) :] = True
    return out


def reduced_attention(
    inputs: LayerInputs, kept: Sequence[Kept], prefix: int, batch: int = 0
) -> Tensor:
    """Attention output [heads, n_q, d_v] of one text.

    Parameters
    ----------
    inputs
        The layer. Its first ``prefix`` keys are the prefix.
    kept
        What is kept of the prefix, one per key head.
    prefix
        Length of the prefix. Later keys are all there, as far as a query sees them.
    batch
        Number of the text.
    """
    group, heads = inputs.group, inputs.q.shape[1]
    later = torch.arange(prefix, inputs.k.shape[2])
    output = torch.empty(inputs.output_shape[1:], dtype=torch.float32)
    for g in range(heads // group):
        index = torch.cat([kept[g].index, later])
        weight = torch.cat([kept[g].log_weight, torch.zeros(len(later))])
        key = inputs.k[batch, g, index].to(torch.float32)
        value = inputs.v[batch, g, index].to(torch.float32)
        mine = slice(g * group, (g + 1) * group)
        logits = inputs.q[batch, mine].to(torch.float32) @ key.T * inputs.scaling
        if inputs.softcap is not None:
            logits = torch.tanh(logits / inputs.softcap) * inputs.softcap
        if inputs.bias is not None:
            bias = inputs.bias
            if bias.ndim == 4:
                bias = bias[min(batch, len(bias) - 1)]
            logits = logits + (bias if len(bias) == 1 else bias[mine])[..., index]
        seen = inputs.visible()
        seen = seen[min(batch, len(seen) - 1)]
        seen = (seen if len(seen) == 1 else seen[mine])[..., index]
        logits = (logits + weight).masked_fill(~seen, -torch.inf)
        # a query at padding may see no key
        weights = torch.nan_to_num(torch.softmax(logits, dim=-1), nan=0.0)
        output[mine] = weights @ value
    return output
