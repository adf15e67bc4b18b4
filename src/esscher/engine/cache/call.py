"""One call of a model on a reduced cache: what all its layers share."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import NamedTuple

import torch
from torch import Tensor

from esscher.core.errors import InputError
from esscher.engine.models.inputs import read_mask


class TailMask(NamedTuple):
    """A mask as far as it concerns the tail.

    ``visible`` is [batch, n_q, tail], None if every query sees all up to its own; ``hidden`` is
    [batch, n_q], True at new tokens that are padding, None if there are none.
    """

    visible: Tensor | None
    hidden: Tensor | None


NO_MASK = TailMask(None, None)


@dataclass
class Call:
    """What the layers of a cache know about the call that goes on.

    Attributes
    ----------
    pieces
        Pieces of a prompt that are still to be read, the one that goes on included.
    handed
        Number of the layer whose keys were handed to the model and not yet come back.
    repeats
        Whether the model will repeat what it reads in this call.
    repeating
        From where to where the queries of each text repeat it, while the model does so.
    earlier
        Last tokens of every text before those of a piece, as far as they are known.
    unfinished
        Whether a prompt was read and not yet repeated.
    """

    pieces: int = 0
    handed: int | None = None
    repeats: bool = False
    repeating: list[tuple[int, int]] | None = None
    earlier: list[Tensor] | None = field(default=None, repr=False)
    unfinished: bool = False
    _mask: Tensor | None = field(default=None, repr=False)
    _read: TailMask = field(default=NO_MASK, repr=False)

    @property
    def reading(self) -> bool:
        """Whether a prompt is being read in pieces."""
        return self.pieces > 0

    def hand_out(self, layer: int) -> None:
        """Note that keys of a layer go to the model, which must bring them back for attention.

        Raises
        ------
        InputError
            If the last ones did not come back: the model computed attention on a part of the keys.
        """
        if self.handed is not None:
            raise InputError(
                f"attention of layer {self.handed} was not computed by the reduced cache: a call "
                "was interrupted, the cache was made for another model, the model's attention was "
                "replaced while it ran, or several threads use it at once. Start again with a new "
                "cache (plan.cache(model)), or cache.reset()"
            )
        self.handed = layer

    def tail_mask(self, mask: Tensor | None, queries: int, tail: int) -> TailMask:
        """Read the mask of a call; it is the same for all layers, and read once.

        Parameters
        ----------
        mask
            As the model made it, [batch, 1, queries, tokens seen], of bool or of numbers to be
            added; None if position alone decides.
        queries
            New tokens.
        tail
            Tokens of the tail, the new ones included.
        """
        if mask is None:
            return NO_MASK
        if mask is not self._mask:
            self._mask, self._read = mask, _read(mask, queries, tail)
        return self._read

    def reset(self) -> None:
        """Forget everything."""
        self.pieces, self.handed, self.repeats, self.repeating = 0, None, False, None
        self.earlier, self.unfinished = None, False
        self.finish()

    def check_finished(self) -> None:
        """Refuse to go on from a prompt of which it was not decided what is kept.

        Raises
        ------
        InputError
            If reading or repeating it was interrupted.
        """
        if self.unfinished:
            raise InputError(
                "the cache is unfinished: reading a prompt, or repeating it, was interrupted. "
                "Start again with a new cache (plan.cache(model)), or cache.reset()"
            )

    def finish(self) -> None:
        """Forget the call."""
        self._mask, self._read = None, NO_MASK


def _read(mask: Tensor, queries: int, tail: int) -> TailMask:
    if mask.shape[1] != 1:
        raise InputError(
            f"the attention mask differs between {mask.shape[1]} heads; with a reduced cache it "
            "must be the same for all heads"
        )
    read = read_mask(mask[..., mask.shape[-1] - tail :], tail)
    if read.bias is not None:
        raise InputError(
            "the attention mask adds numbers to the logits; with a reduced cache it can only hide "
            "tokens"
        )
    assert read.visible is not None
    own = read.visible[:, 0]
    hidden = ~own[..., tail - queries :].any(1)
    causal = torch.ones(queries, tail, dtype=torch.bool, device=own.device).tril(tail - queries)
    return TailMask(
        visible=None if bool((own == causal).all()) else own,
        hidden=hidden if bool(hidden.any()) else None,
    )
