"""Few queries over lists of keys, by the compiled kernel: one call for all lists.

The kernel's threads are those of PyTorch: it is handed the function of libgomp that starts them, as
libtorch has loaded it. Threads of its own would compete with them.
"""

from __future__ import annotations

import ctypes
import os
import struct

import torch
from torch import Tensor

from esscher.core.errors import InputError
from esscher.engine.attention.compiled.kernel import FLOATS, Kernel
from esscher.engine.attention.segments import Segments
from esscher.engine.attention.threads import torch_function

#: As in widen.h.
TYPES = {torch.float32: 0, torch.bfloat16: 1, torch.float16: 2}
#: ``struct ragged`` of ragged.h.
FIELDS = struct.Struct("@34q2d")


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


def takes(q: Tensor, segments: Segments, tail_keys: Tensor, tail_values: Tensor) -> bool:
    """Whether the arrays are of types and strides that the kernel reads."""
    dtype = segments.keys.dtype
    return (
        dtype in TYPES
        and q.dtype in TYPES
        and tail_keys.dtype == dtype
        and tail_values.dtype == dtype
        and tail_keys.stride(3) == 1
        and tail_values.stride(3) == 1
    )


def attend(
    kernel: Kernel,
    q: Tensor,
    segments: Segments,
    tail_keys: Tensor,
    tail_values: Tensor,
    scaling: float,
    softcap: float | None,
    visible: Tensor | None,
) -> Tensor:
    """Attention of all lists; [batch, n_q, heads, d_v]."""
    batch, heads, n_q, d_k = q.shape
    _, key_heads, tail, d_v = tail_values.shape
    wide = q.to(torch.float32)
    outputs = torch.empty((batch, n_q, heads, d_v), **FLOATS)
    seen: int = 0
    strides: tuple[int, ...] = (0, 0, 0)
    if visible is not None:
        seen, strides = visible.data_ptr(), visible.stride()
        if len(visible) == 1:
            strides = (0, *strides[1:])
    fields = FIELDS.pack(
        wide.data_ptr(), segments.keys.data_ptr(), segments.values.data_ptr(),
        segments.log_weight.data_ptr(), segments.start.data_ptr(), segments.stop.data_ptr(),
        tail_keys.data_ptr(), tail_values.data_ptr(), seen, outputs.data_ptr(), _Team.parallel,
        torch.get_num_threads(), len(segments.keys), batch, key_heads, heads // key_heads, n_q,
        tail, d_k, d_v, TYPES[segments.keys.dtype], *wide.stride(), *tail_keys.stride()[:3],
        *tail_values.stride()[:3], *strides, scaling, softcap or 0.0,
    )  # fmt: skip
    failed = kernel.library.esscher_ragged(fields)
    if failed == 1:
        raise InputError(f"a list lies outside the {len(segments.keys)} kept keys")
    if failed:
        raise MemoryError("no memory for the sums of attention")
    return outputs.to(q.dtype)
