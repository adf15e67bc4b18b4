"""Lists of kept keys, as many as wanted for every text and key head."""

from __future__ import annotations

from dataclasses import dataclass

from torch import Tensor


@dataclass(frozen=True, eq=False)
class Segments:
    """Lists of kept keys, one per (text, key head), in flat arrays.

    The list of text b and key head g has number ``b * key_heads + g``. Lists may be empty, may lie
    in any order, and may share storage, as those of beams do.

    Attributes
    ----------
    keys
        [total, d_k], contiguous; float32, bfloat16 or float16.
    values
        [total, d_v], contiguous, of the same type.
    log_weight
        [total] in float32, finite: added to the logits.
    start, stop
        [lists] in int64, on the same device: where each list lies.
    """

    keys: Tensor
    values: Tensor
    log_weight: Tensor
    start: Tensor
    stop: Tensor
