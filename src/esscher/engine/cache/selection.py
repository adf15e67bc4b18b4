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

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from esscher.core.streams import random_stream
from esscher.core.validation import Array
from esscher.engine.attention.ragged import Segments
from esscher.engine.cache.budgets import Score, TokenBudgets
from esscher.engine.cache.fitting import Asked, Fit, ask_held, ask_prompt, fitted
from esscher.engine.cache.scores import (
    WINDOW,
    Repetition,
    combined,
    moves,
    observe_held,
    prompt_scores,
    scores_again,
)
from esscher.engine.cache.storage import Carried, RecentQueries, Tail, one_list, packed
from esscher.engine.models import LayerInputs
from esscher.engine.models.weights import Rotation, rotate, rotation_of

if TYPE_CHECKING:
    from esscher.engine.models import LayerInputs, LoadedModel


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


# Which tokens each key head keeps: those of a prompt, and again when others have come.
#
# A prompt is judged by its queries (``observation.py``), and what is kept is a weighted sample
# (``selection.py``), fitted to what the queries get from all of it (``fitting.py``). When later
# tokens have to share the budget, what was kept and the new tokens are judged together, in the same
# way. A token that was kept with probability p and is kept again with
# probability q then counts 1/(p q) times before it is fitted: sums over all tokens stay unbiased,
# however often that is repeated.


