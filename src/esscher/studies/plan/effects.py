"""What keeping n keys of a head would cost, from one dense pass over calibration passages.

For a query i with weights ``p_ij``, output ``y_i`` and gradient ``g_i`` of the model's end, key j
contributes ``c_j = sum_i p_ij g_i' (v_j - y_i)`` to the end: to first order it moves by
``sum_j (a_j - 1) c_j`` when key j is counted ``a_j`` times. A sample has ``a_j = 1/pi_j`` with the
probability ``pi_j``, else 0, hence (mean over gradients)

    effect = 1/2 sum_j (1/pi_j - 1) E[c_j^2].

It is a KL divergence per token in nats. The same sum with ``sum_i p_ij^2 |v_j - y_i|^2`` in place
of ``c_j^2`` is the squared error of a head's own output. Query heads that share a key are moved
together: their contributions add up before they are squared.

Keys and values in fewer bits are wrong by ``dk_j`` and ``dv_j``, which moves the end by
``e_j = sum_i p_ij g_i' (dv_j + a q_i' dk_j (v_j - y_i))``, a the factor of the logits. Errors of
different tokens are unrelated, and a token that stands for 1/pi_j others brings its own as often:
they add ``1/2 sum_j E[e_j^2] / pi_j``.

Keeping the largest scores and forgetting the others has no such formula, and needs none: what is
left of a head's output is computed for every size, by one pass over the keys in the order of their
scores.

Next-token distributions move by ``KL = E (g . delta)^2 / 2`` per token when attention outputs move
by a small delta: g is the gradient of ``sum log p(token) / sqrt(tokens)`` for tokens drawn from the
distributions themselves, and ``E g g'`` the Fisher information, by one backward pass per draw.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from esscher.core.validation import Array
from esscher.engine.attention.bits import ALL_BITS, BLOCK, EXACT, Bits
from esscher.engine.attention.coded import decode, encode
from esscher.engine.cache.budgets import POWERS, Keeping, Score, SelectionKind
from esscher.engine.cache.cache import ObservedPrompt
from esscher.engine.cache.published import Rule
from esscher.engine.cache.selection import Inclusion
from esscher.engine.models.capture import attention_override
from esscher.engine.models.inputs import LayerInputs
from esscher.engine.models.loaded import LoadedModel
from esscher.engine.reading import PassageReader
from esscher.engine.text.packing import Passage

#: Ways to select: a sample with each of the powers, and last the largest scores.
SELECTIONS = (*(f"power {power:g}" for power in POWERS), "topk")
LARGEST = len(POWERS)
#: Names of the bits of keys and values.
BITS = tuple(f"{keys}/{values}" for keys, values in ALL_BITS)
#: Power of a sample that is fitted. The fit takes away noise that queries of the prompt can see: on
#: SmolLM2 larger powers were no closer to dense then, and lost more of what was asked for, and the
#: powers that are best without a fit, or smaller ones, were farther from dense at small budgets.
FITTED = POWERS.index(1.0)
#: Tokens of a block of codes are taken to be so far apart: about as kept ones are.
STRIDE = 8
#: Least share of a query's weights that is taken to be left.
SMALLEST_MASS = 1e-6
#: Backward passes per passage: token sequences drawn from the model.
DRAWS = 4
#: Budgets at which effects are computed; between them they are interpolated.
CORNERS = 40


@dataclass(frozen=True, eq=False)
class PassageEffects:
    """Effects of budgets on one passage.

    Attributes
    ----------
    effect
        On the model's end, [layers, key heads, selections, bits, sizes]: samples with each of
        ``POWERS``, and last keeping the largest scores, which is done with 16 bits alone.
    square
        Mean squared error of each head's output, [layers, heads, selections, bits, sizes].
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
        """The effects of some layers, [..., ways, sizes]: of the :func:`ways` of a selection.

        What fitting saves is not predicted: budgets are those of the sample behind it.
        """
        which, bits = slice(LARGEST), slice(None)
        if selection == "fitted":
            which = slice(FITTED, FITTED + 1)
        elif selection == "topk":
            which, bits = slice(LARGEST, None), slice(1)
        effect, square = (
            array[layers][:, :, which, bits].reshape(
                len(layers), array.shape[1], -1, array.shape[4]
            )
            for array in (self.effect, self.square)
        )
        return PassageEffects(effect, square, self.norm[layers])


