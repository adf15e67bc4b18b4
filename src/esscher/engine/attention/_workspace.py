"""Working memory that a thread uses again for its next block.

A block's arrays are as large as a few hundred pages. Fresh ones for every block would cost more
than the arithmetic done on them: the system clears every page, and takes it back at once from all
cores.
"""

from __future__ import annotations

import math
import threading

import torch
from torch import Tensor


class Workspace(threading.local):
    """Named arrays of one thread; what is in them is lost when the name is asked for again."""

    def __init__(self) -> None:
        self._arrays: dict[str, Tensor] = {}

    def empty(self, name: str, *shape: int, dtype: torch.dtype, device: torch.device) -> Tensor:
        """An array with anything in it."""
        needed = math.prod(shape)
        array = self._arrays.get(name)
        if array is None or array.numel() < needed or array.dtype != dtype:
            array = self._arrays[name] = torch.empty(needed, dtype=dtype, device=device)
        return array[:needed].view(shape)
