"""Lists of kept tokens: made from dense keys or from other lists, and taken apart."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from esscher.engine.attention.ragged import Segments


def packed(lists: Sequence[tuple[Tensor, Tensor, Tensor, Tensor]]) -> Segments:
    """Lists in flat arrays; each is given as keys, values, which of them, and log-weights."""
    counts = [len(index) for _, _, index, _ in lists]
    stop = torch.tensor(counts).cumsum(0)
    keys, values, _, _ = lists[0]
    flat = Segments(
        keys=keys.new_empty(sum(counts), keys.shape[1]),
        values=values.new_empty(sum(counts), values.shape[1]),
        log_weight=torch.cat([weight for *_, weight in lists]).to(keys.device, torch.float32),
        start=(stop - torch.tensor(counts)).to(keys.device),
        stop=stop.to(keys.device),
    )
    at = 0
    for keys, values, index, _ in lists:
        place, index = slice(at, at + len(index)), index.to(keys.device)
        torch.index_select(keys, 0, index, out=flat.keys[place])
        torch.index_select(values, 0, index, out=flat.values[place])
        at = place.stop
    return flat


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