def ways(selection: SelectionKind) -> list[tuple[float, Bits]]:
    """Powers of scores and bits among which a plan chooses for every key head.

    The largest scores are kept without a power, and as other runtimes have them: in 16 bits.
    """
    if selection == "topk":
        return [(POWERS[0], EXACT)]
    powers = (POWERS[FITTED],) if selection == "fitted" else POWERS
    return [(power, bits) for power in powers for bits in ALL_BITS]


def average_effects(parts: Sequence[PassageEffects]) -> PassageEffects:
    """Mean over passages."""
    return PassageEffects(
        effect=np.mean([part.effect for part in parts], axis=0),
        square=np.mean([part.square for part in parts], axis=0),
        norm=np.mean([part.norm for part in parts], axis=0),
    )


def budget_grid(keys: int, certain: int, corners: int = CORNERS) -> NDArray[np.int64]:
    """Budgets from one key besides the certain ones to all keys, denser where they are small."""
    steps = np.geomspace(1, keys - certain, corners)
    return np.unique(certain + steps.round()).astype(np.int64)


def read_passage(
    loaded: LoadedModel,
    passage: Passage,
    prefix: int,
    keeping: Keeping,
    score: Score = "all",
    rules: Sequence[Rule] = (),
    fits: bool = True,
) -> tuple[ObservedPrompt, PassageReader]:
    """Read the prefix of a passage; parameters are those of :class:`ObservedPrompt`."""
    prompt = ObservedPrompt(loaded, passage.ids[:prefix], keeping, score, rules, fits)
    return prompt, PassageReader(loaded, passage, prefix, prompt.cache)


def measure_effects(
    prompt: ObservedPrompt,
    reader: PassageReader,
    sizes: NDArray[np.int64],
    generator: torch.Generator,
) -> PassageEffects:
    """Effects of budgets on one passage: one forward pass, and a backward pass per draw.

    Parameters
    ----------
    prompt, reader
        From :func:`read_passage`.
    sizes
        Budgets.
    generator
        Source of randomness.
    """
    gradients = output_gradients(prompt.loaded, reader.end, DRAWS, generator)
    layers: list[tuple[Array, Array, Array]] = []
    sliding: list[int] = []

    def measure(inputs: LayerInputs) -> None:
        if inputs.window is None:
            scores = prompt.scores[inputs.layer]
            layers.append(
                layer_effects(inputs, gradients[inputs.layer], scores, prompt.certain, sizes)
            )
            return
        sliding.append(inputs.layer)
        _, heads, _, _ = inputs.output_shape
        shape = (len(SELECTIONS), len(ALL_BITS), len(sizes))
        norm = inputs.original()[0].float().square().sum(-1).mean(-1).double().cpu().numpy()
        layers.append((np.zeros((inputs.k.shape[1], *shape)), np.zeros((heads, *shape)), norm))

    reader.read(measure)
    effect, square, norm = (np.stack(arrays) for arrays in zip(*layers, strict=True))
    return PassageEffects(effect, square, norm, tuple(sliding))


