"""What a layer of a reduced cache stores: lists of kept tokens, the newest tokens, last queries."""

from __future__ import annotations

import mmap
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import torch
from torch import Tensor

from esscher.engine.attention.ragged import Segments
from esscher.engine.cache.scores import WINDOW

#: Bytes from which an array has memory of its own: whole pages are taken for it.
SMALLEST = 2**16
#: Room that is added when there is none: so many tokens at least, or this part of what is there.
LEAST, SHARE = 8, 4


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


def packed(lists: Sequence[tuple[Tensor, Tensor, Kept]]) -> Segments:
    """Lists in flat arrays; each is given as keys, values, and what is kept of them."""
    counts = [len(kept.index) for _, _, kept in lists]

    def flat(arrays: Tensor) -> Tensor:
        # Lists are made while the large arrays of a layer come and go. Between them, in the
        # allocator's memory, they would keep it from using the gaps, and from giving them back:
        # peaks were then hardly below those of a dense cache. So they have memory of their own.
        shape = (sum(counts), arrays.shape[1])
        size = shape[0] * shape[1] * arrays.itemsize
        if arrays.device.type != "cpu" or size < SMALLEST:
            return arrays.new_empty(shape)
        return torch.frombuffer(mmap.mmap(-1, size), dtype=arrays.dtype).view(shape)

    stop = torch.tensor(counts).cumsum(0)
    keys, values, _ = lists[0]
    weights = torch.cat([kept.log_weight for *_, kept in lists])
    segments = Segments(
        keys=flat(keys),
        values=flat(values),
        log_weight=weights.to(keys.device, torch.float32),
        start=(stop - torch.tensor(counts)).to(keys.device),
        stop=stop.to(keys.device),
    )
    at = 0
    for keys, values, kept in lists:
        place, index = slice(at, at + len(kept.index)), kept.index.to(keys.device)
        torch.index_select(keys, 0, index, out=segments.keys[place])
        if kept.values is None:
            torch.index_select(values, 0, index, out=segments.values[place])
        else:
            segments.values[place] = kept.values
        at = place.stop
    return segments


def one_list(segments: Segments, number: int) -> tuple[Tensor, Tensor, Tensor]:
    """Keys, values and log-weights of one list, as views."""
    place = slice(int(segments.start[number]), int(segments.stop[number]))
    return segments.keys[place], segments.values[place], segments.log_weight[place]


