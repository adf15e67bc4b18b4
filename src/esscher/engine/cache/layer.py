"""What a layer of a reduced cache holds: lists of kept tokens, and a tail of the newest ones."""

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
from esscher.engine.attention.ragged import Segments, ragged_attention
from esscher.engine.cache.fitting import Asked
from esscher.engine.cache.hooks import Call, no_gradients
from esscher.engine.cache.selection import Kept, Looked, PlannedRule, Waiting, judged, look_at_held
from esscher.engine.cache.storage import (
    Carried,
    RecentQueries,
    Tail,
    bytes_of,
    chosen_lists,
    packed,
)
from esscher.engine.models.capture import layer_inputs, owned, scaling_of
from esscher.engine.models.transformers_library import transformers_module

_base: Any = transformers_module("transformers.cache_utils").CacheLayerMixin


class HoldingLayer(_base):  # type: ignore[misc]
    """A layer of a transformers cache that holds part of the tokens.

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
        self.carried: Carried | None = None
        self._waiting: Waiting | None = None
        self.is_initialized = False

    # What transformers asks for.

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
        self._call.hand_out(self.number)
        self.seen += key_states.shape[2]
        if self.segments is None:
            # read whole by the model's own attention, and reduced behind it
            return owned(key_states, self), value_states
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
        part in judging the prompt.

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
        listed = max(0, count - self.tail.length)
        if listed > self._newest:
            raise InputError(
                f"{counted(count, 'token')} had to be taken back, and the cache can give back "
                f"{self.tail.length + self._newest}: the others were reduced already"
            )
        if count == 0:
            return
        assert self.lengths is not None
        assert self.segments is not None
        gone = self.tail.valid_counts(count - listed) + listed
        self.lengths = self.lengths - gone
        self.tail.drop_last(count - listed)
        if listed:
            self.segments = replace(self.segments, stop=self.segments.stop - listed)
        self.seen -= count
        if self.padding is not None:
            self.padding = self.padding[:, : self.listed]
        if self.recent is not None:
            self.recent.forget_from(self.seen)
        if self.carried is not None:
            self.carried.crop(self.tail.length)

    @property
    def _newest(self) -> int:
        """Latest tokens of a single prompt that are at the end of every list."""
        if self.segments is None or self.batch_size != 1 or self.turns:
            return 0
        shortest = int((self.segments.stop - self.segments.start).min())
        return min(self.recent_tokens - (self._prompt - self.listed), shortest)

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
        index = indices.to(self.segments.start.device)
        self.segments = chosen_lists(self.segments, index, self.batch_size)
        self.tail.select(index)
        self.lengths = self.lengths[indices.cpu().numpy()]
        if self.padding is not None:
            self.padding = self.padding[indices.cpu()]
        for part in (self.recent, self.carried):
            if part is not None:
                part.select(index)

    @property
    def batch_size(self) -> int:
        """Texts; -1 before there are any."""
        return -1 if self.lengths is None else len(self.lengths)

    @property
    def recent_tokens(self) -> int:
        """Tokens that stay in the tail when others are judged."""
        return 0 if self.rule is None else self.rule.recent

    # What it holds.

    @torch.inference_mode(False)
    @torch.no_grad()
    def fill(
        self,
        keys: Tensor,
        values: Tensor,
        kept: Sequence[Sequence[Kept]],
        own: Sequence[Tensor],
    ) -> None:
        """Hold part of a prompt.

        Parameters
        ----------
        keys, values
            Of all its tokens, [batch, key heads, tokens, d].
        kept
            What is kept, by text and key head.
        own
            Numbers of the tokens of every text that are not padding.
        """
        lists = [(b, g, one) for b, text in enumerate(kept) for g, one in enumerate(text)]
        segments = packed([(keys[b, g], values[b, g], one) for b, g, one in lists])
        hidden = padding_of(own, keys.shape[2])
        self.restore(segments, np.array([len(one) for one in own]), keys.shape[2], padding=hidden)
        self.tail.start(keys, values)

    def restore(
        self,
        segments: Segments,
        lengths: NDArray[np.int64],
        seen: int,
        turns: int = 0,
        padding: Tensor | None = None,
    ) -> None:
        """Hold these lists, of texts of these lengths without the padding among them."""
        self.segments, self.lengths, self.padding = segments, lengths, padding
        self.seen, self.turns, self.is_initialized = seen, turns, True
        self._prompt = seen

    @property
    def kept(self) -> list[int]:
        """Tokens held by each key head, of all texts together."""
        if self.segments is None or self.lengths is None:
            return []
        lists = (self.segments.stop - self.segments.start).view(self.batch_size, -1)
        return [int(one) + self.batch_size * self.tail.length for one in lists.sum(0)]

    @property
    def listed(self) -> int:
        """Tokens seen before those of the tail, with padding."""
        return self.seen - self.tail.length

    @property
    def nbytes(self) -> int:
        """Bytes of keys, values and weights, shared ones once, and of the room in the tail."""
        if self.segments is None:
            return 0
        queries = 0 if self.recent is None else self.recent.queries.nbytes
        scores = 0 if self.carried is None else self.carried.nbytes
        return bytes_of(self.segments) + self.tail.nbytes + queries + scores

    @property
    def dense_nbytes(self) -> int:
        """Bytes of keys and values of all tokens seen."""
        if self.segments is None:
            return 0
        keys, values = self.tail.keys, self.tail.values
        width = keys.shape[3] * keys.itemsize + values.shape[3] * values.itemsize
        return int(self.batch_size * keys.shape[1] * self.seen * width)


def padding_of(own: Sequence[Tensor], tokens: int) -> Tensor | None:
    """True at padding, [batch, tokens], from the numbers of the other tokens; None without any."""
    if all(len(one) == tokens for one in own):
        return None
    hidden = torch.ones(len(own), tokens, dtype=torch.bool)
    for text, there in zip(hidden, own, strict=True):
        text[there.cpu()] = False
    return hidden


def restore_sliding(layer: Any, keys: Tensor, values: Tensor, seen: int) -> None:
    """Let transformers' layer with a sliding window hold what another one held."""
    layer.lazy_initialization(keys, values)
    layer.keys, layer.values, layer.cumulative_length = keys, values, seen


