"""What keeping n keys of a head costs, measured: samples are drawn and attention is run on them.

``effects.py`` predicts effects from the weights of one dense pass, to first order in the sample's
errors. Here the errors of a head's output are those of real samples of every size, with all that a
ratio of two estimates does when few keys are left; the model behind the head is still taken as
linear, through the same gradients. Slower, since every size and power is tried.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from esscher.core.validation import Array
from esscher.engine.models import LayerInputs
from esscher.studies.plan.budgets import POWERS
from esscher.studies.plan.effects import LayerEffects
from esscher.studies.plan.reduced import reduced_attention
from esscher.studies.plan.selection import select_sample, spread_starts

#: Samples of every size.
SAMPLES = 4


def swept_effects(
    inputs: LayerInputs,
    gradients: Tensor,
    scores: Tensor,
    certain: NDArray[np.bool_],
    sizes: NDArray[np.int64],
    start: Callable[[int], float],
) -> LayerEffects:
    """Effects of keeping some numbers of a layer's keys; arguments as for ``layer_effects``.

    Parameters
    ----------
    inputs, gradients, scores, certain, sizes
        As for :func:`~esscher.studies.plan.effects.layer_effects`.
    start
        A uniform number in [0, 1) for each key head.
    """
    own = inputs.own()[0].to(torch.float32)
    key_heads, group = len(scores), inputs.group
    effect = np.empty((key_heads, len(POWERS), len(sizes)))
    square = np.empty((len(own), len(POWERS), len(sizes)))
    starts = np.array([spread_starts(start(g), SAMPLES) for g in range(key_heads)])
    for p, s in np.ndindex(len(POWERS), len(sizes)):
        moved: list[Array] = []
        squares: list[Array] = []
        for draw in range(SAMPLES):
            kept = [
                select_sample(scores[g], certain, int(sizes[s]), POWERS[p], starts[g, draw])
                for g in range(key_heads)
            ]
            apart = reduced_attention(inputs, kept, len(certain)) - own
            # heads that share keys are moved together
            moves = (gradients * apart).sum((-1, -2)).reshape(-1, key_heads, group).sum(-1)
            moved.append(moves.square().mean(0).double().numpy() / 2)
            squares.append(apart.square().sum(-1).mean(-1).double().numpy())
        effect[:, p, s], square[:, p, s] = np.mean(moved, axis=0), np.mean(squares, axis=0)
    norm = own.square().sum(-1).mean(-1).double().numpy()
    return LayerEffects(effect, square, norm)
