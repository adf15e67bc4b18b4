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
    reading
        Whether a prompt is being read in pieces.
    handed
        Number of the layer whose keys were handed to the model and not yet come back.
    repeats
        Whether the model will repeat what it reads in this call.
    repeating
        From where to where the queries of each text repeat it, while the model does so.
    earlier
        Last tokens of every text before those of a piece, as far as they are known.
    unfinished
        Whether a call goes on, or did not come to its end.
    """

    reading: bool = False
    handed: int | None = None
    repeats: bool = False
    repeating: list[tuple[int, int]] | None = None
    earlier: list[Tensor] | None = field(default=None, repr=False)
    unfinished: bool = False
    _mask: Tensor | None = field(default=None, repr=False)
    _read: TailMask = field(default=NO_MASK, repr=False)

    def hand_out(self, layer: int) -> None:
        """Note that keys of a layer go to the model, which must bring them back for attention."""
        self.check_returned()
        self.handed = layer

    def check_returned(self) -> None:
        """Refuse to go on from keys that did not come back.

        Raises
        ------
        InputError
            If the model computed attention on them by itself: they are a part of the keys.
        """
        if self.handed is not None:
            raise InputError(
                f"attention of layer {self.handed} was not computed by the reduced cache: the "
                "cache was made for another model, or the model's attention was replaced while it "
                "ran. Start again with a new cache (plan.cache(model)), or cache.reset()"
            )

    def tail_mask(
        self, mask: Tensor | None, queries: int, tail: int, padding: Tensor | None
    ) -> TailMask:
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
        padding
            True at tokens before the tail that are padding, [batch, tokens]; None if there are
            none.

        Raises
        ------
        InputError
            If it is more than a mask, or does not show the tokens that were seen before the tail,
            or shows their padding: what is kept of them stands for all of them.
        """
        if mask is None:
            return NO_MASK
        if mask is not self._mask:
            self._mask, self._read = mask, _read(mask, queries, tail, padding)
        return self._read

    def check_finished(self) -> None:
        """Refuse to go on from a call of which some layers know and others do not.

        Raises
        ------
        InputError
            If it was interrupted, or failed.
        """
        if self.unfinished:
            raise InputError(
                "the cache is unfinished: a call with it was interrupted, or failed, and its "
                "layers hold different tokens. Start again with a new cache (plan.cache(model)), "
                "or cache.reset()"
            )

    def finish(self) -> None:
        """Forget the call, but not whether it came to its end."""
        self.reading, self.handed, self.repeats, self.repeating = False, None, False, None
        self.earlier = None
        self.forget_mask()

    def forget_mask(self) -> None:
        """Forget the mask of a call."""
        self._mask, self._read = None, NO_MASK


def _read(mask: Tensor, queries: int, tail: int, padding: Tensor | None) -> TailMask:
    if mask.shape[1] != 1:
        raise InputError(
            f"the attention mask differs between {mask.shape[1]} heads; with a reduced cache it "
            "must be the same for all heads"
        )
    read = read_mask(mask, mask.shape[-1])
    if read.bias is not None:
        raise InputError(
            "the attention mask adds numbers to the logits; with a reduced cache it can only hide "
            "tokens"
        )
    assert read.visible is not None
    first = mask.shape[-1] - tail
    shown, own = read.visible[:, 0, :, :first], read.visible[:, 0, :, first:]
    wrong = ~shown if padding is None else shown == padding.to(shown.device)[:, None]
    if bool(wrong.any()):
        text, query, token = torch.nonzero(wrong)[0].tolist()
        does = "shows padding at" if bool(shown[text, query, token]) else "hides"
        raise InputError(
            "the attention mask does not show the tokens that the cache was filled with: it "
            f"{does} token {token} of text {text}. What is kept of them stands for all of them; "
            "hand in a mask with the same padding as before, or read the text again with a new "
            "cache (plan.cache(model)), or cache.reset()"
        )
    hidden = ~own[..., tail - queries :].any(1)
    causal = torch.ones(queries, tail, dtype=torch.bool, device=own.device).tril(tail - queries)
    return TailMask(
        visible=None if bool((own == causal).all()) else own,
        hidden=hidden if bool(hidden.any()) else None,
    )