# One layer of a reduced cache: lists of kept tokens, and a tail of the newest ones.
#
# The prompt goes through the model's own attention. Then every key head keeps its budget of it, as
# a list of keys, values and log-weights in flat arrays, and the rest is freed before the next layer
# is computed. Tokens that follow are appended to a tail, which is the same length for all heads, so
# that nothing ragged is ever appended to. Attention is over both parts.
#
# Tokens of the tail are judged together with those of the lists when a prompt is read in pieces, or
# when the budgets hold for generated tokens too; the latest stay in the tail.

#: Tokens by which the tail may exceed what it keeps before they are judged: each time costs about
#: as much as a token.
SLACK = 128

#: Bytes of a layer's keys from which the memory of the layers before is given back at once: that
#: takes milliseconds, and without it peaks were above those of a dense cache.
LARGE = 2**21


class ReducedLayer(HoldingLayer):
    """A layer of :class:`~esscher.engine.cache.cache.ReducedCache`, which computes attention."""

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
        self._call.handed = None
        if self.segments is None:
            result = function(module, query, key, value, attention_mask, **options)
            self._read_prompt(query, key, value, attention_mask, options)
            return result
        queries = query.shape[2]
        mask = self._call.tail_mask(attention_mask, queries, self.tail.length, self.padding)
        scaling, softcap = scaling_of(options, query), options.get("softcap")
        output = ragged_attention(
            query,
            self.segments,
            self.tail.keys,
            self.tail.values,
            scaling=scaling,
            softcap=softcap,
            visible=mask.visible,
        )
        if self._call.repeating is not None:
            self._repeat(query, mask.hidden, scaling, softcap)
            return output.transpose(1, 2), None
        self._count(queries, mask.hidden)
        if self.recent is not None:
            self.recent.add(query, self.seen)
            full = self.tail.length > self.recent_tokens + SLACK
            if self._call.repeats or self._call.reading or full:
                assert self.rule is not None
                looked = look_at_held(
                    self.rule,
                    self.number,
                    self.segments,
                    self.tail,
                    query,
                    self.recent,
                    self.seen,
                    scaling,
                    softcap,
                )
                if self._call.repeats:
                    group = query.shape[1] // key.shape[1]
                    self._waiting = Waiting(looked, group, first=False)
                else:
                    self._judge(looked)
        return output.transpose(1, 2), None

    def _count(self, queries: int, hidden: Tensor | None) -> None:
        assert self.lengths is not None
        if hidden is None:
            self.lengths = self.lengths + queries
            return
        self.tail.hide(hidden)
        self.lengths = self.lengths + (~hidden).sum(1).cpu().numpy()

    def _read_prompt(
        self, query: Tensor, key: Tensor, value: Tensor, mask: Tensor | None, options: Any
    ) -> None:
        assert self.rule is not None
        inputs = layer_inputs(
            self.number,
            query,
            key,
            value,
            mask,
            options,
            causal=True,
            past=0,
            own=lambda: torch.zeros(0),
        )
        own = [inputs.own_queries(batch).cpu() for batch in range(len(query))]
        again, texts = self.bounded or self._call.reading, range(len(query))
        if self._call.repeats:
            scores = [self.rule.scores(inputs, batch) for batch in texts]
            asked = [self.rule.ask(inputs, batch) for batch in texts]
            self._hold_all(inputs.k, inputs.v, own)
            lists = [one for text in scores for one in text.cpu()]
            answers = [one for text in asked for one in text]
            self._waiting = Waiting(Looked(lists, answers), inputs.group, first=True)
        elif again and self.rule.score != "last":
            scores = [self.rule.scores(inputs, batch)[:, there] for batch, there in enumerate(own)]
            asked = [self.rule.ask(inputs, batch) for batch in texts]
            self._choose(inputs.k, inputs.v, own, scores, asked)
        else:
            kept = [self.rule.keep(inputs, batch) for batch in range(len(query))]
            self.fill(inputs.k, inputs.v, kept, own)
        if key.nbytes > LARGE:
            give_back()
        if again:
            self.recent = RecentQueries(query)
            self.recent.add(query, self.seen)

    def _choose(
        self,
        keys: Tensor,
        values: Tensor,
        own: Sequence[Tensor],
        scores: Sequence[Tensor],
        asked: Sequence[Sequence[Asked | None]],
    ) -> None:
        """Hold part of a prompt by the scores [key heads, n] of its tokens without padding."""
        rule = self.rule
        assert rule is not None
        fits = [rule.fit(asked[b], keys[b], values[b], there) for b, there in enumerate(own)]
        kept = [rule.choose(self.number, *one) for one in zip(own, scores, fits, strict=True)]
        self.fill(keys, values, kept, own)
        if self.bounded or self._call.reading:
            at = [
                torch.searchsorted(there, one.index)
                for there, text in zip(own, kept, strict=True)
                for one in text
            ]
            flat = [one for text in scores for one in text]
            listed = [one[index] for one, index in zip(flat, at, strict=True)]
            self.carried = Carried(torch.cat(listed), torch.zeros(*keys.shape[:2], 0))

    @torch.inference_mode(False)
    @torch.no_grad()
    def _hold_all(self, keys: Tensor, values: Tensor, own: Sequence[Tensor]) -> None:
        """Hold a prompt as it is, in the tail."""
        nothing = Kept(torch.zeros(0, dtype=torch.long), torch.zeros(0))
        lists = [
            (keys[b, g], values[b, g], nothing)
            for b in range(len(keys))
            for g in range(keys.shape[1])
        ]
        self.restore(packed(lists), np.array([len(one) for one in own]), keys.shape[2])
        self.tail.start(keys, values)
        self.tail.append(keys, values)
        hidden = padding_of(own, keys.shape[2])
        if hidden is not None:
            self.tail.hide(hidden.to(keys.device))

    def _repeat(
        self, query: Tensor, hidden: Tensor | None, scaling: float, softcap: float | None
    ) -> None:
        """Look at queries that repeat what was read."""
        assert self.segments is not None
        assert self._waiting is not None
        assert self._call.repeating is not None
        if hidden is not None:
            self.tail.hide(hidden)
        self._waiting.add(query, self.segments, self.tail, self._call.repeating, scaling, softcap)

    def take_back(self, count: int) -> None:
        """Forget the tokens of a repetition."""
        self.tail.drop_last(count)
        self.seen -= count

    @torch.inference_mode(False)
    @torch.no_grad()
    def decide(self) -> None:
        """Keep part of what was read and repeated."""
        assert self.segments is not None
        assert self._waiting is not None
        looked, first = self._waiting.looked(self.segments, self.tail), self._waiting.first
        self._waiting = None
        if not first:
            self._judge(looked)
            return
        keys, values = self.tail.keys, self.tail.values
        own = [torch.nonzero(self.tail.present(b))[:, 0] for b in range(len(keys))]
        by_text = torch.stack(looked.scores).view(len(keys), keys.shape[1], -1)
        picked = [x[:, there] for x, there in zip(by_text, own, strict=True)]
        each = keys.shape[1]
        asked = [looked.asked[b * each : (b + 1) * each] for b in range(len(keys))]
        self._choose(keys, values, own, picked, asked)
        if keys.nbytes > LARGE:
            del keys, values
            give_back()

    @torch.inference_mode(False)
    @torch.no_grad()
    def _judge(self, looked: Looked) -> None:
        """Let the tokens of the lists and all but the latest of the tail share the budgets."""
        assert self.segments is not None
        assert self.lengths is not None
        assert self.rule is not None
        self.turns += 1
        held = min(self.recent_tokens, self.tail.length)
        self.segments, carried = judged(
            self.rule,
            self.number,
            self.segments,
            self.tail,
            looked,
            self.carried,
            self.lengths,
            self.turns,
            held,
        )
        self.carried = None if self.rule.score == "last" else carried
        hidden = self._hidden()
        self.tail.keep_last(held)
        hidden = hidden[:, : self.listed]
        self.padding = hidden if bool(hidden.any()) else None

    def _hidden(self) -> Tensor:
        """True at padding among all tokens seen, [batch, tokens]."""
        listed = self.padding
        if listed is None:
            listed = torch.zeros(self.batch_size, self.listed, dtype=torch.bool)
        tail = torch.stack([~self.tail.present(text) for text in range(self.batch_size)])
        return torch.cat([listed, tail], 1)
