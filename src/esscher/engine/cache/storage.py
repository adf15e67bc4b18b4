"""Lists of kept tokens: made from dense keys or from other lists, and taken apart."""

from __future__ import annotations

import mmap
from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from esscher.engine.attention.ragged import Segments
from esscher.engine.cache.scores import WINDOW

if TYPE_CHECKING:
    from esscher.engine.cache.selection import Kept


#: Bytes from which an array has memory of its own: whole pages are taken for it.
SMALLEST = 2**16


def packed(lists: Sequence[tuple[Tensor, Tensor, Kept]]) -> Segments:
    """Lists in flat arrays; each is given as keys, values, and what is kept of them."""
    counts = [len(kept.index) for _, _, kept in lists]
    stop = torch.tensor(counts).cumsum(0)
    keys, values, _ = lists[0]
    flat = Segments(
        keys=_apart(keys, sum(counts)),
        values=_apart(values, sum(counts)),
        log_weight=torch.cat([kept.log_weight for *_, kept in lists]).to(
            keys.device, torch.float32
        ),
        start=(stop - torch.tensor(counts)).to(keys.device),
        stop=stop.to(keys.device),
    )
    at = 0
    for keys, values, kept in lists:
        place, index = slice(at, at + len(kept.index)), kept.index.to(keys.device)
        torch.index_select(keys, 0, index, out=flat.keys[place])
        if kept.values is None:
            torch.index_select(values, 0, index, out=flat.values[place])
        else:
            flat.values[place] = kept.values
        at = place.stop
    return flat


def _apart(like: Tensor, rows: int) -> Tensor:
    """An array for so many rows, in memory of its own.

    Lists are made while the large arrays of a layer come and go. Between them, in the allocator's
    memory, they would keep it from using the gaps, and from giving them back: peaks were then
    hardly below those of a dense cache.
    """
    shape = (rows, like.shape[1])
    size = rows * like.shape[1] * like.itemsize
    if like.device.type != "cpu" or size < SMALLEST:
        return like.new_empty(shape)
    return torch.frombuffer(mmap.mmap(-1, size), dtype=like.dtype).view(shape)


def one_list(segments: Segments, number: int) -> tuple[Tensor, Tensor, Tensor]:
    """Keys, values and log-weights of one list, as views."""
    own = slice(int(segments.start[number]), int(segments.stop[number]))
    return segments.keys[own], segments.values[own], segments.log_weight[own]


def chosen_lists(segments: Segments, texts: Tensor, batch: int) -> Segments:
    """Lists of these texts of a batch; nothing is copied, the same text may come several times."""
    start, stop = (x.view(batch, -1)[texts].reshape(-1) for x in (segments.start, segments.stop))
    return Segments(segments.keys, segments.values, segments.log_weight, start, stop)


def bytes_of(segments: Segments) -> int:
    """Bytes of the arrays; what lists share is there once."""
    arrays = (
        segments.keys,
        segments.values,
        segments.log_weight,
        segments.start,
        segments.stop,
    )
    return sum(array.nbytes for array in arrays)


# The newest tokens of a cache: all of them, the same number in every head, with room to grow.

# Arrays are made outside of inference mode, in which a model may run: those made inside of it could
# not be written to afterwards.

#: Room that is added when there is none: so many tokens at least, or this part of what is there.
LEAST, SHARE = 8, 4


