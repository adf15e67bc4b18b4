"""What a layer of a reduced cache holds: lists of kept tokens, and a tail of the newest ones."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from esscher.core.errors import InputError
from esscher.core.shown import counted
from esscher.engine.attention.ragged import Segments
from esscher.engine.cache.call import Call
from esscher.engine.cache.carried import Carried
from esscher.engine.cache.judging import Waiting
from esscher.engine.cache.lists import bytes_of, chosen_lists, packed
from esscher.engine.cache.recent import RecentQueries
from esscher.engine.cache.rule import PlannedRule
from esscher.engine.cache.selection import Kept
from esscher.engine.cache.tail import Tail
from esscher.engine.models.interface import owned
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


def no_gradients() -> InputError:
    """Queries, keys or values expect gradients: they would get none, and nobody would know."""
    return InputError(
        "no gradients flow through a reduced cache, and the model's weights or inputs expect some; "
        "call the model within torch.no_grad(), or after model.requires_grad_(False)"
    )


def restore_sliding(layer: Any, keys: Tensor, values: Tensor, seen: int) -> None:
    """Let transformers' layer with a sliding window hold what another one held."""
    layer.lazy_initialization(keys, values)
    layer.keys, layer.values, layer.cumulative_length = keys, values, seen