class Tail:
    """Keys and values after those of the lists, appended without copying what is there.

    All heads have the same number of them, so that nothing ragged is ever appended to. Arrays are
    made outside of inference mode, in which a model may run: those made inside of it could not be
    written to afterwards.

    Attributes
    ----------
    length
        Tokens.
    """

    def __init__(self) -> None:
        self.length = 0
        self._keys = self._values = torch.zeros(0, 0, 0, 0)
        self._valid = torch.zeros(0, 0, dtype=torch.bool)

    @property
    def keys(self) -> Tensor:
        """[batch, key heads, length, d_k], a view."""
        return self._keys[:, :, : self.length]

    @property
    def values(self) -> Tensor:
        """[batch, key heads, length, d_v], a view."""
        return self._values[:, :, : self.length]

    @property
    def valid(self) -> Tensor:
        """[batch, length], False at padding, in the processor's memory."""
        return self._valid[:, : self.length]

    @property
    def nbytes(self) -> int:
        """Bytes, with the room that is not used yet."""
        return self._keys.nbytes + self._values.nbytes + self._valid.nbytes

    @torch.inference_mode(False)
    @torch.no_grad()
    def start(self, keys: Tensor, values: Tensor) -> None:
        """Become empty; arrays will be like these, [batch, key heads, any, d]."""
        self.length = 0
        self._keys, self._values = (
            x.new_empty(*x.shape[:2], 0, x.shape[3]) for x in (keys, values)
        )
        self._valid = torch.ones(len(keys), 0, dtype=torch.bool)

    @torch.inference_mode(False)
    @torch.no_grad()
    def append(self, keys: Tensor, values: Tensor) -> None:
        """Add tokens, [batch, key heads, new, d]."""
        stop = self.length + keys.shape[2]
        if stop > self._keys.shape[2]:
            more = stop + max(LEAST, stop // SHARE) - self.length
            self._keys, self._values = (
                torch.nn.functional.pad(x, (0, 0, 0, more)) for x in (self.keys, self.values)
            )
            self._valid = torch.nn.functional.pad(self.valid, (0, more))
        self._keys[:, :, self.length : stop] = keys
        self._values[:, :, self.length : stop] = values
        self._valid[:, self.length : stop] = True
        self.length = stop

    @torch.inference_mode(False)
    @torch.no_grad()
    def hide(self, hidden: Tensor) -> None:
        """Mark padding among the newest tokens, [batch, new]."""
        self._valid[:, self.length - hidden.shape[1] : self.length] = ~hidden.cpu()

    @torch.inference_mode(False)
    @torch.no_grad()
    def keep_last(self, count: int) -> None:
        """Forget all but the last tokens, and give the room back."""
        first = self.length - count
        self._keys, self._values = (x[:, :, first:].clone() for x in (self.keys, self.values))
        self._valid = self.valid[:, first:].clone()
        self.length = count

    @torch.inference_mode(False)
    @torch.no_grad()
    def select(self, texts: Tensor) -> None:
        """Become the tail of these texts of the batch."""
        self._keys, self._values = self.keys[texts], self.values[texts]
        self._valid = self.valid[texts.cpu()]


class CachedTokens(NamedTuple):
    """The tokens that a layer stores of one text and key head: a list, then the tail.

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
    def counts(self) -> Tensor:
        """How often tokens count when scores are put on one scale: new ones once, [n]."""
        return torch.cat([torch.zeros(self.listed), self.present.to(torch.float32)])

    @property
    def log_weight(self) -> Tensor:
        """Log-weights, 0 at padding, in the processor's memory."""
        return self.bias.nan_to_num(neginf=0.0).cpu()


def cached_tokens(segments: Segments, tail: Tail) -> Iterator[CachedTokens]:
    """Everything that a layer stores, one list after the other."""
    for number in range(len(segments.start)):
        b, g = divmod(number, tail.keys.shape[1])
        keys, values, weight = one_list(segments, number)
        hidden = torch.zeros(tail.length).masked_fill_(~tail.valid[b], -torch.inf)
        yield CachedTokens(
            b,
            g,
            torch.cat([keys, tail.keys[b, g]]),
            torch.cat([values, tail.values[b, g]]),
            torch.cat([weight, hidden.to(weight.device)]),
            tail.valid[b],
            len(keys),
        )


class RecentQueries:
    """The last queries of a layer, which score tokens when these are selected again."""

    def __init__(self, like: Tensor, window: int = WINDOW) -> None:
        batch, heads, _, width = like.shape
        with torch.inference_mode(False):
            self.queries = like.new_zeros(batch, heads, window, width)
            self.places = torch.full((window,), -1)
        self._next = 0

    @torch.inference_mode(False)
    @torch.no_grad()
    def add(self, queries: Tensor, seen: int) -> None:
        """Note queries, [batch, heads, new, d], the last of them at place ``seen - 1``."""
        window, count = len(self.places), queries.shape[2]
        taken = min(window, count)
        slots = (self._next + torch.arange(taken)) % window
        self.queries[:, :, slots] = queries[:, :, count - taken :]
        self.places[slots] = torch.arange(seen - taken, seen)
        self._next = int((self._next + taken) % window)

    def restore(self, queries: Tensor, places: Tensor) -> None:
        """Store these queries, at these places."""
        order = torch.argsort(places)  # the oldest, or an empty place, is the next to go
        self.queries[:], self.places[:] = queries[:, :, order], places[order]
        self._next = 0

    def of_text(
        self, text: int, g: int, key_heads: int, present: Tensor, seen: int
    ) -> tuple[Tensor, Tensor]:
        """Queries of one text and key head in their order, [group, w, d_k], and their places.

        Parameters
        ----------
        text, g, key_heads
            The text, and the number of the key head among all of them.
        present
            False at padding of the tail, [tail].
        seen
            Tokens seen, those of the tail the last ones.
        """
        first = seen - len(present)
        valid = self.places >= 0
        # a query whose own token is padding is none of the text's
        later = self.places >= first
        valid[later] &= present[self.places[later] - first]
        # ordered by place: rounding does not depend on their slots
        order = torch.argsort(self.places)
        order = order[valid[order]]
        group = self.queries.shape[1] // key_heads
        return self.queries[text, g * group : (g + 1) * group, order], self.places[order]


class RunningScores:
    """Scores that tokens had when they were last selected, in the processor's memory.

    Queries that come later may not look for a token that those around it looked for.

    Attributes
    ----------
    listed
        Scores of the tokens of the lists, [total], in the order of their arrays.
    tail
        Of the first tokens of the tail, [batch, key heads, some].
    """

    def __init__(self, listed: Tensor, tail: Tensor) -> None:
        with torch.inference_mode(False):
            self.listed, self.tail = listed.clone(), tail.clone()

    def of_list(self, segments: Segments, number: int, tail: int) -> Tensor:
        """Scores of one list and of its tail, 0 at tokens that have none."""
        start, stop = int(segments.start[number]), int(segments.stop[number])
        scores = torch.zeros(stop - start + tail)
        scores[: stop - start] = self.listed[start:stop]
        known = self.tail.flatten(0, 1)[number, :tail]
        scores[stop - start :][: len(known)] = known
        return scores