class Tail:
    """Keys and values after those of the lists, appended without copying what is there.

    Attributes
    ----------
    length
        Tokens.
    """

    def __init__(self) -> None:
        self.length = 0
        self._keys: Tensor | None = None
        self._values: Tensor | None = None
        self._hidden: Tensor | None = None

    @property
    def keys(self) -> Tensor:
        """[batch, key heads, length, d_k], a view."""
        assert self._keys is not None
        return self._keys[:, :, : self.length]

    @property
    def values(self) -> Tensor:
        """[batch, key heads, length, d_v], a view."""
        assert self._values is not None
        return self._values[:, :, : self.length]

    @property
    def valid(self) -> Tensor | None:
        """[batch, length], False at padding; None if there is none."""
        return None if self._hidden is None else ~self._hidden[:, : self.length]

    def valid_counts(self, count: int) -> NDArray[np.int64]:
        """How many of the last tokens are no padding, by text."""
        assert self._keys is not None
        if self._hidden is None:
            return np.full(len(self._keys), count)
        last = self._hidden[:, self.length - count : self.length]
        return np.asarray((~last).sum(1).cpu())

    def present(self, text: int) -> Tensor:
        """False at padding of one text, [length], in the processor's memory."""
        if self._hidden is None:
            return torch.ones(self.length, dtype=torch.bool)
        return ~self._hidden[text, : self.length].cpu()

    @property
    def nbytes(self) -> int:
        """Bytes, with the room that is not used yet."""
        held = (self._keys, self._values, self._hidden)
        return sum(array.nbytes for array in held if array is not None)

    @torch.inference_mode(False)
    @torch.no_grad()
    def start(self, keys: Tensor, values: Tensor) -> None:
        """Become empty; arrays will be like these, [batch, key heads, any, d]."""
        self.length = 0
        self._keys, self._values = (
            x.new_empty(*x.shape[:2], 0, x.shape[3]) for x in (keys, values)
        )
        self._hidden = None

    @torch.inference_mode(False)
    @torch.no_grad()
    def append(self, keys: Tensor, values: Tensor) -> None:
        """Add tokens, [batch, key heads, new, d]."""
        assert self._keys is not None
        assert self._values is not None
        stop = self.length + keys.shape[2]
        if stop > self._keys.shape[2]:
            room = stop + max(LEAST, stop // SHARE)
            self._keys, self._values = _grown(self.keys, room), _grown(self.values, room)
            if self._hidden is not None:
                self._hidden = _grown(self._hidden[:, None, : self.length, None], room)[:, 0, :, 0]
        self._keys[:, :, self.length : stop] = keys
        self._values[:, :, self.length : stop] = values
        if self._hidden is not None:
            self._hidden[:, self.length : stop] = False
        self.length = stop

    @torch.inference_mode(False)
    @torch.no_grad()
    def hide(self, hidden: Tensor) -> None:
        """Mark padding among the newest tokens, [batch, new]."""
        assert self._keys is not None
        if self._hidden is None:
            shape = (len(self._keys), self._keys.shape[2])
            self._hidden = torch.zeros(shape, dtype=torch.bool, device=self._keys.device)
        self._hidden[:, self.length - hidden.shape[1] : self.length] = hidden

    @torch.inference_mode(False)
    @torch.no_grad()
    def keep_last(self, count: int) -> None:
        """Forget all but the last tokens, and give the room back."""
        first = self.length - count
        self._keys, self._values = (
            self.keys[:, :, first:].clone(),
            self.values[:, :, first:].clone(),
        )
        if self._hidden is not None:
            hidden = self._hidden[:, first : self.length].clone()
            self._hidden = hidden if bool(hidden.any()) else None
        self.length = count

    def drop_last(self, count: int) -> None:
        """Take back the last tokens."""
        self.length -= count

    @torch.inference_mode(False)
    @torch.no_grad()
    def select(self, texts: Tensor) -> None:
        """Become the tail of these texts of the batch."""
        self._keys, self._values = self.keys[texts], self.values[texts]
        if self._hidden is not None:
            self._hidden = self._hidden[texts, : self.length]


def _grown(array: Tensor, room: int) -> Tensor:
    """The same [batch, heads, tokens, d] with room for more tokens."""
    out = array.new_zeros(*array.shape[:2], room, array.shape[3])
    out[:, :, : array.shape[2]] = array
    return out


# The last queries of a layer, by which tokens are judged again.


class RecentQueries:
    """The last queries of a layer, by which tokens are judged."""

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
        """Hold these queries, at these places."""
        order = torch.argsort(places)  # the oldest, or an empty place, is the next to go
        self.queries[:], self.places[:] = queries[:, :, order], places[order]
        self._next = 0

    def forget_from(self, place: int) -> None:
        """Forget queries from a place on: their tokens were taken back."""
        self.places[self.places >= place] = -1

    @torch.inference_mode(False)
    @torch.no_grad()
    def select(self, texts: Tensor) -> None:
        """Become those of these texts of the batch."""
        self.queries = self.queries[texts]

    def observed(
        self, batch: int, g: int, key_heads: int, listed: int, there: Tensor, seen: int
    ) -> tuple[Tensor, Tensor]:
        """Queries of one key head and the keys that they see: a list, then the tail.

        Parameters
        ----------
        batch, g, key_heads
            The text, and the number of the key head among all of them.
        listed
            Length of the list; every query sees all of it.
        there
            False at padding of the tail, [tail].
        seen
            Tokens seen, those of the tail the last ones.
        """
        order = self._order(there, seen)
        places = self.places[order]
        first = seen - len(there)
        group = self.queries.shape[1] // key_heads
        query = self.queries[batch, g * group : (g + 1) * group, order]
        tail = (torch.arange(first, seen) <= places[:, None]) & there
        visible = torch.cat([torch.ones(len(places), listed, dtype=torch.bool), tail], dim=1)
        return query, visible.to(query.device)

    def own_places(self, there: Tensor, seen: int) -> Tensor:
        """Places of the queries of :meth:`observed`."""
        return self.places[self._order(there, seen)]

    def _order(self, there: Tensor, seen: int) -> Tensor:
        """Which queries are of a text, in their order: rounding does not depend on their slots."""
        first = seen - len(there)
        own = self.places >= 0
        # a query whose own token is padding is none of the text's
        behind = self.places >= first
        own[behind] &= there[(self.places[behind] - first)]
        order = torch.argsort(self.places)
        return order[own[order]]


# Scores of held tokens, kept for the next time they are judged.


class Carried:
    """What tokens were scored when they were last judged, in the processor's memory.

    Queries that come later may not look for a token that those around it looked for.

    Attributes
    ----------
    listed
        Scores of the tokens of the lists, [total], in the order of their arrays.
    held
        Of the first tokens of the tail, [batch, key heads, some].
    """

    def __init__(self, listed: Tensor, held: Tensor) -> None:
        with torch.inference_mode(False):
            self.listed, self.held = listed.clone(), held.clone()

    def of(self, segments: Segments, number: int, tail: int) -> Tensor:
        """Scores of one list and of its tail, 0 at tokens that have none."""
        key_heads = self.held.shape[1]
        own = slice(int(segments.start[number]), int(segments.stop[number]))
        out = torch.zeros(own.stop - own.start + tail)
        out[: own.stop - own.start] = self.listed[own]
        held = self.held[number // key_heads, number % key_heads]
        held = held[:tail]
        out[own.stop - own.start :][: len(held)] = held
        return out

    def crop(self, tail: int) -> None:
        """Forget tokens behind so many of the tail."""
        self.held = self.held[..., :tail]

    def select(self, texts: Tensor) -> None:
        """Become those of these texts; lists are shared."""
        self.held = self.held[texts.cpu()]

    @property
    def nbytes(self) -> int:
        """Bytes of both."""
        return self.listed.nbytes + self.held.nbytes
