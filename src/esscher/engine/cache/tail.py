"""The newest tokens of a cache: all of them, the same number in every head, with room to grow."""

from __future__ import annotations

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

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
