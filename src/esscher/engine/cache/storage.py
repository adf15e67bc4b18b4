"""What a layer of a reduced cache stores: lists of kept tokens, the newest tokens, last queries."""

from __future__ import annotations

import math
import mmap
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from esscher.engine.attention.bits import EXACT, Bits, coded_bytes
from esscher.engine.attention.coded import Codes, encode
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
        Their positions: first of those that stay exact, then of those that are coded, each
        increasing.
    log_weight
        What is added to their logits.
    values
        Values in the place of their own, [keys, d_v]; None if they keep theirs.
    coded, bits
        How many of them are coded, the last ones, and in how many bits.
    """

    index: Tensor
    log_weight: Tensor
    values: Tensor | None = None
    coded: int = 0
    bits: Bits = EXACT

    def in_codes(self, bits: Bits, exact: NDArray[np.bool_]) -> Kept:
        """The same with all keys coded but those at the positions where ``exact`` is True."""
        if bits == EXACT:
            return self
        stays = torch.from_numpy(exact)[self.index]
        order = torch.argsort(~stays, stable=True)
        values = None if self.values is None else self.values[order]
        coded = len(order) - int(stays.sum())
        return Kept(self.index[order], self.log_weight[order], values, coded, bits)

    def stored(self, keys: Tensor, values: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Keys, values and log-weights as they are stored, given all keys and values."""
        return packed([(keys, values, self)], torch.float32).one(0)


def packed(
    lists: Sequence[tuple[Tensor, Tensor, Kept]], dtype: torch.dtype | None = None
) -> Segments:
    """Lists in flat arrays; each is given as keys, values, and what is kept of them.

    The type of what is not coded is that of the keys unless it is given.
    """
    keys, values, _ = lists[0]
    kept = [head for *_, head in lists]
    exact = torch.tensor([len(head.index) - head.coded for head in kept])
    stop, device = exact.cumsum(0), keys.device
    total, widths = int(stop[-1]), (keys.shape[1], values.shape[1])
    bytes_of = [coded_bytes(head.coded, *widths, head.bits) if head.coded else 0 for head in kept]
    dtype = keys.dtype if dtype is None else dtype
    key_array, value_array = (_lasting((total, d), dtype, device) for d in widths)
    data = _lasting((sum(bytes_of),), torch.uint8, device)
    weights, at, byte = [], 0, 0
    for (keys, values, head), count, size in zip(lists, exact.tolist(), bytes_of, strict=True):
        place, index = slice(at, at + count), head.index.to(device)
        key_array[place] = keys[index[:count]]
        value = values[index] if head.values is None else head.values.to(device)
        value_array[place] = value[:count]
        weights.append(head.log_weight[:count])
        if head.coded:
            weight = head.log_weight[count:].to(device)
            data[byte : byte + size] = encode(keys[index[count:]], value[count:], weight, head.bits)
        at, byte = place.stop, byte + size
    codes = None
    if sum(bytes_of):
        coded = np.array([head.coded for head in kept])
        bits = np.array([head.bits if head.coded else (8, 8) for head in kept])
        starts = [np.cumsum(x) - x for x in (np.array(bytes_of), coded)]
        table = np.column_stack([starts[0], coded, bits, starts[1]]).astype(np.int64)
        codes = Codes(data, torch.from_numpy(table).to(device))
    return Segments(
        keys=key_array,
        values=value_array,
        log_weight=torch.cat(weights).to(device, torch.float32),
        start=(stop - exact).to(device),
        stop=stop.to(device),
        codes=codes,
    )


def _lasting(shape: tuple[int, ...], dtype: torch.dtype, device: torch.device) -> Tensor:
    """An empty array that lives as long as a cache.

    Lists are made while the large arrays of a layer come and go. Between them, in the allocator's
    memory, they would keep it from using the gaps, and from giving them back: peaks were then
    hardly below those of a dense cache. So they have memory of their own.
    """
    size = math.prod(shape) * dtype.itemsize
    if device.type != "cpu" or size < SMALLEST:
        return torch.empty(shape, dtype=dtype, device=device)
    return torch.frombuffer(mmap.mmap(-1, size), dtype=dtype).view(shape)


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
        keys, values, weight = segments.one(number)
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
        Scores of the tokens of the lists, [total], in the order of their arrays: those that are
        coded come last.
    tail
        Of the first tokens of the tail, [batch, key heads, some].
    """

    def __init__(self, listed: Tensor, tail: Tensor) -> None:
        with torch.inference_mode(False):
            self.listed, self.tail = listed.clone(), tail.clone()

    def copied(self, segments: Segments) -> Tensor:
        """Scores of the lists as they are after :meth:`Segments.copied`."""
        scores = [self.of_list(segments, number, 0) for number in range(len(segments.start))]
        exact = (segments.stop - segments.start).tolist()
        parts = [(score[:n], score[n:]) for score, n in zip(scores, exact, strict=True)]
        return torch.cat([first for first, _ in parts] + [coded for _, coded in parts])

    def of_list(self, segments: Segments, number: int, tail: int) -> Tensor:
        """Scores of one list and of its tail, 0 at tokens that have none."""
        parts = [self.listed[int(segments.start[number]) : int(segments.stop[number])]]
        if segments.codes is not None:
            _, count, *_, first = segments.codes.table[number].tolist()
            parts.append(self.listed[len(segments.keys) + first :][:count])
        known = self.tail.flatten(0, 1)[number, :tail]
        return torch.cat([*parts, known, torch.zeros(tail - len(known))])
