"""Lists of kept keys, as many as wanted for every text and key head."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

import torch
from torch import Tensor

from esscher.core.errors import InputError
from esscher.engine.attention.compiled.ragged import Lists, lists_of


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

    def __post_init__(self) -> None:
        """Check once what every token relies on: the kernel reads these arrays by their address."""
        arrays = (self.keys, self.values, self.log_weight, self.start, self.stop)
        if not all(x.is_contiguous() and x.device == self.keys.device for x in arrays):
            raise InputError("arrays of segments must be contiguous, and on one device")
        if [x.ndim for x in arrays] != [2, 2, 1, 1, 1]:
            raise InputError(f"segments have shapes {[list(x.shape) for x in arrays]}")
        total, lists = len(self.keys), len(self.start)
        if [len(x) for x in arrays] != [total, total, total, lists, lists]:
            raise InputError(f"segments have lengths {[len(x) for x in arrays]}")
        wanted = (self.keys.dtype, torch.float32, torch.int64, torch.int64)
        if tuple(x.dtype for x in arrays[1:]) != wanted:
            raise InputError(f"segments have types {[x.dtype for x in arrays]}, wanted {wanted}")

    def __reduce__(self) -> tuple[type[Segments], tuple[Tensor, ...]]:
        """Copies are made from the arrays alone: addresses of arrays are not copied."""
        return Segments, (self.keys, self.values, self.log_weight, self.start, self.stop)

    @cached_property
    def sizes(self) -> tuple[int, int, int]:
        """Number of lists, entries of a key, entries of a value."""
        return len(self.start), self.keys.shape[1], self.values.shape[1]

    @cached_property
    def compiled(self) -> Lists | None:
        """The same for the compiled kernel; ``None`` where PyTorch does its work."""
        return lists_of(self)
