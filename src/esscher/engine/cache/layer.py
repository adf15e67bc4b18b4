"""One layer of a reduced cache: lists of kept tokens, and a tail of the newest ones.

The prompt goes through the model's own attention. Then every key head keeps its budget of it, as
a list of keys, values and log-weights in flat arrays, and the rest is freed before the next layer
is computed. Tokens that follow are appended to the tail. Attention is over both parts.

Tokens of the tail are selected again together with those of the lists when a prompt is read in
pieces, or when the budgets hold for generated tokens too; the latest stay in the tail. Else all of
them are kept, and those that are no longer among the latest get as few bits as the list has.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from esscher.core.errors import InputError
from esscher.core.memory import give_back
from esscher.core.shown import counted
from esscher.engine.attention.bits import EXACT
from esscher.engine.attention.ragged import Segments, ragged_attention
from esscher.engine.cache.hooks import Call, no_gradients
from esscher.engine.cache.scores import (
    QUERIES,
    WINDOW,
    QueryTargets,
    Repetition,
    answered_first,
    combined,
    key_scores,
    moves,
    weigh,
)
from esscher.engine.cache.selection import PlannedRule, fit_kept
from esscher.engine.cache.storage import (
    CachedTokens,
    Kept,
    RecentQueries,
    RunningScores,
    Tail,
    cached_tokens,
    packed,
)
from esscher.engine.models.capture import layer_inputs, owned, scaling_of
from esscher.engine.models.transformers_library import transformers_module
from esscher.engine.models.weights import rotate

_base: Any = transformers_module("transformers.cache_utils").CacheLayerMixin

#: Tokens by which the tail may exceed what it keeps before they are selected again: each time costs
#: about as much as a token.
SLACK = 128
#: Bytes of a layer's keys from which the memory of the layers before is given back at once: that
#: takes milliseconds, and without it peaks were above those of a dense cache.
LARGE = 2**21


class ReducedLayer(_base):  # type: ignore[misc]
    """A layer of :class:`~esscher.engine.cache.cache.ReducedCache`, which computes attention.

    Parameters
    ----------
    number
        Of the layer.
    rule
        Which tokens are kept; None for a layer that is filled by :meth:`fill`.
    call
        What the layers of the cache share.
    bounded
        Whether the budgets hold for the tokens after the prompt too.
    """

    is_sliding = False
    supports_early_init = False

    def __init__(
        self, number: int, rule: PlannedRule | None, call: Call, *, bounded: bool = False
    ) -> None:
        super().__init__()
        self.number, self.rule, self.bounded = number, rule, bounded
        self._call = call
        self.reset()

    def reset(self) -> None:
        """Forget everything."""
        self.seen, self.turns, self._prompt = 0, 0, 0
        self.segments: Segments | None = None
        self.tail = Tail()
        self.lengths: NDArray[np.int64] | None = None
        self.padding: Tensor | None = None
        self.recent: RecentQueries | None = None
        self.running: RunningScores | None = None
        # of a prompt that has to be repeated, by list: scores by its queries, their targets, and
        # attention of the queries that repeat it
        self._pending: tuple[list[Tensor], list[QueryTargets], list[Repetition]] | None = None
        self.is_initialized = False

    # The interface of transformers.

    def lazy_initialization(self, key_states: Tensor, value_states: Tensor) -> None:
        """Nothing is set up before the first keys come."""

    @torch.compiler.disable  # type: ignore[untyped-decorator]
    def update(
        self, key_states: Tensor, value_states: Tensor, *args: Any, **kwargs: Any
    ) -> tuple[Tensor, Tensor]:
        """Take new keys and values; what is returned leads to this layer's attention."""
        if self.batch_size not in (-1, len(key_states)):
            raise InputError(
                f"the cache holds {counted(self.batch_size, 'text')}, and {len(key_states)} came; "
                "make a new cache with plan.cache(model), or cache.reset()"
            )
        if key_states.requires_grad or value_states.requires_grad:
            raise no_gradients()
        self._call.check_returned()
        self._call.handed = self.number
        self.seen += key_states.shape[2]
        if self.segments is None:
            # read whole by the model's own attention, and reduced behind it
            return owned(key_states, self), value_states
        if self.recent is None and self.tail.length > self._recent_tokens + SLACK:
            self._code_tail()
        self.tail.append(key_states, value_states)
        return owned(self.tail.keys, self), self.tail.values

    def get_seq_length(self) -> int:
        """Tokens seen, so that positions stay right."""
        return self.seen

    def get_mask_sizes(self, query_length: int) -> tuple[int, int]:
        """Masks are for all tokens seen."""
        return self.seen + query_length, 0

    def get_max_length(self) -> int:
        """There is none."""
        return -1

    @property
    def is_croppable(self) -> bool:
        """Whether the newest tokens can be taken back without a trace."""
        return not self.bounded

    def crop(self, tokens_to_remove: int) -> None:
        """Take back the newest tokens, as assisted decoding does; so many, as a negative number.

        It reads its first candidates together with the prompt: those that are wrong are the latest
        of a prompt, which are in every list. Without a trace they do not go: as queries they took
        part in scoring the prompt.

        Raises
        ------
        InputError
            If they were reduced already, or for a positive number, as in transformers.
        """
        if tokens_to_remove > 0:
            raise InputError(
                f"crop({tokens_to_remove}) is refused, as by transformers, where it once kept so "
                f"many tokens; crop(-{tokens_to_remove}) takes back {tokens_to_remove}"
            )
        count = -tokens_to_remove
        from_lists, newest = max(0, count - self.tail.length), 0
        if self.segments is not None and self.batch_size == 1 and not self.turns:
            # the latest tokens of a single prompt are at the end of every list
            shortest = int((self.segments.stop - self.segments.start).min())
            newest = min(self._recent_tokens - (self._prompt - self.listed), shortest)
        if from_lists > newest:
            raise InputError(
                f"{counted(count, 'token')} had to be taken back, and the cache can give back "
                f"{self.tail.length + newest}: the others were reduced already"
            )
        if count == 0:
            return
        assert self.lengths is not None
        assert self.segments is not None
        left = self.tail.length - (count - from_lists)
        self.lengths = self.lengths - self.tail.valid[:, left:].sum(1).numpy() - from_lists
        self.tail.length = left
        if from_lists:
            self.segments = replace(self.segments, stop=self.segments.stop - from_lists)
        self.seen -= count
        if self.padding is not None:
            self.padding = self.padding[:, : self.listed]
        if self.recent is not None:
            self.recent.places[self.recent.places >= self.seen] = -1
        if self.running is not None:
            self.running.tail = self.running.tail[..., :left]

    def reorder_cache(self, beam_idx: Tensor) -> None:
        """Texts in another order; lists are not copied, beams of a text share them."""
        self.batch_select_indices(beam_idx)

    def batch_repeat_interleave(self, repeats: int) -> None:
        """Every text several times."""
        self.batch_select_indices(torch.arange(self.batch_size).repeat_interleave(repeats))

    def batch_select_indices(self, indices: Tensor) -> None:
        """Become the cache of these texts."""
        if self.segments is None:
            return
        assert self.lengths is not None
        index, host = indices.to(self.segments.start.device), indices.cpu()
        numbers = torch.arange(len(self.segments.start), device=index.device)
        self.segments = self.segments.select(numbers.view(self.batch_size, -1)[index].flatten())
        self.tail.select(index)
        self.lengths = self.lengths[host.numpy()]
        if self.padding is not None:
            self.padding = self.padding[host]
        if self.recent is not None:
            with torch.inference_mode(False), torch.no_grad():
                self.recent.queries = self.recent.queries[index]
        if self.running is not None:
            self.running.tail = self.running.tail[host]

    @property
    def batch_size(self) -> int:
        """Texts; -1 before there are any."""
        return -1 if self.lengths is None else len(self.lengths)

    # What it stores.

    @torch.inference_mode(False)
    @torch.no_grad()
    def fill(
        self,
        keys: Tensor,
        values: Tensor,
        kept: Sequence[Sequence[Kept]],
        present: Sequence[Tensor],
    ) -> None:
        """Store part of a prompt.

        Parameters
        ----------
        keys, values
            Of all its tokens, [batch, key heads, tokens, d].
        kept
            What is kept, by text and key head.
        present
            Numbers of the tokens of every text that are not padding.
        """
        segments = packed(
            [
                (keys[b, g], values[b, g], head)
                for b, text in enumerate(kept)
                for g, head in enumerate(text)
            ]
        )
        hidden = torch.ones(len(present), keys.shape[2], dtype=torch.bool)
        for text, there in zip(hidden, present, strict=True):
            text[there.cpu()] = False
        lengths = np.array([len(there) for there in present])
        padding = hidden if bool(hidden.any()) else None
        self.restore(segments, lengths, keys.shape[2], padding=padding)
        self.tail.start(keys, values)

    def restore(
        self,
        segments: Segments,
        lengths: NDArray[np.int64],
        seen: int,
        turns: int = 0,
        padding: Tensor | None = None,
    ) -> None:
        """Store these lists, of texts of these lengths without the padding among them."""
        self.segments, self.lengths, self.padding = segments, lengths, padding
        self.seen, self.turns, self.is_initialized = seen, turns, True
        self._prompt = seen

    @property
    def kept(self) -> list[int]:
        """Tokens stored by each key head, of all texts together."""
        if self.segments is None:
            return []
        lists = self.segments.counts.view(self.batch_size, -1)
        return [int(count) + self.batch_size * self.tail.length for count in lists.sum(0)]

    @property
    def listed(self) -> int:
        """Tokens seen before those of the tail, with padding."""
        return self.seen - self.tail.length

    @property
    def nbytes(self) -> int:
        """Bytes of keys, values and weights, shared ones once, and of the room in the tail."""
        if self.segments is None:
            return 0
        arrays = []
        if self.recent is not None:
            arrays.append(self.recent.queries)
        if self.running is not None:
            arrays += [self.running.listed, self.running.tail]
        size = sum(array.nbytes for array in arrays)
        return size + self.segments.nbytes + self.tail.nbytes

    @property
    def dense_nbytes(self) -> int:
        """Bytes of keys and values of all tokens seen."""
        if self.segments is None:
            return 0
        keys, values = self.tail.keys, self.tail.values
        width = keys.shape[3] * keys.itemsize + values.shape[3] * values.itemsize
        return int(self.batch_size * keys.shape[1] * self.seen * width)

    @property
    def _recent_tokens(self) -> int:
        """Tokens that stay in the tail when others are selected again."""
        return 0 if self.rule is None else self.rule.keeping.recent

    # Attention.

    @torch.compiler.disable  # type: ignore[untyped-decorator]
    def attend(
        self,
        function: Callable[..., tuple[Tensor, Tensor | None]],
        module: nn.Module,
        query: Tensor,
        key: Tensor,
        value: Tensor,
        attention_mask: Tensor | None,
        **options: Any,
    ) -> tuple[Tensor, Tensor | None]:
        """Compute the layer's attention; ``function`` is the model's own, for the prompt."""
        if query.requires_grad:
            raise no_gradients()
        call = self._call
        call.handed = None
        if self.segments is None:
            result = function(module, query, key, value, attention_mask, **options)
            self._read_prompt(query, key, value, attention_mask, options)
            return result
        assert self.lengths is not None
        queries = query.shape[2]
        visible, hidden = call.tail_mask(attention_mask, queries, self.tail.length, self.padding)
        scaling, softcap = scaling_of(options, query), options.get("softcap")
        output = ragged_attention(
            query,
            self.segments,
            self.tail.keys,
            self.tail.values,
            scaling=scaling,
            softcap=softcap,
            visible=visible,
        ).transpose(1, 2)
        if hidden is not None:
            self.tail.hide(hidden)
        if call.repeating is not None:
            self._add_repetition(query, call.repeating, scaling, softcap)
            return output, None
        self.lengths = self.lengths + self.tail.valid[:, -queries:].sum(1).numpy()
        if self.recent is not None:
            self.recent.add(query, self.seen)
            full = self.tail.length > self._recent_tokens + SLACK
            if call.reading or full:
                self._select_again(*self._score_again(query, scaling, softcap))
        return output, None

    def _read_prompt(
        self, query: Tensor, key: Tensor, value: Tensor, mask: Tensor | None, options: Any
    ) -> None:
        """Keep part of a prompt that was read, or all of it until it was repeated."""
        rule, number = self.rule, self.number
        assert rule is not None
        inputs = layer_inputs(
            number,
            query,
            key,
            value,
            mask,
            options,
            causal=True,
            past=0,
            original=lambda: torch.zeros(0),
        )
        present = [inputs.text_queries(batch).cpu() for batch in range(len(query))]
        again = self.bounded or self._call.reading
        scores, targets = [], []
        if self._call.repeats or (again and rule.score != "last"):
            observed = (rule.observe(inputs, b) for b in range(len(query)))
            scores, targets = map(list, zip(*observed, strict=True))
        if self._call.repeats:
            # all of it is stored in the tail
            nothing = Kept(torch.zeros(0, dtype=torch.long), torch.zeros(0))
            self.fill(inputs.k, inputs.v, [[nothing] * key.shape[1]] * len(key), present)
            hidden, self.padding = self.padding, None
            self.tail.append(inputs.k, inputs.v)
            if hidden is not None:
                self.tail.hide(hidden)
            by_list = [head for text in scores for head in text.cpu()]
            flat = [head for text in targets for head in text]
            repetitions = [Repetition(inputs.group, len(tokens)) for tokens in by_list]
            self._pending = by_list, flat, repetitions
        elif again and rule.score != "last":
            scores = [text[:, there] for text, there in zip(scores, present, strict=True)]
            self._keep_prompt(inputs.k, inputs.v, present, scores, targets)
        else:
            kept = [rule.keep(inputs, b) for b in range(len(query))]
            self.fill(inputs.k, inputs.v, kept, present)
        if key.nbytes > LARGE:
            give_back()
        if again:
            self.recent = RecentQueries(query)
            self.recent.add(query, self.seen)

    def _keep_prompt(
        self,
        keys: Tensor,
        values: Tensor,
        present: Sequence[Tensor],
        scores: Sequence[Tensor],
        targets: Sequence[Sequence[QueryTargets]],
    ) -> None:
        """Store part of a prompt by the scores [key heads, n] of its tokens without padding."""
        assert self.rule is not None
        kept = [
            self.rule.choose(self.number, there, scores[b], targets[b], keys[b], values[b])
            for b, there in enumerate(present)
        ]
        self.fill(keys, values, kept, present)
        if self.bounded or self._call.reading:
            listed = [
                scores[b][g][torch.searchsorted(present[b], head.index)]
                for b, text in enumerate(kept)
                for g, head in enumerate(text)
            ]
            heads = [head for text in kept for head in text]
            listed = _in_order(listed, heads)
            self.running = RunningScores(torch.cat(listed), torch.zeros(*keys.shape[:2], 0))

    # Repeating what was read.

    def _add_repetition(
        self, query: Tensor, rows: list[tuple[int, int]], scaling: float, softcap: float | None
    ) -> None:
        """Add the queries that repeat, from ``rows[b][0]`` to ``rows[b][1]`` of each text."""
        assert self._pending is not None
        assert self.segments is not None
        before, group = self.tail.length - query.shape[2], query.shape[1] // self.tail.keys.shape[1]
        for number, tokens in enumerate(cached_tokens(self.segments, self.tail)):
            start, stop = rows[tokens.text]
            queries = query[tokens.text, :, start:stop][tokens.key_head * group :][:group]
            ends = torch.arange(start + 1, stop + 1, device=query.device) + tokens.listed + before
            self._pending[2][number].add(
                queries.to(torch.float32) * scaling,
                tokens.keys.to(torch.float32),
                ends,
                softcap,
                tokens.bias,
            )

    @torch.inference_mode(False)
    @torch.no_grad()
    def finish_repetition(self) -> None:
        """Keep part of what was read and repeated."""
        assert self.segments is not None
        assert self._pending is not None
        (by_queries, targets, repetitions), self._pending = self._pending, None
        scores = [
            combined(score, repetition.score(tokens.values, tokens.log_weight), tokens.counts)
            for score, repetition, tokens in zip(
                by_queries,
                repetitions,
                cached_tokens(self.segments, self.tail),
                strict=True,
            )
        ]
        keys, values = self.tail.keys, self.tail.values
        batch, key_heads = keys.shape[:2]
        present = [torch.nonzero(self.tail.valid[b])[:, 0] for b in range(batch)]
        by_text = torch.stack(scores).view(batch, key_heads, -1)
        by_head = [targets[b * key_heads :][:key_heads] for b in range(batch)]
        chosen = [by_text[b][:, there] for b, there in enumerate(present)]
        self._keep_prompt(keys, values, present, chosen, by_head)
        if keys.nbytes > LARGE:
            del keys, values
            give_back()

    # Selecting again.

    def _score_again(
        self, query: Tensor, scaling: float, softcap: float | None
    ) -> tuple[list[Tensor], list[QueryTargets | None]]:
        """Score all tokens that are stored, those of the call included, list by list.

        Scores are of one of those that a token stands for; targets are what the queries get from
        all of them, None if nothing is fitted. Queries are those of the call, or the last ones if
        they are more, [batch, heads, n_q, d_k].
        """
        rule = self.rule
        assert rule is not None
        assert self.segments is not None
        scores: list[Tensor] = []
        targets: list[QueryTargets | None] = []
        for tokens in cached_tokens(self.segments, self.tail):
            fitted, last = rule.selection == "fitted", rule.score == "last"
            if last:
                scores.append(self._score_by_last(tokens, scaling, softcap))
            if last and not fitted:
                targets.append(None)
                continue
            moved = self._moved(tokens, query) * scaling
            count = moved.shape[1]
            if count == 0:  # a text that is padding so far
                scores += [] if last else [torch.zeros(len(tokens.keys))]
                targets.append(None)
                continue
            keys, values = tokens.keys.to(torch.float32), tokens.values.to(torch.float32)
            order, each = answered_first(count, len(moved), QUERIES if fitted else 0)
            moved = moved[:, order.to(moved.device)]
            sums, log_sums, outputs = zip(
                *(weigh(head, keys, values, each, softcap, tokens.bias) for head in moved),
                strict=True,
            )
            if not last:
                square, received, largest = torch.stack(sums, dim=1)
                score = key_scores(
                    square.cpu() / count,
                    (received / count @ values).cpu(),
                    tokens.values[None],
                    largest.cpu(),
                    log_weight=tokens.log_weight,
                    count=tokens.counts,
                )
                scores.append(score[0].cpu())
            target = None
            if fitted:
                answered = moved[:, :each].flatten(0, 1)
                both = torch.cat(log_sums), torch.cat(outputs)
                target = QueryTargets(answered, *both, tokens.bias[None], softcap)
            targets.append(target)
        return scores, targets

    def _moved(self, tokens: CachedTokens, query: Tensor) -> Tensor:
        """Queries of one key head, moved after all tokens that are stored, [group, w, d_k]."""
        assert self.recent is not None
        assert self.rule is not None
        b, g, key_heads = tokens.text, tokens.key_head, self.tail.keys.shape[1]
        count, group = query.shape[2], query.shape[1] // key_heads
        if count >= WINDOW:
            there = tokens.present[len(tokens.present) - count :].to(query.device)
            moved = query[b, g * group : (g + 1) * group][:, there]
            distance = torch.arange(moved.shape[1], 0, -1)
        else:
            moved, places = self.recent.of_text(b, g, key_heads, tokens.present, self.seen)
            distance = self.seen - places
        moved, rotation = moved.to(torch.float32), self.rule.rotations[self.number]
        if rotation is None:
            return moved
        return rotate(moved, *moves(rotation, distance.to(moved.device)))

    def _score_by_last(self, tokens: CachedTokens, scaling: float, softcap: float | None) -> Tensor:
        """Scores of tokens by the last queries, where these stand: each sees the tail up to itself.

        A token that stands for several counts as often: what is selected again is the sample, not
        the tokens it was drawn from.
        """
        assert self.recent is not None
        present, key_heads = tokens.present, self.tail.keys.shape[1]
        query, places = self.recent.of_text(
            tokens.text, tokens.key_head, key_heads, present, self.seen
        )
        ends = tokens.listed + places - (self.seen - len(present)) + 1
        attention = Repetition(len(query), len(tokens.keys))
        query, keys = (x.to(torch.float32) for x in (query * scaling, tokens.keys))
        attention.add(query, keys, ends.to(keys.device), softcap, tokens.bias)
        return attention.score(tokens.values, tokens.log_weight)

    @torch.inference_mode(False)
    @torch.no_grad()
    def _select_again(
        self, scores: Sequence[Tensor], targets: Sequence[QueryTargets | None]
    ) -> None:
        """Let the tokens of the lists and all but the latest of the tail share the budgets.

        Of the scores of a token, those by the latest queries and those of before, the larger one
        counts.
        """
        assert self.segments is not None
        assert self.lengths is not None
        assert self.rule is not None
        self.turns += 1
        latest = min(self._recent_tokens, self.tail.length)
        leaving = self.tail.length - latest
        lists, listed = [], []
        tail_scores = torch.zeros(*self.tail.keys.shape[:2], latest)
        for number, tokens in enumerate(cached_tokens(self.segments, self.tail)):
            b, g, score, target = tokens.text, tokens.key_head, scores[number], targets[number]
            if self.running is not None:
                before = self.running.of_list(self.segments, number, self.tail.length)
                score = torch.maximum(score, before)
            outgoing = torch.nonzero(tokens.present[:leaving])[:, 0]
            candidates = torch.cat([torch.arange(tokens.listed), tokens.listed + outgoing])
            weight = tokens.log_weight[candidates]
            kept = self.rule.keep_again(
                self.number,
                g,
                score[candidates],
                weight,
                int(self.lengths[b]),
                int(tokens.present[leaving:].sum()),
                self.turns,
            )
            index = candidates[kept.index]
            again = replace(kept, index=index)
            if target is not None:
                auxiliary = tokens.listed + leaving + torch.arange(latest)
                again = fit_kept(again, target, tokens.keys, tokens.values, auxiliary)
            # what was kept before has a weight already
            again = replace(again, log_weight=weight[kept.index] + again.log_weight)
            lists.append((tokens.keys, tokens.values, again))
            listed.append(score[index])
            tail_scores[b, g] = score[tokens.listed + leaving :]
        self._store_lists(lists, latest)
        self.running = None
        if self.rule.score != "last":
            listed = _in_order(listed, [kept for *_, kept in lists])
            self.running = RunningScores(torch.cat(listed), tail_scores)

    def _store_lists(self, lists: Sequence[tuple[Tensor, Tensor, Kept]], latest: int) -> None:
        """Store lists that have tokens of the tail; its latest stay there."""
        hidden = ~self.tail.valid[:, : self.tail.length - latest]
        earlier = self.padding
        if earlier is None:
            earlier = torch.zeros(self.batch_size, self.listed, dtype=torch.bool)
        hidden = torch.cat([earlier, hidden], 1)
        self.padding = hidden if bool(hidden.any()) else None
        self.segments = packed(lists, self.tail.keys.dtype)
        self.tail.keep_last(latest)

    @torch.inference_mode(False)
    @torch.no_grad()
    def _code_tail(self) -> None:
        """Move all but the latest tokens of the tail to the lists, in the bits of these.

        Blocks of codes stay what they are. Beams share lists, and would each get one of their own:
        their tails are left alone.
        """
        segments = self.segments
        if self.rule is None or segments is None or segments.codes is None:
            return
        filled = segments.codes.table[segments.codes.table[:, 1] > 0, 0].tolist()
        if len(set(filled)) < len(filled):
            return
        self.turns += 1
        latest, lists = self._recent_tokens, []
        for tokens in cached_tokens(segments, self.tail):
            leaving = torch.nonzero(tokens.present[: self.tail.length - latest])[:, 0]
            index = torch.cat([torch.arange(tokens.listed), tokens.listed + leaving])
            bits = self.rule.budgets.bits_of(self.number, tokens.key_head)
            coded = 0
            if bits != EXACT:
                number = tokens.text * self.tail.keys.shape[1] + tokens.key_head
                coded = len(index) - int(segments.stop[number] - segments.start[number])
            kept = Kept(index, tokens.log_weight[index], coded=coded, bits=bits)
            lists.append((tokens.keys, tokens.values, kept))
        self._store_lists(lists, latest)


def _in_order(scores: Sequence[Tensor], kept: Sequence[Kept]) -> list[Tensor]:
    """Scores of what lists keep as :class:`RunningScores` has them, what is coded last."""
    exact = [len(head.index) - head.coded for head in kept]
    parts = [(score[:n], score[n:]) for score, n in zip(scores, exact, strict=True)]
    return [first for first, _ in parts] + [coded for _, coded in parts]


def restore_sliding(layer: Any, keys: Tensor, values: Tensor, seen: int) -> None:
    """Give transformers' layer with a sliding window the tokens of another one."""
    layer.lazy_initialization(keys, values)
    layer.keys, layer.values, layer.cumulative_length = keys, values, seen
