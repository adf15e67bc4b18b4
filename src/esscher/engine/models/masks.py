"""Masks of transformers, read as visibility, padding and additive bias."""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor


class Visibility(NamedTuple):
    """A mask, read: who sees whom, which keys are padding, what is added to the logits."""

    visible: Tensor | None
    valid: Tensor | None
    bias: Tensor | None


def read_mask(mask: Tensor | None, keys: int) -> Visibility:
    """Read a mask [batch, heads or 1, n_q, n_k] of bool (True: seen) or of numbers to be added.

    A key that no query sees is padding: in a mask by position every key is seen by its own query.
    """
    if mask is None:
        return Visibility(None, None, None)
    mask = mask[..., :keys]  # models that keep a cache of fixed size make larger masks
    bias = None
    if mask.dtype == torch.bool:
        visible = mask
    else:
        # transformers marks what is not seen by the smallest number of the type, or -inf.
        visible = mask > torch.finfo(mask.dtype).min / 2
        kept = torch.where(visible, mask, torch.zeros((), dtype=mask.dtype, device=mask.device))
        if bool(kept.any()):
            bias = kept
    valid = visible.any(dim=-2).any(dim=1)
    return Visibility(visible, None if bool(valid.all()) else valid, bias)
