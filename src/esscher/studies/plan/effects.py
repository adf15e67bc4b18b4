"""What keeping n keys of a head costs: predicted from one dense pass, or measured.

For a query i with weights ``p_ij``, output ``y_i`` and gradient ``g_i`` of the model's end, key j
contributes ``c_j = sum_i p_ij g_i' (v_j - y_i)`` to the end: to first order it moves by
``sum_j (a_j - 1) c_j`` when key j is counted ``a_j`` times. A sample has ``a_j = 1/pi_j`` with the
probability ``pi_j``, else 0, hence (mean over gradients)

    effect = 1/2 sum_j (1/pi_j - 1) E[c_j^2].

For a decoder it is a KL divergence per token in nats, for an encoder a loss of cosine (see
``calibrate.py``). The same sum with ``sum_i p_ij^2 |v_j - y_i|^2`` in place of ``c_j^2`` is the
squared error of a head's own output. Query heads that share a key are moved together: their
contributions add up before they are squared.

Keeping the largest scores and forgetting the others has no such formula, and needs none: what is
left of a head's output is computed for every size, by one pass over the keys in the order of their
scores.
"""

from __future__ import annotations

import itertools
from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from esscher.core.validation import Array
from esscher.engine.cache.budgets import POWERS, SelectionKind
from esscher.engine.cache.selection import (
    Inclusion,
)
from esscher.engine.models import LayerInputs

#: Ways to select: a sample with each of the powers, and last the largest scores.
SELECTIONS, LARGEST = len(POWERS) + 1, len(POWERS)
#: Power of a sample that is fitted. The fit takes away noise that queries of the prompt can see: on
#: SmolLM2 larger powers were no closer to dense then, and lost more of what was asked for, and the
#: powers that are best without a fit, or smaller ones, were farther from dense at small budgets.
FITTED = POWERS.index(1.0)
#: Least share of a query's weights that is taken to be left.
SMALLEST_MASS = 1e-6


def effects_for(selection: SelectionKind) -> slice:
    """Which of the ways to select a plan chooses among, for each key head.

    What fitting saves is not predicted: budgets are those of the sample behind it.
    """
    if selection == "fitted":
        return slice(FITTED, FITTED + 1)
    return slice(LARGEST, None) if selection == "topk" else slice(LARGEST)


@dataclass(frozen=True, eq=False)
class LayerEffects:
    """Effects of budgets in one layer on one passage.

    Attributes
    ----------
    effect
        On the model's end, [key heads, selections, sizes]: samples with each of ``POWERS``, and
        last keeping the largest scores.
    square
        Mean squared error of each head's output, [heads, selections, sizes].
    norm
        Mean squared norm of each head's output, [heads].
    """

    effect: Array
    square: Array
    norm: Array


def layer_effects(
    inputs: LayerInputs,
    gradients: Tensor,
    scores: Tensor,
    certain: NDArray[np.bool_],
    sizes: NDArray[np.int64],
) -> LayerEffects:
    """Effects of keeping some numbers of a layer's keys.

    Parameters
    ----------
    inputs
        Queries that ask, all keys that they see; the first ones are those of the prefix.
    gradients
        Of the model's end, [draws, heads, n_q, d_v].
    scores
        Of the prefix's keys, [key heads, n].
    certain
        Keys of the prefix that are kept for certain, [n].
    sizes
        Budgets, the certain keys included; at least one more than these.
    """
    group, heads = inputs.group, inputs.q.shape[1]
    prefix, count = len(certain), inputs.q.shape[2]
    outputs = inputs.own()[0].to(torch.float32)
    effect = np.empty((heads // group, SELECTIONS, len(sizes)))
    square = np.empty((heads, SELECTIONS, len(sizes)))
    others = np.flatnonzero(~certain)
    rooms = np.clip(sizes - (prefix - len(others)), 1, len(others))
    for g in range(heads // group):
        mine = list(range(g * group, (g + 1) * group))
        values = inputs.v[0, g, :prefix].to(torch.float32)[others]
        own = scores[g].numpy().astype(np.float64)[others]
        order = np.argsort(-own, kind="stable")
        moves = torch.zeros(len(gradients), len(others))
        forgotten = torch.zeros(len(gradients), len(sizes))
        squares = []
        for h in mine:
            logits = inputs.logits(0, h, slice(None), torch.float32)
            weights = torch.softmax(logits, dim=-1)[:, others]
            y, slope = outputs[h], gradients[:, h]
            # sum_i p_ij g_i' v_j, and sum_i p_ij g_i' y_i
            moves += ((weights.T @ slope) * values).sum(-1)
            moves -= (slope * y).sum(-1) @ weights
            distance = _square_distances(y, values)
            squares.append((weights.square() * distance).sum(0).double().numpy() / count)
            apart = _without_smallest(weights[:, order], values[order], y, rooms)
            forgotten += torch.einsum("rqd,sqd->rs", slope, apart)
            square[h, LARGEST] = apart.square().sum((-1, -2)).double().numpy() / count
        effect[g, LARGEST] = forgotten.square().mean(0).double().numpy() / 2
        moved = moves.square().mean(0).double().numpy() / 2
        costs = np.stack([moved, *squares])
        for p, power in enumerate(POWERS):
            effect[g, p], *square[mine, p] = Inclusion(own, power).excess(costs, rooms)
    norm = outputs.square().sum(-1).mean(-1).double().numpy()
    return LayerEffects(effect, square, norm)


def no_effects(inputs: LayerInputs, sizes: int) -> LayerEffects:
    """Return effects of a layer that is not reduced, at so many sizes."""
    _, heads, _, _ = inputs.output_shape
    norm = inputs.own()[0].to(torch.float32).square().sum(-1).mean(-1)
    return LayerEffects(
        effect=np.zeros((inputs.k.shape[1], SELECTIONS, sizes)),
        square=np.zeros((heads, SELECTIONS, sizes)),
        norm=norm.double().numpy(),
    )


def _without_smallest(
    weights: Tensor, values: Tensor, outputs: Tensor, rooms: NDArray[np.int64]
) -> Tensor:
    """Change of outputs when only the first keys are left of some, [sizes, queries, d_v].

    Parameters
    ----------
    weights, values
        Of the keys, in the order in which they are kept: [queries, keys], [keys, d_v].
    outputs
        With all of them, [queries, d_v].
    rooms
        How many are left, increasing.
    """
    ends = [*rooms.tolist(), len(values)]
    parts = [slice(a, b) for a, b in itertools.pairwise(ends)]
    lost = torch.stack([weights[:, part] @ values[part] for part in parts])
    mass = torch.stack([weights[:, part].sum(-1, keepdim=True) for part in parts])
    # what is lost at a size is what lies behind it
    lost, mass = (x.flip(0).cumsum(0).flip(0) for x in (lost, mass))
    return (mass * outputs - lost) / (1 - mass).clamp(min=SMALLEST_MASS)


def _square_distances(outputs: Tensor, values: Tensor) -> Tensor:
    """``|v_j - y_i|^2``, [queries, keys]."""
    cross = outputs @ values.T
    square = values.square().sum(-1) - 2 * cross + outputs.square().sum(-1, keepdim=True)
    return square.clamp(min=0.0)
