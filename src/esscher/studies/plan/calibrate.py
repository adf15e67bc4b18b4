"""One dense pass over calibration passages: what every budget of every key head would cost.

That depends on how the end of the model depends on every attention output. A decoder's next-token
laws move by ``KL = E (g . delta)^2 / 2`` per token when attention outputs move by a small delta: g
is the gradient of ``sum log p(token) / sqrt(tokens)`` for tokens drawn from the laws themselves,
and ``E g g'`` the Fisher information, by one backward pass per draw.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from esscher.core.validation import Array
from esscher.engine.cache.budgets import Keeping, Score, SelectionKind
from esscher.engine.cache.prompt import ObservedPrompt
from esscher.engine.cache.published import Rule
from esscher.engine.models import LayerInputs, LoadedModel, attention_override
from esscher.engine.reading import PassageReader
from esscher.engine.text import Passage
from esscher.studies.plan.effects import (
    LayerEffects,
    effects_for,
    layer_effects,
    no_effects,
)

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