def layer_effects(
    inputs: LayerInputs,
    gradients: Tensor,
    scores: Tensor,
    certain: NDArray[np.bool_],
    sizes: NDArray[np.int64],
) -> tuple[Array, Array, Array]:
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

    Returns
    -------
    tuple[Array, Array, Array]
        Effect, square and norm of :class:`PassageEffects`, without the axis of layers.
    """
    group, heads = inputs.group, inputs.q.shape[1]
    prefix, count = len(certain), inputs.q.shape[2]
    outputs = inputs.original()[0].to(torch.float32)
    shape = (len(SELECTIONS), len(ALL_BITS), len(sizes))
    effect = np.full((heads // group, *shape), np.nan)
    square = np.full((heads, *shape), np.nan)
    others = np.flatnonzero(~certain)
    rooms = np.clip(sizes - (prefix - len(others)), 1, len(others))
    for g in range(heads // group):
        mine = list(range(g * group, (g + 1) * group))
        keys, values = (x[0, g, :prefix].to(torch.float32)[others] for x in (inputs.k, inputs.v))
        # errors of keys and of values by bits
        wrong = {bits: rounding_errors(keys, values, bits) for bits in (8, 4)}
        key_scores = scores[g].cpu().numpy().astype(np.float64)[others]
        order = np.argsort(-key_scores, kind="stable")
        moves = keys.new_zeros(len(gradients), len(others))
        moved_by = {bits: keys.new_zeros(2, *moves.shape) for bits in wrong}
        forgotten = keys.new_zeros(len(gradients), len(sizes))
        squares = []
        for h in mine:
            logits = inputs.logits(0, h, slice(None), torch.float32)
            weights = torch.softmax(logits, dim=-1)[:, others]
            y, slope = outputs[h], gradients[:, h]
            query = inputs.q[0, h].to(torch.float32) * inputs.scaling
            # p_ij g_i' (v_j - y_i), [draws, queries, keys]
            pull = (slope @ values.T - (slope * y).sum(-1, keepdim=True)) * weights
            moves += pull.sum(1)
            received, turned = weights.T @ slope, pull.mT @ query
            for bits, (of_keys, of_values) in wrong.items():
                moved_by[bits][0] += (turned * of_keys).sum(-1)
                moved_by[bits][1] += (received * of_values).sum(-1)
            # |v_j - y_i|^2, [queries, keys]
            distance = values.square().sum(-1) - 2 * (y @ values.T) + y.square().sum(-1, True)
            distance = distance.clamp(min=0.0)
            shares = weights.square()
            apart = shares * distance
            rounded = {
                bits: (
                    ((query @ of_keys.T).square() * apart).sum(0),
                    shares.sum(0) * of_values.square().sum(-1),
                )
                for bits, (of_keys, of_values) in wrong.items()
            }
            squares.append(_by_bits(apart.sum(0), rounded) / count)
            lost = _without_smallest(weights[:, order], values[order], y, rooms)
            forgotten += torch.einsum("rqd,sqd->rs", slope, lost)
            square[h, LARGEST, 0] = lost.square().sum((-1, -2)).double().cpu().numpy() / count
        effect[g, LARGEST, 0] = forgotten.square().mean(0).double().cpu().numpy() / 2
        by_bits = {bits: x.square().mean(1) for bits, x in moved_by.items()}
        costs = np.stack([_by_bits(moves.square().mean(0), by_bits) / 2, *squares])
        # of the sample, and of rounding what is kept of it
        of_bits = (costs - costs[:, :1]).sum(-1)[..., None]
        for p, power in enumerate(POWERS):
            total = Inclusion(key_scores, power).excess(costs, rooms) + of_bits
            effect[g, p], *square[mine, p] = total
    norm = outputs.square().sum(-1).mean(-1).double().cpu().numpy()
    return effect, square, norm


def _by_bits(sampled: Tensor, rounded: Mapping[int, Sequence[Tensor] | Tensor]) -> Array:
    """Squares by the bits of ``ALL_BITS``, [bits, keys]: of sampling keys, and of rounding them.

    ``rounded`` has squares of rounding keys and of rounding values, by their bits.
    """
    rows = [
        sampled if b == EXACT else sampled + rounded[b[0]][0] + rounded[b[1]][1] for b in ALL_BITS
    ]
    return torch.stack(rows).double().cpu().numpy()


def rounding_errors(keys: Tensor, values: Tensor, bits: int) -> tuple[Tensor, Tensor]:
    """What keys [n, d_k] and values [n, d_v] are wrong by with so many bits."""
    place = torch.arange(len(keys), device=keys.device)
    order = torch.argsort(place // (STRIDE * BLOCK) * STRIDE + place % STRIDE, stable=True)
    widths = keys.shape[1], values.shape[1]
    data = encode(keys[order], values[order], keys.new_zeros(len(keys)), (bits, bits))
    rounded = decode(data, len(keys), *widths, (bits, bits))[:2]
    back = torch.argsort(order)
    return rounded[0][back] - keys, rounded[1][back] - values


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
        exact = inputs.original()
        moved.append(exact.new_zeros(exact.shape).requires_grad_())
        return exact + moved[-1]

    with torch.enable_grad(), attention_override(loaded, replacement):
        logs = end()
        law = logs.detach().exp().cpu()
        drawn = torch.multinomial(law, draws, replacement=True, generator=generator)
        drawn = drawn.to(logs.device)
        targets = [
            logs.gather(1, drawn[:, r : r + 1]).sum() / len(logs) ** 0.5 for r in range(draws)
        ]
        gradients = [
            torch.autograd.grad(target, moved, retain_graph=r + 1 < draws)
            for r, target in enumerate(targets)
        ]
    return [
        torch.stack([draw[layer][0] for draw in gradients]).to(torch.float32)
        for layer in range(len(moved))
    ]
