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
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from esscher.core.validation import Array
from esscher.engine.cache.budgets import POWERS, Keeping, Score, SelectionKind
from esscher.engine.cache.prompt import ObservedPrompt
from esscher.engine.cache.published import Rule
from esscher.engine.cache.selection import (
    Inclusion,
)
from esscher.engine.models import LayerInputs, LoadedModel, attention_override
from esscher.engine.reading import PassageReader
from esscher.engine.text import Passage

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


# One dense pass over calibration passages: what every budget of every key head would cost.
#
# That depends on how the end of the model depends on every attention output. Next-token
# distributions move by ``KL = E (g . delta)^2 / 2`` per token when attention outputs move by a
# small delta: g is the gradient of ``sum log p(token) / sqrt(tokens)`` for tokens drawn from the
# distributions themselves, and ``E g g'`` the Fisher information, by one backward pass per draw.

#: Backward passes per passage: token sequences drawn from the model.
DRAWS = 4
#: Bytes of keys and values of calibration passages that are held until there is a plan.
HELD_BYTES = 2**29
#: Budgets at which effects are computed; between them they are interpolated.
CORNERS = 40


@dataclass(frozen=True, eq=False)
class PassageEffects:
    """Effects of budgets on one passage.

    Attributes
    ----------
    effect
        On the model's end, [layers, key heads, selections, sizes]; see ``effects.py``.
    square
        Mean squared error of each head's output, [layers, heads, selections, sizes].
    norm
        Mean squared norm of each head's output, [layers, heads].
    sliding
        Layers with a sliding window: they are not reduced, and have no effects.
    """

    effect: Array
    square: Array
    norm: Array
    sliding: tuple[int, ...] = ()

    def chosen(self, layers: NDArray[np.int64], selection: SelectionKind) -> PassageEffects:
        """The effects of some layers and one kind of selection."""
        which = effects_for(selection)
        return PassageEffects(
            self.effect[layers][:, :, which], self.square[layers][:, :, which], self.norm[layers]
        )


class ObservedPassage:
    """A passage that was read once, with what was observed on the way.

    Parameters
    ----------
    loaded, passage
        Model and passage.
    prefix
        Length of the cache.
    keeping
        What is kept for certain.
    score, rules, asks
        As for :class:`~esscher.engine.cache.prompt.ObservedPrompt`.

    Attributes
    ----------
    prompt
        The prefix.
    reader
        Reads the passage again.
    certain
        True at keys that are kept for certain.
    """

    def __init__(
        self,
        loaded: LoadedModel,
        passage: Passage,
        prefix: int,
        keeping: Keeping,
        score: Score = "all",
        rules: Sequence[Rule] = (),
        asks: bool = True,
    ) -> None:
        self.loaded = loaded
        self.prompt = ObservedPrompt(loaded, passage.ids[:prefix], keeping, score, rules, asks)
        self.reader = PassageReader(loaded, passage, prefix, self.prompt.cache)
        self.certain = self.prompt.certain

    @property
    def keys(self) -> int:
        """Number of keys of which budgets are kept."""
        return len(self.certain)

    def scores(self, inputs: LayerInputs) -> Tensor:
        """Scores of a layer's keys, [key heads, keys]."""
        return self.prompt.scores[inputs.layer]


class HeldPassages:
    """Passages of a decoder that were read, as many as there is room for, until they are taken.

    A calibration passage is looked at twice, before there is a plan and under it. Reading it again
    would take as long as everything else.

    Parameters
    ----------
    room
        Bytes of keys and values at most.
    """

    def __init__(self, room: int = HELD_BYTES) -> None:
        self._room = room
        self._held: dict[int, ObservedPassage] = {}

    def put(self, number: int, observed: ObservedPassage) -> None:
        """Hold a passage if there is room."""
        if observed.prompt.nbytes <= self._room:
            self._room -= observed.prompt.nbytes
            self._held[number] = observed

    def take(self, number: int) -> ObservedPassage | None:
        """Give a passage away, if it is here."""
        found = self._held.pop(number, None)
        if found is not None:
            self._room += found.prompt.nbytes
        return found


def measure_effects(
    observed: ObservedPassage,
    sizes: NDArray[np.int64],
    generator: torch.Generator,
) -> PassageEffects:
    """Effects of budgets on one passage: one forward pass, and a backward pass per draw.

    Parameters
    ----------
    observed
        The passage.
    sizes
        Budgets.
    generator
        Source of randomness.
    """
    reader = observed.reader
    gradients = output_gradients(observed.loaded, reader.end, DRAWS, generator)
    found: list[LayerEffects] = []

    sliding: list[int] = []

    def look(inputs: LayerInputs) -> None:
        if inputs.window is not None:
            sliding.append(inputs.layer)
            found.append(no_effects(inputs, len(sizes)))
            return
        scores = observed.scores(inputs)
        found.append(
            layer_effects(inputs, gradients[inputs.layer], scores, observed.certain, sizes)
        )

    reader.read(look)
    return PassageEffects(
        effect=np.stack([layer.effect for layer in found]),
        square=np.stack([layer.square for layer in found]),
        norm=np.stack([layer.norm for layer in found]),
        sliding=tuple(sliding),
    )


def budget_grid(keys: int, certain: int, corners: int = CORNERS) -> NDArray[np.int64]:
    """Budgets from one key beside the certain ones to all keys, denser where they are small."""
    steps = np.geomspace(1, keys - certain, corners)
    return np.unique(certain + steps.round()).astype(np.int64)


def average_effects(parts: Sequence[PassageEffects]) -> PassageEffects:
    """Mean over passages."""
    return PassageEffects(
        effect=np.mean([part.effect for part in parts], axis=0),
        square=np.mean([part.square for part in parts], axis=0),
        norm=np.mean([part.norm for part in parts], axis=0),
    )


def output_gradients(
    loaded: LoadedModel, end: Callable[[], Tensor], draws: int, generator: torch.Generator
) -> list[Tensor]:
    """Gradients with respect to every layer's attention output, [draws, heads, n_q, d_v] each.

    Parameters
    ----------
    loaded
        The model.
    end
        Runs it on one passage; returns logarithms of next-token probabilities,
        [positions, vocabulary].
    draws
        Number of drawn token sequences.
    generator
        Source of randomness.
    """
    moved: list[Tensor] = []

    def replacement(inputs: LayerInputs) -> Tensor:
        own = inputs.own()
        moved.append(torch.zeros(own.shape, dtype=own.dtype).requires_grad_())
        return own + moved[-1]

    with torch.enable_grad(), attention_override(loaded, replacement):
        reached = end()
        law = reached.detach().exp()
        drawn = torch.multinomial(law, draws, replacement=True, generator=generator)
        tokens = len(law)
        targets = [reached.gather(1, drawn[:, r : r + 1]).sum() / tokens**0.5 for r in range(draws)]
        found = [
            torch.autograd.grad(target, moved, retain_graph=r + 1 < draws)
            for r, target in enumerate(targets)
        ]
    return [
        torch.stack([one[layer][0] for one in found]).to(torch.float32)
        for layer in range(len(moved))
    ]
