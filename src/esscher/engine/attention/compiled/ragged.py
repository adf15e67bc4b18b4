"""Attention over lists of keys, by the compiled kernel: one call for all lists.

The kernel's threads are those of PyTorch: it is handed the function of libgomp that starts them, as
libtorch has loaded it. Threads of its own would compete with them.
"""

from __future__ import annotations

import ctypes
import math
import os
import struct
from collections.abc import Callable
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from esscher.core.errors import InputError
from esscher.engine.attention.arrays import Workspace, torch_function
from esscher.engine.attention.compiled.kernel import Kernel, kernel_for

if TYPE_CHECKING:
    from esscher.engine.attention.ragged import Segments

#: As in widen.h.
TYPES = {torch.float32: 0, torch.bfloat16: 1, torch.float16: 2}
#: Queries times heads of a key head in one call: their sums stay in the second-level cache.
ROWS = 256
#: ``struct ragged`` of block.h: what belongs to the lists, and the rest.
LISTS, CALL = struct.Struct("@12q"), struct.Struct("@27q2d")


#: Address of the function that starts PyTorch's threads, by its name; 0 if it has none of that
#: kind. Threads of a parent are lost in a fork, which libgomp ignores: then there is none, either.
THREADS = {
    "GOMP_parallel": ctypes.cast(torch_function("GOMP_parallel"), ctypes.c_void_p).value or 0  # type: ignore[arg-type]
}
if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=lambda: THREADS.update(GOMP_parallel=0))

#: What the kernel knows of segments: its function, and their part of ``struct ragged``.
PackedLists = tuple[Callable[[bytes], int], bytes]


def pack_lists(segments: Segments, kernel: Kernel | None = None) -> PackedLists | None:
    """The segments for the compiled kernel, if there is one for them; made once for all tokens."""
    keys, values = segments.keys, segments.values
    kernel = kernel or kernel_for(keys.device, torch.float32)
    if kernel is None or keys.dtype not in TYPES:
        return None
    codes = segments.codes
    coded = (0, 0, 0)
    if codes is not None:
        coded = (codes.data.data_ptr(), codes.table.data_ptr(), codes.data.nbytes)
    return kernel.library.esscher_ragged, LISTS.pack(
        keys.data_ptr(),
        values.data_ptr(),
        segments.log_weight.data_ptr(),
        segments.start.data_ptr(),
        segments.stop.data_ptr(),
        len(keys),
        keys.shape[1],
        values.shape[1],
        TYPES[keys.dtype],
        *coded,
    )


def attend_lists(
    lists: PackedLists,
    q: Tensor,
    tail_keys: Tensor,
    tail_values: Tensor,
    scaling: float,
    softcap: float | None,
    visible: Tensor | None,
) -> Tensor:
    """Attention of all lists; [batch, n_q, heads, d_v]."""
    batch, heads, n_q, _ = q.shape
    _, key_heads, tail, d_v = tail_values.shape
    step = max(ROWS * key_heads // heads, 1)
    if n_q > step:
        outputs = []
        for low in range(0, n_q, step):
            high = min(low + step, n_q)
            # later keys than the last of these queries sees by causality are left out
            last = max(tail - n_q + high, 0) if visible is None else tail
            tails = tail_keys[:, :, :last], tail_values[:, :, :last]
            seen = None if visible is None else visible[:, low:high]
            outputs.append(attend_lists(lists, q[:, :, low:high], *tails, scaling, softcap, seen))
        return torch.cat(outputs, 1)
    attend_all, fields = lists
    wide = q if q.dtype is torch.float32 else q.to(torch.float32)
    output = wide.new_empty((batch, n_q, heads, d_v))
    address: int = 0
    strides: tuple[int, ...] = (0, 0, 0)
    if visible is not None:
        address, strides = visible.data_ptr(), visible.stride()
        if len(visible) == 1:
            strides = (0, *strides[1:])
    rest = CALL.pack(
        wide.data_ptr(),
        tail_keys.data_ptr(),
        tail_values.data_ptr(),
        address,
        output.data_ptr(),
        THREADS["GOMP_parallel"],
        torch.get_num_threads(),
        batch,
        key_heads,
        heads // key_heads,
        n_q,
        tail,
        *wide.stride(),
        *tail_keys.stride(),
        *tail_values.stride(),
        *strides,
        scaling,
        softcap or 0.0,
    )
    failed = attend_all(fields + rest)
    if failed == 1:
        raise InputError("a list lies outside the kept keys")
    if failed:
        raise MemoryError("no memory for the sums of attention")
    return output if wide is q else output.to(q.dtype)


# Weights of many queries, summed by key, by the compiled kernel.

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
    count, total = len(query), len(keys)
    packed, _ = kernel.pack_keys(keys, keys.new_zeros(keys.shape[1]))
    factor = 1 / math.log(2) if softcap is None else 1 / softcap
    tilts, _ = kernel.pack_queries(query, factor, Workspace())
    extra = None if bias is None else (bias / math.log(2)).to(torch.float32).contiguous()
    last = None
    if ends is not None:
        last = torch.zeros(len(tilts) * kernel.panel, dtype=torch.int32)
        last[:count] = ends
    room = keys.new_empty(total, kernel.panel)
    sums = keys.new_zeros(columns, 3, kernel.panel // 2)
    result = keys.new_empty(3, columns)
    kernel.library.esscher_weighed(
        WEIGHING.pack(
            packed.data_ptr(),
            tilts.data_ptr(),
            0 if extra is None else extra.data_ptr(),
            0 if last is None else last.data_ptr(),
            room.data_ptr(),
            sums.data_ptr(),
            *(row.data_ptr() for row in result),
            total,
            keys.shape[1],
            count,
            columns,
            0.0 if softcap is None else softcap / math.log(2),
        )
    )
    return result
