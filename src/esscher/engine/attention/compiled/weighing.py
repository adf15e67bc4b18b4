"""Weights of many queries, summed by key, by the compiled kernel."""

from __future__ import annotations

import math
import struct

import torch
from torch import Tensor

from esscher.engine.attention.compiled.kernel import Kernel
from esscher.engine.attention.threads import Workspace

#: ``struct weighing`` of weighing.h.
WEIGHING = struct.Struct("@9q4qd")


def weigh_compiled(
    kernel: Kernel,
    query: Tensor,
    keys: Tensor,
    softcap: float | None,
    bias: Tensor | None,
    ends: Tensor | None,
    columns: int,
) -> Tensor:
    """Sums of squared weights and of weights, and the largest, [3, columns].

    Parameters
    ----------
    kernel
        Of this processor.
    query, keys
        In float32 on it, [w, d_k] and [n, d_k]; queries are scaled.
    softcap
        Bound of the logits, if there is one.
    bias, ends
        Added to all logits of a key, [n], and how many keys each query sees, [w], if given.
    columns
        Sums are for the first keys only.
    """
    count, there = len(query), len(keys)
    packed, _ = kernel.pack_keys(keys, keys.new_zeros(keys.shape[1]))
    factor = 1 / math.log(2) if softcap is None else 1 / softcap
    tilts, _ = kernel.pack_queries(query, factor, Workspace())
    extra = None if bias is None else (bias / math.log(2)).to(torch.float32).contiguous()
    last = None
    if ends is not None:
        last = torch.zeros(len(tilts) * kernel.panel, dtype=torch.int32)
        last[:count] = ends
    room = keys.new_empty(there, kernel.panel)
    sums = keys.new_zeros(columns, 3, kernel.panel // 2)
    found = keys.new_empty(3, columns)
    kernel.library.esscher_weighed(
        WEIGHING.pack(
            packed.data_ptr(), tilts.data_ptr(), 0 if extra is None else extra.data_ptr(),
            0 if last is None else last.data_ptr(), room.data_ptr(), sums.data_ptr(),
            *(one.data_ptr() for one in found), there, keys.shape[1], count, columns,
            0.0 if softcap is None else softcap / math.log(2),
        )
    )  # fmt: skip
    return found
