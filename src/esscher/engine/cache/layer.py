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
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from esscher.core.memory import give_back
from esscher.engine.attention.ragged import ragged_attention
from esscher.engine.cache.carried import Carried
from esscher.engine.cache.fitting import Asked
from esscher.engine.cache.holding import HoldingLayer, no_gradients, padding_of
from esscher.engine.cache.judging import Looked, Waiting, judged, look_at_held
from esscher.engine.cache.lists import packed
from esscher.engine.cache.recent import RecentQueries
from esscher.engine.cache.selection import Kept
from esscher.engine.models.interface import layer_inputs, scaling_of

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
                    self.rule, self.number, self.segments, self.tail, query, self.recent,
                    self.seen, scaling, softcap,
                )  # fmt: skip
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
            self.number, query, key, value, mask, options, causal=True, past=0,
            own=lambda: torch.zeros(0),
        )  # fmt: skip
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
            self.rule, self.number, self.segments, self.tail, looked, self.carried, self.lengths,
            self.turns, held,
        )  # fmt: skip
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
