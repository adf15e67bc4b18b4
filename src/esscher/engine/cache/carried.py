"""Scores of held tokens, kept for the next time they are judged."""

from __future__ import annotations

import torch
from torch import Tensor

from esscher.engine.attention.ragged import Segments


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
