"""Attention over lists of keys, by the compiled kernel: one call for all lists.

The kernel's threads are those of PyTorch: it is handed the function of libgomp that starts them, as
libtorch has loaded it. Threads of its own would compete with them.
"""

from __future__ import annotations

import ctypes
import math
import os
import struct
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
LISTS, CALL = struct.Struct("@9q"), struct.Struct("@27q2d")


def _team() -> int:
    """Address of the function that starts PyTorch's threads; 0 if it has none of that kind."""
    function = torch_function("GOMP_parallel")
    if function is None:
        return 0
    return ctypes.cast(function, ctypes.c_void_p).value or 0  # type: ignore[arg-type]


class _Team:
    """The threads of this process. Those of a parent are lost in a fork, which libgomp ignores."""

    parallel = _team()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=lambda: setattr(_Team, "parallel", 0))


class Lists:
    """What the kernel knows of segments, found out once: it is called for every token."""

    def __init__(self, kernel: Kernel, segments: Segments) -> None:
        keys, values = segments.keys, segments.values
        self.attend_all = kernel.library.esscher_ragged
        self.dtype = keys.dtype
        self.kept = len(keys)
        self.fields = LISTS.pack(
            keys.data_ptr(),
            values.data_ptr(),
            segments.log_weight.data_ptr(),
            segments.start.data_ptr(),
            segments.stop.data_ptr(),
            self.kept,
            keys.shape[1],
            values.shape[1],
            TYPES[keys.dtype],
        )

    def take(self, q: Tensor, tail_keys: Tensor, tail_values: Tensor) -> bool:
        """Whether the kernel reads arrays of these types and strides."""
        return (
            tail_keys.dtype is self.dtype
            and tail_values.dtype is self.dtype
            and q.dtype in TYPES
            and q.is_cpu
            and tail_keys.is_cpu
            and tail_values.is_cpu
            and tail_keys.stride(3) == 1
            and tail_values.stride(3) == 1
        )

    def attend(
        self,
        q: Tensor,
        tail_keys: Tensor,
        tail_values: Tensor,
        scaling: float,
        softcap: float | None,
        visible: Tensor | None,
    ) -> Tensor:
        """Attention of all lists; [batch, n_q, heads, d_v]."""
        _, heads, n_q, _ = q.shape
        _, key_heads, tail, _ = tail_keys.shape
        step = max(ROWS * key_heads // heads, 1)
        if n_q <= step:
            return self._attend(q, tail_keys, tail_values, scaling, softcap, visible)
        outputs = []
        for low in range(0, n_q, step):
            high = min(low + step, n_q)
            # later keys than the last of these queries sees by causality are left out
            last = max(tail - n_q + high, 0) if visible is None else tail
            tails = tail_keys[:, :, :last], tail_values[:, :, :last]
            seen = None if visible is None else visible[:, low:high]
            outputs.append(self._attend(q[:, :, low:high], *tails, scaling, softcap, seen))
        return torch.cat(outputs, 1)

    def _attend(
        self,
        q: Tensor,
        tail_keys: Tensor,
        tail_values: Tensor,
        scaling: float,
        softcap: float | None,
        visible: Tensor | None,
    ) -> Tensor:
        """One call of the kernel."""
        batch, heads, n_q, _ = q.shape
        _, key_heads, tail, d_v = tail_values.shape
        wide = q if q.dtype is torch.float32 else q.to(torch.float32)
        outputs = wide.new_empty((batch, n_q, heads, d_v))
        seen: int = 0
        strides: tuple[int, ...] = (0, 0, 0)
        if visible is not None:
            seen, strides = visible.data_ptr(), visible.stride()
            if len(visible) == 1:
                strides = (0, *strides[1:])
        rest = CALL.pack(
            wide.data_ptr(),
            tail_keys.data_ptr(),
            tail_values.data_ptr(),
            seen,
            outputs.data_ptr(),
            _Team.parallel,
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
        failed = self.attend_all(self.fields + rest)
        if failed == 1:
            raise InputError(f"a list lies outside the {self.kept} kept keys")
        if failed:
            raise MemoryError("no memory for the sums of attention")
        return outputs if wide is q else outputs.to(q.dtype)


def lists_of(segments: Segments) -> Lists | None:
    """The segments for the compiled kernel, if there is one for them."""
    kernel = kernel_for(segments.keys.device, torch.float32)
    return None if kernel is None or segments.keys.dtype not in TYPES else Lists(kernel, segments)


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
            packed.data_ptr(),
            tilts.data_ptr(),
            0 if extra is None else extra.data_ptr(),
            0 if last is None else last.data_ptr(),
            room.data_ptr(),
            sums.data_ptr(),
            *(one.data_ptr() for one in found),
            there,
            keys.shape[1],
            count,
            columns,
            0.0 if softcap is None else softcap / math.log(2),
        )
    )
    return found