class PlannedRule:
    """Token budgets applied to texts of any length.

    Parameters
    ----------
    budgets
        What each key head keeps.
    seed
        Seed of the samples.
    length
        Budgets are shares of all tokens seen, or of this many at most.
    score
        By which queries tokens are scored; by default those that the budgets were planned for.
    rotations
        Rotary embedding of every layer, for scores by all queries.
    """

    def __init__(
        self,
        budgets: TokenBudgets,
        seed: int = 0,
        length: int | None = None,
        score: Score | None = None,
        rotations: Sequence[Rotation | None] = (),
    ) -> None:
        self.budgets, self.seed, self.length = budgets, seed, length
        self.score = score or budgets.score
        self._rotations = rotations
        self._ratios, self._powers = budgets.ratios, np.array(budgets.powers)

    @classmethod
    def of(
        cls,
        loaded: LoadedModel,
        budgets: TokenBudgets,
        seed: int = 0,
        length: int | None = None,
        score: Score | None = None,
    ) -> PlannedRule:
        """Make the rule for a model, whose rotary embeddings it takes."""
        layers = range(loaded.shape.layers)
        rotations = [rotation_of(loaded, layer) for layer in layers] if loaded.causal else []
        return cls(budgets, seed, length, score, rotations)

    @property
    def recent(self) -> int:
        """Latest tokens that are kept for certain."""
        return self.budgets.keeping.recent

    @property
    def fits(self) -> bool:
        """Whether what is kept is fitted to what queries get from all tokens."""
        return self.budgets.selection == "fitted"

    def tokens(self, layer: int, seen: int) -> NDArray[np.int64]:
        """Tokens that each key head of a layer may keep of so many."""
        share = seen if self.length is None else min(seen, self.length)
        return np.asarray(np.ceil(self._ratios[layer] * share - 1e-9), dtype=np.int64)

    def keep(self, inputs: LayerInputs, batch: int) -> list[Kept]:
        """Choose what every key head keeps of one text, which was read at once."""
        there = inputs.own_queries(batch).cpu()
        if self.keeps_all(len(there), inputs.layer):
            return [Kept(there, torch.zeros(len(there)))] * inputs.k.shape[1]
        fit = self.fit(self.ask(inputs, batch), inputs.k[batch], inputs.v[batch], there)
        return self.choose(inputs.layer, there, self.scores(inputs, batch)[:, there], fit)

    def keeps_all(self, count: int, layer: int | None = None) -> bool:
        """Whether all tokens of a text are kept, by a layer or by all of them."""
        layers = range(len(self._ratios)) if layer is None else [layer]
        return all(bool(np.all(self._room(one, count) >= count)) for one in layers)

    def _room(self, layer: int, count: int) -> NDArray[np.int64]:
        keeping = self.budgets.keeping
        certain = int(certain_keys(count, keeping.sinks, keeping.recent).sum())
        return np.maximum(self.tokens(layer, count), certain + 1)

    def ask(self, inputs: LayerInputs, batch: int) -> Sequence[Asked | None]:
        """Let queries of one text ask the keys of every key head; None if nothing is fitted."""
        if not self.fits:
            return [None] * inputs.k.shape[1]
        return ask_prompt(inputs, self._rotations[inputs.layer], batch)

    def fit(
        self, asked: Sequence[Asked | None], keys: Tensor, values: Tensor, there: Tensor
    ) -> Fit | None:
        """All that it takes to fit what is kept of a text; None if nothing was asked.

        Parameters
        ----------
        asked
            From :meth:`ask`.
        keys, values
            Of the text and its padding, [key heads, n_k, d].
        there
            Numbers of its tokens without padding.
        """
        answers = [one for one in asked if one is not None]
        if not answers:
            return None
        if len(there) < keys.shape[1]:
            keys, values = (x[:, there.to(x.device)] for x in (keys, values))
        return Fit(answers, keys, values)

    def choose(
        self, layer: int, there: Tensor, scores: Tensor, fit: Fit | None = None
    ) -> list[Kept]:
        """Choose what every key head keeps of a text by its scores.

        Parameters
        ----------
        layer
            Number of the layer.
        there
            Numbers of its tokens, [n], without padding.
        scores
            Of these, [key heads, n].
        fit
            Fits what is kept; None leaves it as it is.
        """
        count, keeping = len(there), self.budgets.keeping
        if self.keeps_all(count, layer):
            return [Kept(there, torch.zeros(count))] * len(scores)
        certain = certain_keys(count, keeping.sinks, keeping.recent)
        kept = []
        for g, budget in enumerate(self._room(layer, count).tolist()):
            found = self._select(scores[g], certain, budget, layer, g, 0)
            found = found if fit is None else fit.of(g, found)
            kept.append(Kept(there[found.index], found.log_weight, found.values))
        return kept

    def scores(self, inputs: LayerInputs, batch: int) -> Tensor:
        """Scores of the keys of one text, [key heads, n_k], by the queries that read it."""
        rotation = self._rotations[inputs.layer] if inputs.causal else None
        return prompt_scores(inputs, self.score, rotation, batch)

    def _select(
        self, scores: Tensor, certain: NDArray[np.bool_], budget: int, layer: int, g: int, turn: int
    ) -> Kept:
        if self.budgets.selection == "topk":
            return select_largest(scores, certain, budget)
        start = self._start(layer, g, turn)
        return select_sample(scores, certain, budget, self._powers[layer, g], start)

    def rotation(self, layer: int) -> Rotation | None:
        """Rotary embedding of a layer."""
        return self._rotations[layer]

    def keep_again(
        self,
        layer: int,
        g: int,
        scores: Tensor,
        log_weight: Tensor,
        seen: int,
        held: int,
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
        held
            Its latest tokens, which are kept beside these and count against the budget.
        turn
            How often that was done before, plus one.
        """
        certain = certain_keys(len(scores), min(self.budgets.keeping.sinks, len(scores)), 0)
        room = max(int(self.tokens(layer, seen)[g]) - held, int(certain.sum()) + 1)
        return self._select(scores * torch.exp(log_weight), certain, room, layer, g, turn)

    def _start(self, layer: int, g: int, turn: int) -> float:
        names = (layer, g) if turn == 0 else (layer, g, turn)
        return float(random_stream(self.seed, "plan", *names).random())


# Tokens that a cache holds are judged together: those of its lists, and those of its tail.


class Held(NamedTuple):
    """The tokens of one text and key head: a list, then the tail.

    ``bias`` is their log-weights, -inf at padding; ``present`` [tail] is False at padding.
    """

    text: int
    key_head: int
    keys: Tensor
    values: Tensor
    bias: Tensor
    present: Tensor
    listed: int

    @property
    def fresh(self) -> Tensor:
        """How often tokens count when scores are put on one scale: new ones once, [n]."""
        return torch.cat([torch.zeros(self.listed), self.present.to(torch.float32)])

    @property
    def log_weight(self) -> Tensor:
        """Log-weights, 0 at padding, in the processor's memory."""
        return self.bias.nan_to_num(neginf=0.0).cpu()


def held_tokens(segments: Segments, tail: Tail) -> Iterator[Held]:
    """Everything that a layer holds, one list after the other."""
    key_heads = tail.keys.shape[1]
    for number in range(len(segments.start)):
        b, g = divmod(number, key_heads)
        keys, values, weight = one_list(segments, number)
        present = tail.present(b)
        hidden = torch.zeros(tail.length).masked_fill_(~present, -torch.inf)
        yield Held(
            b,
            g,
            torch.cat([keys, tail.keys[b, g]]),
            torch.cat([values, tail.values[b, g]]),
            torch.cat([weight, hidden.to(weight.device)]),
            present,
            len(keys),
        )


class Looked(NamedTuple):
    """What queries say about the tokens that a layer holds, list by list.

    ``scores`` are of one of those that a token stands for; ``asked`` is what the queries get from
    all of them, None if what is kept is not fitted to it.
    """

    scores: list[Tensor]
    asked: list[Asked | None]


def look_at_held(
    rule: PlannedRule,
    layer: int,
    segments: Segments,
    tail: Tail,
    query: Tensor,
    recent: RecentQueries,
    seen: int,
    scaling: float,
    softcap: float | None,
) -> Looked:
    """Let queries look at all tokens that a layer holds.

    Parameters
    ----------
    rule, layer
        The rule, and the number of the layer.
    segments, tail
        What is held, the tokens of the call included.
    query
        Of the call, [batch, heads, n_q, d_k].
    recent
        The last queries, which take their place if they are more.
    seen
        Tokens seen.
    scaling, softcap
        Of the logits.
    """
    found = Looked([], [])
    key_heads, moved = tail.keys.shape[1], None
    for held in held_tokens(segments, tail):
        if rule.fits or rule.score != "last":
            moved = _moved(held, query, recent, key_heads, seen, rule.rotation(layer)) * scaling
        if rule.score == "last":
            score = _by_last_queries(held, recent, key_heads, seen, scaling, softcap)
        elif moved is None or moved.shape[1] == 0:  # a text that is padding so far
            score = torch.zeros(len(held.keys))
        else:
            looked = observe_held(moved, held.keys, held.values, held.bias, softcap)
            score = looked.score(held.values[None], held.log_weight, held.fresh)[0].cpu()
        found.scores.append(score)
        asked = None
        if rule.fits and moved is not None and moved.shape[1]:
            asked = ask_held(moved, held.keys, held.values, held.bias, softcap)
        found.asked.append(asked)
    return found


def _moved(
    held: Held,
    query: Tensor,
    recent: RecentQueries,
    key_heads: int,
    seen: int,
    rotation: Rotation | None,
) -> Tensor:
    """Queries of one key head as they would ask from behind what is held, [group, w, d_k]."""
    group = query.shape[1] // key_heads
    if query.shape[2] >= WINDOW:
        there = held.present[len(held.present) - query.shape[2] :].to(query.device)
        own = query[held.text, held.key_head * group :][:group, there]
        away = torch.arange(own.shape[1], 0, -1)
    else:
        own, _ = recent.observed(
            held.text, held.key_head, key_heads, held.listed, held.present, seen
        )
        away = seen - recent.own_places(held.present, seen)
    own = own.to(torch.float32)
    return own if rotation is None else rotate(own, *moves(rotation, away.to(own.device)))


def _by_last_queries(
    held: Held,
    recent: RecentQueries,
    key_heads: int,
    seen: int,
    scaling: float,
    softcap: float | None,
) -> Tensor:
    """Scores by the last queries, where they stand."""
    own, visible = recent.observed(
        held.text, held.key_head, key_heads, held.listed, held.present, seen
    )
    log_weight = held.log_weight.to(own.device)
    score = scores_again(own, held.keys, held.values, log_weight, visible, scaling, softcap)
    return (score * torch.exp(-log_weight)).cpu()


def joined(own: Tensor, carried: Tensor) -> Tensor:
    """Scores of tokens from those by the latest queries and those of before."""
    return torch.maximum(own, carried)


class Judged(NamedTuple):
    """What is kept: lists, and the scores of lists and of the tail's latest."""

    segments: Segments
    carried: Carried


def judged(
    rule: PlannedRule,
    layer: int,
    segments: Segments,
    tail: Tail,
    looked: Looked,
    carried: Carried | None,
    lengths: NDArray[np.int64],
    turn: int,
    held_back: int,
) -> Judged:
    """Let the tokens of lists and all but the latest of the tail share the budgets.

    Parameters
    ----------
    rule, layer
        The rule, and the number of the layer.
    segments, tail
        What is held.
    looked
        Scores, and what queries get from what is held.
    carried
        Scores of tokens that were judged before; the larger one counts.
    lengths
        Tokens of every text.
    turn
        How often that was done before, plus one.
    held_back
        Latest tokens of the tail, which stay there.
    """
    new, listed = [], []
    leaving = tail.length - held_back
    held_scores = torch.zeros(*tail.keys.shape[:2], held_back)
    for number, held in enumerate(held_tokens(segments, tail)):
        b, g, own, asked = held.text, held.key_head, looked.scores[number], looked.asked[number]
        if carried is not None:
            own = joined(own, carried.of(segments, number, tail.length))
        outgoing = torch.nonzero(held.present[:leaving])[:, 0]
        candidates = torch.cat([torch.arange(held.listed), held.listed + outgoing])
        weight = held.log_weight[candidates]
        kept = rule.keep_again(
            layer,
            g,
            own[candidates],
            weight,
            int(lengths[b]),
            int(held.present[leaving:].sum()),
            turn,
        )
        index = candidates[kept.index]
        again = Kept(index, kept.log_weight)
        if asked is not None:
            latest = held.listed + leaving + torch.arange(held_back)
            again = fitted(again, asked, held.keys, held.values, latest)
        # what was kept before has a weight already
        again = replace(again, log_weight=weight[kept.index] + again.log_weight)
        new.append((held.keys, held.values, again))
        listed.append(own[index])
        held_scores[b, g] = own[held.listed + leaving :]
    return Judged(packed(new), Carried(torch.cat(listed), held_scores))


class Waiting:
    """A layer that has read a prompt, or a piece of it, and waits for it to be repeated.

    Parameters
    ----------
    looked
        What its own queries say, by list.
    group
        Query heads that share a key head.
    first
        Whether nothing was read before.
    """

    def __init__(self, looked: Looked, group: int, first: bool) -> None:
        self.first, self._looked = first, looked
        self._found = [Repetition(group, len(one)) for one in looked.scores]

    def add(
        self,
        query: Tensor,
        segments: Segments,
        tail: Tail,
        rows: list[tuple[int, int]],
        scaling: float,
        softcap: float | None,
    ) -> None:
        """Add the queries that repeat, from ``rows[b][0]`` to ``rows[b][1]`` of each text."""
        before = tail.length - query.shape[2]
        group = query.shape[1] // tail.keys.shape[1]
        for number, held in enumerate(held_tokens(segments, tail)):
            start, stop = rows[held.text]
            own = query[held.text, :, start:stop][held.key_head * group :][:group]
            ends = held.listed + before + torch.arange(start + 1, stop + 1, device=own.device)
            self._found[number].add(
                own.to(torch.float32) * scaling,
                held.keys.to(torch.float32),
                ends,
                softcap,
                held.bias,
            )

    def looked(self, segments: Segments, tail: Tail) -> Looked:
        """Scores by both kinds of queries, given what is held without the repetition."""
        scores = [
            combined(one, found.score(held.values, held.log_weight), held.fresh)
            for one, found, held in zip(
                self._looked.scores, self._found, held_tokens(segments, tail), strict=True
            )
        ]
        return Looked(scores, self._looked.asked)
