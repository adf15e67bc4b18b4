"""Lists of kept tokens: made from dense keys or from other lists, and taken apart."""

from __future__ import annotations

import mmap
from collections.abc import Sequence

import torch
from torch import Tensor

from esscher.engine.attention.ragged import Segments
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
        segments.keys, segments.values, segments.log_weight, segments.start, segments.stop,
    )  # fmt: skip
    return sum(array.nbytes for array in arrays)
