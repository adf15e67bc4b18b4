"""Tokens that a cache holds are judged together: those of its lists, and those of its tail."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from esscher.engine.attention.ragged import Segments
from esscher.engine.cache.carried import Carried
from esscher.engine.cache.fitting import Asked, ask_held, fitted
from esscher.engine.cache.lists import one_list, packed
from esscher.engine.cache.observation import WINDOW, combined, moves, observe_held, scores_again
from esscher.engine.cache.recent import RecentQueries
from esscher.engine.cache.repetition import Repetition
from esscher.engine.cache.rule import PlannedRule
from esscher.engine.cache.selection import Kept
from esscher.engine.cache.tail import Tail
from esscher.engine.models.rotary import Rotation, rotate


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
            b, g, torch.cat([keys, tail.keys[b, g]]), torch.cat([values, tail.values[b, g]]),
            torch.cat([weight, hidden.to(weight.device)]), present, len(keys),
        )  # fmt: skip


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
            layer, g, own[candidates], weight, int(lengths[b]),
            int(held.present[leaving:].sum()), turn,
        )  # fmt: skip
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
                own.to(torch.float32) * scaling, held.keys.to(torch.float32), ends, softcap,
                held.bias,
            )  # fmt: skip

    def looked(self, segments: Segments, tail: Tail) -> Looked:
        """Scores by both kinds of queries, given what is held without the repetition."""
        scores = [
            combined(one, found.score(held.values, held.log_weight), held.fresh)
            for one, found, held in zip(
                self._looked.scores, self._found, held_tokens(segments, tail), strict=True
            )
        ]
        return Looked(scores, self._looked.asked)
