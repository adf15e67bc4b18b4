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
    values
        Values in the place of their own, [keys, d_v]; None if they keep theirs.
    """

    index: Tensor
    log_weight: Tensor
    values: Tensor | None = None


class Inclusion:
    """Probabilities ``min(1, c (s + floor)^power)`` of keys, for samples of any size.

    The keys are sorted once. Of a sample of n the m strongest are certain, and the others have
    ``c = (n - m) / (sum of their strengths)``; m is the smallest number for which none exceeds 1.

    Parameters
    ----------
    scores
        Of the keys.
    power
        Of the scores.
    """

    def __init__(self, scores: Array, power: float) -> None:
        strength = (scores + FLOOR * scores.mean()) ** power if len(scores) else scores
        if not np.any(strength > 0):
            strength = np.ones(len(scores))
        self._order = np.argsort(-strength, kind="stable")
        self._ordered = strength[self._order]
        # a 0 behind: nothing is left when all keys are certain
        self._left = np.append(np.cumsum(self._ordered[::-1])[::-1], 0.0)
        # largest sample in which so many strongest keys are certain; it never falls
        with np.errstate(divide="ignore"):
            self._largest = np.arange(len(scores)) + self._left[:-1] / self._ordered

    def certain(self, sizes: NDArray[np.int64]) -> NDArray[np.int64]:
        """How many of the strongest keys are certain in samples of these sizes."""
        return np.searchsorted(self._largest, sizes, side="left")

    def probabilities(self, size: int) -> Array:
        """Probabilities that sum to a size; all 1 if there are not more keys."""
        out = np.ones(len(self._order))
        if size >= len(out):
            return out
        first = int(self.certain(np.array([size]))[0])
        rest = (size - first) * self._ordered[first:] / self._left[first]
        out[self._order[first:]] = np.minimum(rest, 1.0)
        return out

    def excess(self, costs: Array, sizes: NDArray[np.int64]) -> Array:
        """``sum_j cost_j (1/pi_j - 1)`` for samples of these sizes, [..., sizes].

        Parameters
        ----------
        costs
            Of the keys, [..., keys].
        sizes
            At most the number of keys.
        """
        ordered = costs[..., self._order]

        def behind(values: Array) -> Array:
            total = np.cumsum(values[..., ::-1], axis=-1)[..., ::-1]
            return np.concatenate([total, np.zeros_like(total[..., :1])], axis=-1)

        first = np.minimum(self.certain(sizes), len(self._order))
        with np.errstate(divide="ignore", invalid="ignore"):
            weight = np.where(sizes < len(self._order), self._left[first] / (sizes - first), 0.0)
            shares = np.where(ordered > 0, ordered / self._ordered, 0.0)
        whole = np.where(sizes < len(self._order), behind(ordered)[..., first], 0.0)
        return np.asarray(np.maximum(weight * behind(shares)[..., first] - whole, 0.0))


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
    probabilities[others] = Inclusion(values, power).probabilities(room) if room else 0.0
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
        other = kept[g].values
        if other is not None:
            value[: len(other)] = other
        mine = slice(g * group, (g + 1) * group)
        logits = inputs.q[batch, mine].to(torch.float32) @ key.T * inputs.scaling
        if inputs.softcap is not None:
            logits = torch.tanh(logits / inputs.softcap) * inputs.softcap
        bias = inputs.text_bias(batch)
        if bias is not None:
            logits = logits + (bias if len(bias) == 1 else bias[mine])[..., index]
        seen = inputs.visible()
        seen = seen[min(batch, len(seen) - 1)]
        seen = (seen if len(seen) == 1 else seen[mine])[..., index]
        logits = (logits + weight).masked_fill(~seen, -torch.inf)
        # a query at padding may see no key
        weights = torch.nan_to_num(torch.softmax(logits, dim=-1), nan=0.0)
        output[mine] = weights @ value
    return output
