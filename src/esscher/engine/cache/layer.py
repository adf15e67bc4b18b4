"""One layer of a reduced cache: lists of kept tokens, and a tail of the newest ones.

The prompt goes through the model's own attention. Then every key head keeps its budget of it, as a
list of keys, values and log-weights in flat arrays, and the rest is freed before the next layer is
computed. Tokens that follow are appended to a tail, which is the same length for all heads, so that
nothing ragged is ever appended to. Attention is over both parts.

Tokens of the tail are judged together with those of the lists when a prompt is read in pieces, or
when the budgets hold for generated tokens too; the latest stay in the tail.
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
from esscher.engine.attention.ragged import Segments, ragged_attention
from esscher.engine.cache.call import Call
from esscher.engine.cache.lists import one_list, packed
from esscher.engine.cache.observation import scores_again
from esscher.engine.cache.recent import RecentQueries
from esscher.engine.cache.rule import PlannedRule
from esscher.engine.cache.selection import Kept
from esscher.engine.cache.tail import Tail
from esscher.engine.models.interface import layer_inputs, owned, scaling_of
from esscher.engine.models.transformers_library import transformers_module

#: Tokens by which the tail may exceed what it keeps before they are judged: each time costs about
#: as much as a token.
SLACK = 128

#: Bytes of a layer's keys from which the memory of the layers before is given back at once: that
#: takes milliseconds, and without it peaks were above those of a dense cache.
LARGE = 2**21

_base: Any = transformers_module("transformers.cache_utils").CacheLayerMixin


class ReducedLayer(_base):  # type: ignore[misc]
    """A layer of :class:`~esscher.engine.cache.cache.ReducedCache`.

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
        self.recent: RecentQueries | None = None
        self.is_initialized = False

    # What transformers asks for.

    def lazy_initialization(self, key_states: Tensor, value_states: Tensor) -> None:
        """Nothing is set up before the first keys come."""

    def update(
        self, key_states: Tensor, value_states: Tensor, *args: Any, **kwargs: Any
    ) -> tuple[Tensor, Tensor]:
        """Take new keys and values; what is returned leads to this layer's attention."""
        if self.batch_size not in (-1, len(key_states)):
            raise InputError(
                f"the cache holds {counted(self.batch_size, 'text')}, and {len(key_states)} came; "
                "make a new cache with plan.cache(model), or cache.reset()"
            )
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
        """Take back the newest tokens, as assisted decoding does.

        It reads its first candidates together with the prompt: those that are wrong are the latest
        of a prompt, which are in every list. Without a trace they do not go: as queries they took
        part in judging the prompt.

        Raises
        ------
        InputError
            If they were reduced already.
        """
        count = abs(tokens_to_remove)
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
        if self.recent is not None:
            self.recent.forget_from(self.seen)

    @property
    def _newest(self) -> int:
        """Latest tokens of a single prompt that are at the end of every list."""
        if self.segments is None or self.batch_size != 1 or self.turns:
            return 0
        shortest = int((self.segments.stop - self.segments.start).min())
        return min(self.recent_tokens - (self._prompt - (self.seen - self.tail.length)), shortest)

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
        held = self.segments
        index = indices.to(held.start.device)
        start, stop = (
            x.view(self.batch_size, -1)[index].reshape(-1) for x in (held.start, held.stop)
        )
        self.segments = Segments(held.keys, held.values, held.log_weight, start, stop)
        self.tail.select(index)
        self.lengths = self.lengths[indices.cpu().numpy()]
        if self.recent is not None:
            self.recent.select(index)

    @property
    def batch_size(self) -> int:
        """Texts; -1 before there are any."""
        return -1 if self.lengths is None else len(self.lengths)

    # Attention.

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
        self._call.handed = None
        if self.segments is None:
            result = function(module, query, key, value, attention_mask, **options)
            self._read_prompt(query, key, value, attention_mask, options)
            return result
        queries = query.shape[2]
        mask = self._call.tail_mask(attention_mask, queries, self.tail.length)
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
        self._count(queries, mask.hidden)
        if self.recent is not None:
            self.recent.add(query, self.seen)
            if self._call.reading or self.tail.length > self.recent_tokens + SLACK:
                self._judge(scaling, softcap)
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
            self.number, query, key, value, mask, options, causal=True, past=0,
            own=lambda: torch.zeros(0),
        )  # fmt: skip
        kept = [self.rule.keep(inputs, batch) for batch in range(len(query))]
        lengths = [len(inputs.own_queries(batch)) for batch in range(len(query))]
        self.fill(inputs.k, inputs.v, kept, lengths, seen=query.shape[2])
        if key.nbytes > LARGE:
            give_back()
        if self.bounded or self._call.reading:
            self.recent = RecentQueries(query)
            self.recent.add(query, self.seen)

    @property
    def recent_tokens(self) -> int:
        """Tokens that stay in the tail when others are judged."""
        return 0 if self.rule is None else self.rule.recent

    @torch.inference_mode(False)
    @torch.no_grad()
    def fill(
        self,
        keys: Tensor,
        values: Tensor,
        kept: Sequence[Sequence[Kept]],
        lengths: Sequence[int],
        seen: int,
    ) -> None:
        """Hold part of a prompt.

        Parameters
        ----------
        keys, values
            Of all its tokens, [batch, key heads, tokens, d].
        kept
            What is kept, by text and key head.
        lengths
            Tokens of every text without padding.
        seen
            Tokens with padding.
        """
        lists = [(b, g, one) for b, text in enumerate(kept) for g, one in enumerate(text)]
        segments = packed(
            [(keys[b, g], values[b, g], one.index, one.log_weight) for b, g, one in lists]
        )
        self.restore(segments, np.array(lengths), seen)
        self.tail.start(keys, values)

    def restore(
        self, segments: Segments, lengths: NDArray[np.int64], seen: int, turns: int = 0
    ) -> None:
        """Hold these lists, of texts of these lengths without padding."""
        self.segments, self.lengths = segments, lengths
        self.seen, self.turns, self.is_initialized = seen, turns, True
        self._prompt = seen

    @torch.inference_mode(False)
    @torch.no_grad()
    def _judge(self, scaling: float, softcap: float | None) -> None:
        """Let the tokens of the lists and all but the latest of the tail share the budgets."""
        assert self.segments is not None
        assert self.recent is not None
        assert self.lengths is not None
        assert self.rule is not None
        self.turns += 1
        tail, held = self.tail, min(self.recent_tokens, self.tail.length)
        leaving, key_heads = tail.length - held, tail.keys.shape[1]
        new = []
        for number in range(self.batch_size * key_heads):
            b, g = divmod(number, key_heads)
            keys, values, weight = one_list(self.segments, number)
            there = (
                torch.ones(tail.length, dtype=torch.bool)
                if tail.valid is None
                else tail.valid[b].cpu()
            )
            outgoing = torch.nonzero(there[:leaving])[:, 0].to(keys.device)
            listed = len(keys)
            keys = torch.cat([keys, tail.keys[b, g]])
            values = torch.cat([values, tail.values[b, g]])
            weight = torch.cat([weight, weight.new_zeros(tail.length)])
            query, visible = self.recent.observed(b, g, key_heads, listed, there, self.seen)
            candidates = torch.cat([torch.arange(listed, device=keys.device), listed + outgoing])
            scores = scores_again(query, keys, values, weight, visible, scaling, softcap)
            kept = self.rule.keep_again(
                self.number, g, scores[candidates].cpu(), int(self.lengths[b]),
                int(there[leaving:].sum()), self.turns,
            )  # fmt: skip
            index = candidates[kept.index.to(keys.device)]
            new.append((keys, values, index, weight[index].cpu() + kept.log_weight))
        self.segments = packed(new)
        tail.keep_last(held)

    # What it takes.

    @property
    def kept(self) -> list[int]:
        """Tokens held by each key head, of all texts together."""
        if self.segments is None or self.lengths is None:
            return []
        lists = (self.segments.stop - self.segments.start).view(self.batch_size, -1)
        return [int(one) + self.batch_size * self.tail.length for one in lists.sum(0)]

    @property
    def nbytes(self) -> int:
        """Bytes of keys, values and weights, shared ones once, and of the room in the tail."""
        if self.segments is None:
            return 0
        held = self.segments
        lists = sum(
            x.nbytes for x in (held.keys, held.values, held.log_weight, held.start, held.stop)
        )
        queries = 0 if self.recent is None else self.recent.queries.nbytes
        return lists + self.tail.nbytes + queries

    @property
    def dense_nbytes(self) -> int:
        """Bytes of keys and values of all tokens seen."""
        if self.segments is None:
            return 0
        keys, values = self.tail.keys, self.tail.values
        width = keys.shape[3] * keys.itemsize + values.shape[3] * values.itemsize
        return int(self.batch_size * keys.shape[1] * self.seen * width)


def restore_sliding(layer: Any, keys: Tensor, values: Tensor, seen: int) -> None:
    """Let transformers' layer with a sliding window hold what another one held."""
    layer.lazy_initialization(keys, values)
    layer.keys, layer.values, layer.cumulative_length = keys, values, seen
