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

import math
from collections.abc import Sequence
from dataclasses import replace
from typing import TYPE_CHECKING

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from esscher.core.streams import random_stream
from esscher.core.validation import Array
from esscher.engine.attention.coded import rounded_keys
from esscher.engine.cache.budgets import Score, SelectionKind, TokenBudgets
from esscher.engine.cache.scores import QUERIES, QueryTargets, capped, observe_prompt
from esscher.engine.cache.storage import Kept
from esscher.engine.models.inputs import LayerInputs
from esscher.engine.models.weights import rotation_of

if TYPE_CHECKING:
    from esscher.engine.models.loaded import LoadedModel

#: ``pi ~ (s + FLOOR mean(s))^power``: the floor is for keys that the observed queries overlooked.
FLOOR = 0.1


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
    index = np.searchsorted(total, points, side="right")
    return np.unique(np.minimum(index, len(probabilities) - 1)).astype(np.int64)


def select_keys(
    selection: SelectionKind,
    scores: Tensor,
    certain: NDArray[np.bool_],
    budget: int,
    power: float = 1.0,
    start: float = 0.0,
) -> Kept:
    """Choose the keys of one key head: the certain ones, and others by their scores.

    Parameters
    ----------
    selection
        ``"topk"`` keeps the largest scores without weights; otherwise a weighted sample.
    scores
        Of every key, [n_k].
    certain
        True at keys that are kept for certain, [n_k].
    budget
        Keys in all, the certain ones included.
    power
        Power of the scores in the probabilities of a sample.
    start
        A uniform number in [0, 1), the randomness of a sample.
    """
    others = np.flatnonzero(~certain)
    room = min(max(0, budget - int(certain.sum())), len(others))
    kept, probabilities = certain.copy(), np.ones(len(certain))
    if selection == "topk":
        kept[others[np.argsort(-scores.numpy()[others], kind="stable")[:room]]] = True
    else:
        values = scores.numpy().astype(np.float64)[others]
        probabilities[others] = Inclusion(values, power).probabilities(room) if room else 0.0
        kept[others[systematic_sample(probabilities[others], start)]] = True
    index = np.flatnonzero(kept)
    weight = torch.from_numpy(-np.log(probabilities[index])).to(torch.float32)
    return Kept(torch.from_numpy(index), weight)


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
    output = inputs.q.new_empty(inputs.output_shape[1:], dtype=torch.float32)
    for g in range(heads // group):
        index = torch.cat([kept[g].index, later])
        key, value = (x[batch, g, later].to(torch.float32) for x in (inputs.k, inputs.v))
        new = key, value, key.new_zeros(len(later))
        stored = kept[g].stored(inputs.k[batch, g], inputs.v[batch, g])
        key, value, weight = (torch.cat(both) for both in zip(stored, new, strict=True))
        mine = slice(g * group, (g + 1) * group)
        logits = inputs.q[batch, mine].to(torch.float32) @ key.T * inputs.scaling
        logits = capped(logits, inputs.softcap)
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


# Least-squares fit of kept weights and values to the prompt's own attention outputs.
#
# A sample of keys has noise, also for queries that were there. So some of the prompt's queries,
# moved after it (``scores.py``), attend to the whole prompt: ``Z_i`` is the sum of their
# exponentials, ``y_i`` their output. With ``b_ij = w_j exp(l_ij) / Z_i`` for what is kept, l the
# logits of keys as they are stored and w the weights of the sample, a query that sees only that
# gets the numerator ``sum_j b_ij v_j`` and the denominator ``sum_j b_ij``, which should be ``y_i``
# and 1. Both are linear, with one matrix: values ``x_j = (v_j, 1)`` are moved by
#
#     delta = argmin  sum_i |(y_i, 1) - sum_j b_ij (x_j + delta_j)|^2 + lambda sum_j |delta_j|^2,
#
# and ``v_j + delta`` over ``1 + delta`` takes the place of a value, ``w_j (1 + delta)`` that of its
# weight. Where no query attends, delta is 0: there the sample stays what it is. (Attention
# Matching, arXiv 2602.16284, fits biases and values without a sample behind them.) Many queries
# want a small ridge, few a large one: on development text 3,072 queries with 0.01 came to 0.67 to
# 0.81 of the divergence that 768 with 0.1 leave.

#: Ridge, lambda over the mean of the squared columns of b: for all queries, and the largest.
#: Between these it grows with a power of their number as it falls.
RIDGE, LARGEST_RIDGE, STIFFER = 0.01, 0.1, 5 / 3
#: Queries times squared tokens of a key head: where these are more, fewer queries are taken, down
#: to so many.
PRODUCTS, FEWEST = 6e8, 768
#: A weight is changed by this factor at most.
LARGEST_CHANGE = 10.0


@torch.no_grad()
def fit_kept(
    kept: Kept,
    targets: QueryTargets,
    keys: Tensor,
    values: Tensor,
    auxiliary: Tensor | None = None,
    ridge: float | None = None,
) -> Kept:
    """Fit weights and values of what is kept of one key head.

    Parameters
    ----------
    kept
        Of the keys; returned as it is if it is all of them, or none.
    targets
        What queries get from all of them.
    keys, values
        All of them, [n, d_k] and [n, d_v].
    auxiliary
        Numbers of keys that are there as well and stay as they are.
    ridge
        Of the fit: 0 would follow the queries as far as possible. By default it is larger the fewer
        queries there are.
    """
    others = 0 if auxiliary is None else len(auxiliary)
    if not len(kept.index) or len(kept.index) + others >= len(keys):
        return kept
    # fewer queries where many tokens are kept: there little is left to be fitted
    step = max(1, math.ceil(len(targets.query) * len(kept.index) ** 2 / PRODUCTS))
    step = min(step, max(1, len(targets.query) // FEWEST))
    query, log_sum, output = (x[::step] for x in (targets.query, targets.log_sum, targets.output))
    bias = targets.bias
    if bias is not None and len(bias) > 1:
        bias = bias[::step]
    if ridge is None:
        ridge = min(LARGEST_RIDGE, RIDGE * (QUERIES / len(query)) ** STIFFER)

    def seen(index: Tensor, log_weight: Tensor | float, coded: int = 0) -> tuple[Tensor, Tensor]:
        """Values of some keys with a 1 behind, and the shares of queries that they have."""
        key = keys[index].to(torch.float32)
        if coded:  # queries see what rounding has left
            key[-coded:] = rounded_keys(key[-coded:], kept.bits[0])
        logits = capped(query @ key.T, targets.softcap)
        if bias is not None:
            logits += bias[:, index]
        shares = logits.add_(log_weight).sub_(log_sum[:, None]).exp_()
        chosen = values[index].to(torch.float32)
        return torch.cat([chosen, chosen.new_ones(len(chosen), 1)], dim=1), shares

    weight = kept.log_weight.to(keys.device)
    old, shares = seen(kept.index.to(keys.device), weight, kept.coded)
    aim = torch.cat([output, output.new_ones(len(output), 1)], dim=1)
    aim -= shares @ old
    if auxiliary is not None:
        fixed, fixed_shares = seen(auxiliary.to(keys.device), 0.0)
        aim -= fixed_shares @ fixed
    new = old + ridge_solution(shares, aim, ridge)
    change = new[:, -1:].clamp(1 / LARGEST_CHANGE, LARGEST_CHANGE)
    log_weight = weight + change[:, 0].log()
    return replace(kept, log_weight=log_weight.cpu(), values=(new[:, :-1] / change).cpu())


def ridge_solution(matrix: Tensor, aim: Tensor, ridge: float) -> Tensor:
    """Solve ``min |aim - matrix x|^2 + lambda |x|^2``, lambda = ``ridge`` x mean square of columns.

    Of rows and columns the fewer decide what it costs.
    """
    rows, columns = matrix.shape
    size = float(matrix.square().sum()) / columns
    if not 0 < size < float("inf"):
        return matrix.new_zeros(columns, aim.shape[1])
    if columns <= rows:
        square = _gram(matrix)
        square.diagonal().add_(ridge * size)
        return torch.cholesky_solve(matrix.T @ aim, torch.linalg.cholesky(square))
    square = _gram(matrix.T)
    square.diagonal().add_(ridge * size)
    return matrix.T @ torch.cholesky_solve(aim, torch.linalg.cholesky(square))


def _gram(matrix: Tensor) -> Tensor:
    """Products of columns, of which the lower triangle is right: a factorisation reads no more."""
    columns = matrix.shape[1]
    square, step = matrix.new_zeros(columns, columns), max(64, -(-columns // 6))
    for first in range(0, columns, step):
        block = slice(first, first + step)
        torch.mm(matrix[:, first:].T, matrix[:, block], out=square[first:, block])
    return square


class PlannedRule:
    """Token budgets of a model, applied to texts of any length.

    A prompt is scored by its queries (``scores.py``), and what is kept is a weighted sample, fitted
    to what the queries get from all of it. When later tokens have to share the
    budget, what was kept and the new tokens are selected together, in the same way. A token that
    was kept with probability p and is kept again with probability q then counts 1/(p q) times
    before it is fitted: sums over all tokens stay unbiased, however often that is repeated.

    Parameters
    ----------
    loaded
        The model, whose rotary embeddings move queries.
    budgets
        What each key head keeps.
    seed
        Seed of the samples.
    length
        Budgets are shares of all tokens seen, or of this many at most.
    score
        By which queries tokens are scored; by default those that the budgets were planned for.
    """

    def __init__(
        self,
        loaded: LoadedModel,
        budgets: TokenBudgets,
        seed: int = 0,
        length: int | None = None,
        score: Score | None = None,
    ) -> None:
        self.budgets, self.keeping, self.selection = budgets, budgets.keeping, budgets.selection
        self.seed, self.length, self.score = seed, length, score or budgets.score
        self.rotations = [rotation_of(loaded, layer) for layer in range(loaded.shape.layers)]
        self._ratios, self._powers = budgets.ratios, np.array(budgets.powers)

    def tokens(self, layer: int, seen: int) -> NDArray[np.int64]:
        """Tokens that each key head of a layer may keep of so many."""
        share = seen if self.length is None else min(seen, self.length)
        return np.asarray(np.ceil(self._ratios[layer] * share - 1e-9), dtype=np.int64)

    def room(self, layer: int, count: int) -> NDArray[np.int64]:
        """The same, but one token at least besides those that are kept for certain."""
        certain = int(certain_keys(count, self.keeping.sinks, self.keeping.recent).sum())
        return np.maximum(self.tokens(layer, count), certain + 1)

    def keeps_all(self, layer: int, count: int) -> bool:
        """Whether a layer keeps all of so many tokens."""
        return bool(np.all(self.room(layer, count) >= count))

    def observe(self, inputs: LayerInputs, batch: int) -> tuple[Tensor, list[QueryTargets]]:
        """Scores of the keys of one text, [key heads, n_k], by the queries that read it.

        Also what some of these get from all keys, by key head; nothing if nothing is fitted.
        """
        most = QUERIES if self.selection == "fitted" else 0
        return observe_prompt(inputs, self.score, self.rotations[inputs.layer], batch, most)

    def keep(self, inputs: LayerInputs, batch: int) -> list[Kept]:
        """Choose what every key head keeps of one text, which was read at once."""
        present = inputs.text_queries(batch).cpu()
        if self.keeps_all(inputs.layer, len(present)):
            return self._all(inputs.layer, present, inputs.k.shape[1])
        scores, targets = self.observe(inputs, batch)
        scores, keys, values = scores[:, present], inputs.k[batch], inputs.v[batch]
        return self.choose(inputs.layer, present, scores, targets, keys, values)

    def choose(
        self,
        layer: int,
        present: Tensor,
        scores: Tensor,
        targets: Sequence[QueryTargets],
        keys: Tensor,
        values: Tensor,
    ) -> list[Kept]:
        """Choose what every key head keeps of a text by its scores, and fit it.

        Parameters
        ----------
        layer
            Number of the layer.
        present
            Numbers of its tokens, [n], without padding.
        scores
            Of these, [key heads, n].
        targets
            From :meth:`observe`; if there are none, weights and values stay as they are.
        keys, values
            Of the text and its padding, [key heads, n_k, d].
        """
        count = len(present)
        if self.keeps_all(layer, count):
            return self._all(layer, present, len(scores))
        if len(present) < keys.shape[1]:
            keys, values = (x[:, present.to(x.device)] for x in (keys, values))
        certain = certain_keys(count, self.keeping.sinks, self.keeping.recent)
        chosen = []
        for g, budget in enumerate(self.room(layer, count).tolist()):
            kept = self._select(scores[g], certain, budget, layer, g, 0)
            kept = kept.in_codes(self.budgets.bits_of(layer, g), certain)
            if targets:
                kept = fit_kept(kept, targets[g], keys[g], values[g])
            chosen.append(replace(kept, index=present[kept.index]))
        return chosen

    def _all(self, layer: int, present: Tensor, key_heads: int) -> list[Kept]:
        """Keep all of a text."""
        count = len(present)
        certain = certain_keys(count, self.keeping.sinks, self.keeping.recent)
        everything = Kept(torch.arange(count), torch.zeros(count))
        coded = [
            everything.in_codes(self.budgets.bits_of(layer, g), certain) for g in range(key_heads)
        ]
        return [replace(kept, index=present[kept.index]) for kept in coded]

    def keep_again(
        self,
        layer: int,
        g: int,
        scores: Tensor,
        log_weight: Tensor,
        seen: int,
        recent: int,
        turn: int,
    ) -> Kept:
        """Choose among tokens that were kept before and tokens that came since.

        Parameters
        ----------
        layer, g
            Numbers of the layer and of the key head.
        scores, log_weight
            Of the tokens, the first ones of the text first; one with a weight stands for several.
        seen
            Tokens of the text so far.
        recent
            Its latest tokens, which are kept besides these and count against the budget.
        turn
            How often that was done before, plus one.
        """
        certain = certain_keys(len(scores), min(self.keeping.sinks, len(scores)), 0)
        room = max(int(self.tokens(layer, seen)[g]) - recent, int(certain.sum()) + 1)
        kept = self._select(scores * torch.exp(log_weight), certain, room, layer, g, turn)
        return kept.in_codes(self.budgets.bits_of(layer, g), certain)

    def _select(
        self, scores: Tensor, certain: NDArray[np.bool_], budget: int, layer: int, g: int, turn: int
    ) -> Kept:
        names = (layer, g) if turn == 0 else (layer, g, turn)
        start = float(random_stream(self.seed, "plan", *names).random())
        return select_keys(self.selection, scores, certain, budget, self._powers[layer, g], start)
