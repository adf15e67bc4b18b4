"""How the end of a model depends on every attention output.

A decoder's next-token laws move by ``KL = E (g . delta)^2 / 2`` per token when attention outputs
move by a small delta: g is the gradient of ``sum log p(token) / sqrt(tokens)`` for tokens drawn
from the laws themselves, and ``E g g'`` the Fisher information. An encoder's embedding e moves, as
a direction, by ``1 - cos = |d(e/|e|)|^2 / 2 = E (g . delta)^2 / 2`` with g the gradient of
``<xi, e/|e|>``, xi standard normal. Both are computed by one backward pass per draw.
"""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

from esscher.engine.models import LayerInputs, LoadedModel, attention_override


def output_gradients(
    loaded: LoadedModel, end: Callable[[], Tensor], draws: int, generator: torch.Generator
) -> list[Tensor]:
    """Gradients with respect to every layer's attention output, [draws, heads, n_q, d_v] each.

    Parameters
    ----------
    loaded
        The model.
    end
        Runs it on one passage. Decoder: returns logarithms of next-token probabilities,
        [positions, vocabulary]. Encoder: the embedding, [hidden].
    draws
        Number of drawn token sequences, or of directions.
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
        if loaded.causal:
            law = reached.detach().exp()
            drawn = torch.multinomial(law, draws, replacement=True, generator=generator)
            tokens = len(law)
            targets = [
                reached.gather(1, drawn[:, r : r + 1]).sum() / tokens**0.5 for r in range(draws)
            ]
        else:
            unit = reached / torch.linalg.vector_norm(reached)
            directions = torch.randn(draws, len(unit), generator=generator)
            targets = [direction @ unit for direction in directions]
        found = [
            torch.autograd.grad(target, moved, retain_graph=r + 1 < draws)
            for r, target in enumerate(targets)
        ]
    return [
        torch.stack([one[layer][0] for one in found]).to(torch.float32)
        for layer in range(len(moved))
    ]
