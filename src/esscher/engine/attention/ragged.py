"""Lists of kept keys, as many as wanted for every text and key head."""

from __future__ import annotations

import ctypes
import math
import os
import struct
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

import torch
from torch import Tensor

from esscher.core.errors import InputError
from esscher.engine.attention.arrays import Workspace, torch_function
from esscher.engine.attention.coded import Codes
from esscher.engine.attention.compiled.kernel import Kernel, kernel_for

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
    codes
        Tokens of the lists besides these, in codes; None if there are none.
    """

    keys: Tensor
    values: Tensor
    log_weight: Tensor
    start: Tensor
    stop: Tensor
    codes: Codes | None = None

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
        if self.codes is not None:
            data, table = self.codes.data, self.codes.table
            device = self.keys.device
            if not (data.is_contiguous() and table.is_contiguous()):
                raise InputError("arrays of codes must be contiguous")
            if (data.device, table.device) != (device, device) or table.shape != (lists, 5):
                raise InputError(f"codes of {lists} lists have a table {list(table.shape)}")
            if (data.dtype, table.dtype) != (torch.uint8, torch.int64):
                raise InputError(f"codes have types {data.dtype} and {table.dtype}")

    def __reduce__(self) -> tuple[type[Segments], tuple[Any, ...]]:
        """Copies are made from the arrays alone: addresses of arrays are not copied."""
        arrays = (self.keys, self.values, self.log_weight, self.start, self.stop)
        return Segments, (*arrays, self.codes)

    @cached_property
    def sizes(self) -> tuple[int, int, int]:
        """Number of lists, entries of a key, entries of a value."""
        return len(self.start), self.keys.shape[1], self.values.shape[1]

    @property
    def counts(self) -> Tensor:
        """Tokens of every list, [lists]."""
        counts = self.stop - self.start
        return counts if self.codes is None else counts + self.codes.table[:, 1]

    @property
    def nbytes(self) -> int:
        """Bytes of all arrays."""
        arrays = [self.keys, self.values, self.log_weight, self.start, self.stop]
        if self.codes is not None:
            arrays += [self.codes.data, self.codes.table]
        return sum(array.nbytes for array in arrays)

    def one(self, number: int) -> tuple[Tensor, Tensor, Tensor]:
        """Keys, values and log-weights of one list, coded tokens last, and then in float32."""
        place = slice(int(self.start[number]), int(self.stop[number]))
        arrays = self.keys[place], self.values[place], self.log_weight[place]
        if self.codes is None:
            return arrays
        coded = self.codes.decoded(number, self.keys.shape[1], self.values.shape[1])
        keys, values, log_weight = (torch.cat(both) for both in zip(arrays, coded, strict=True))
        return keys, values, log_weight

    def decoded(self) -> Segments:
        """The same without codes."""
        if self.codes is None:
            return self
        lists = [self.one(number) for number in range(len(self.start))]
        keys, values, log_weight = (torch.cat(arrays) for arrays in zip(*lists, strict=True))
        stop = self.counts.cumsum(0)
        return Segments(keys, values, log_weight, stop - self.counts, stop)

    def copied(self) -> Segments:
        """The same lists one after the other, each with memory of its own."""
        places = [slice(a, b) for a, b in zip(self.start.tolist(), self.stop.tolist(), strict=True)]
        keys, values, log_weight = (
            torch.cat([x[place] for place in places])
            for x in (self.keys, self.values, self.log_weight)
        )
        counts = self.stop - self.start
        codes = self.codes and self.codes.copied(keys.shape[1], values.shape[1])
        stop = counts.cumsum(0)
        return Segments(keys, values, log_weight, stop - counts, stop, codes)

    def select(self, numbers: Tensor) -> Segments:
        """These lists; they are not copied."""
        codes = self.codes and Codes(self.codes.data, self.codes.table[numbers])
        return replace(self, start=self.start[numbers], stop=self.stop[numbers], codes=codes)

    @cached_property
    def compiled(self) -> PackedLists | None:
        """The same for the compiled kernel; ``None`` where PyTorch does its work."""
        return pack_lists(self)


# By the compiled kernel, one call for all lists. Its threads are those of PyTorch: it is handed the
# function of libgomp that starts them, as libtorch has loaded it. Threads of its own would compete
# with them.


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
WEIGHING = struct.Struct("@12q6qd")


def weigh_compiled(
    kernel: Kernel,
    query: Tensor,
    keys: Tensor,
    softcap: float | None,
    bias: Tensor | None,
    ends: Tensor | None,
    columns: int,
    values: Tensor | None = None,
    answered: int = 0,
) -> tuple[Tensor, Tensor, Tensor]:
    """Sums of squared weights and of weights, and the largest, [3, columns]; and answers.

    The first queries are answered: logarithms of the sums of their exponentials, [answered], and
    their outputs, [answered, d_v].

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
    values, answered
        Of the keys, [n, d_v] in float32, and how many queries are answered.
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
    result, log_sum = keys.new_empty(3, columns), keys.new_empty(answered)
    output = keys.new_empty(answered, 0 if values is None else values.shape[1])
    packed_values = output
    if values is not None:
        packed_values, _ = kernel.pack_values(values, values.new_zeros(values.shape[1]))
    kernel.library.esscher_weighed(
        WEIGHING.pack(
            packed.data_ptr(),
            tilts.data_ptr(),
            0 if extra is None else extra.data_ptr(),
            0 if last is None else last.data_ptr(),
            room.data_ptr(),
            sums.data_ptr(),
            *(row.data_ptr() for row in result),
            packed_values.data_ptr(),
            log_sum.data_ptr(),
            output.data_ptr(),
            total,
            keys.shape[1],
            count,
            columns,
            answered,
            output.shape[1],
            0.0 if softcap is None else softcap / math.log(2),
        )
    )
    return result, log_sum, output


# In operations of PyTorch, one list after the other: any device and type.

#: Logits of a block of queries, in bytes.
LOGITS = 32 * 2**20


def listed_attention(
    q: Tensor,
    segments: Segments,
    tail_keys: Tensor,
    tail_values: Tensor,
    scaling: float,
    softcap: float | None,
    visible: Tensor | None,
    room: int = LOGITS,
) -> Tensor:
    """Attention of one list after the other; [batch, n_q, heads, d_v]."""
    batch, heads, n_q, _ = q.shape
    key_heads, tail, d_v = tail_values.shape[1:]
    group = heads // key_heads
    outputs = q.new_empty(batch, n_q, heads, d_v)
    for number, (start, stop) in enumerate(
        zip(segments.start.tolist(), segments.stop.tolist(), strict=True)
    ):
        b, g = divmod(number, key_heads)
        of = slice(g * group, (g + 1) * group)
        kept = stop - start
        keys = torch.cat([_wide(segments.keys[start:stop]), _wide(tail_keys[b, g])])
        values = torch.cat([_wide(segments.values[start:stop]), _wide(tail_values[b, g])])
        log_weight = segments.log_weight[start:stop]
        mask = None if visible is None else visible[b % len(visible)]
        step = max(room // (4 * group * max(kept + tail, 1)), 1)
        for low in range(0, n_q, step):
            high = min(low + step, n_q)
            # later keys than the last of these queries sees by causality are left out
            last = max(tail - n_q + high, 0) if mask is None else tail
            tilts = (_wide(q[b, of, low:high]) * scaling).flatten(0, 1)
            logits = _capped(tilts @ keys[: kept + last].T, softcap)
            logits[:, :kept] += log_weight
            seen = _causal(low, high, n_q, tail, q.device) if mask is None else mask[low:high]
            per_query = logits.view(group, high - low, kept + last)
            per_query[..., kept:].masked_fill_(~seen[:, :last], -torch.inf)
            weights = torch.softmax(per_query, -1)
            if not kept:  # softmax over nothing is not a number
                weights.masked_fill_(~seen[:, :last].any(-1)[:, None], 0.0)
            rows = weights.flatten(0, 1) @ values[: kept + last]
            outputs[b, low:high, of] = rows.view(group, high - low, d_v).transpose(0, 1)
    return outputs


def _wide(x: Tensor) -> Tensor:
    """At least float32."""
    return x.to(torch.promote_types(x.dtype, torch.float32))


def _capped(logits: Tensor, softcap: float | None) -> Tensor:
    return logits if softcap is None else logits.div_(softcap).tanh_().mul_(softcap)


def _causal(low: int, high: int, n_q: int, tail: int, device: torch.device) -> Tensor:
    """Which tail keys the queries from ``low`` to ``high`` see: the last query sees them all."""
    last = torch.arange(low, high, device=device) + (tail - n_q)
    return torch.arange(tail, device=device) <= last[:, None]


# Attention over lists of kept keys, of a different length for every head, and a dense tail.


def ragged_attention(
    q: Tensor,
    segments: Segments,
    tail_keys: Tensor,
    tail_values: Tensor,
    *,
    scaling: float,
    softcap: float | None = None,
    visible: Tensor | None = None,
) -> Tensor:
    """Attention of queries over the list of their key head, and over the tail.

    The logit of a key is ``cap(scaling * <q, k>)``, with ``cap(x) = softcap * tanh(x / softcap)``,
    plus the key's log weight in a list. Every query sees its whole list. Sums are in float32
    whatever the type of the arrays. There are no gradients.

    Parameters
    ----------
    q
        [batch, heads, n_q, d_k], of any strides; as many heads as key heads, or a multiple.
    segments
        The lists, ``batch * key_heads`` of them. Their places are not checked here: this is called
        for every layer of every token.
    tail_keys, tail_values
        [batch, key_heads, tail, d_k] and [batch, key_heads, tail, d_v]: keys after those of the
        lists, the same number for all heads. Views of larger arrays will do, if the entries of a
        key lie side by side.
    scaling
        Factor of the logits.
    softcap
        Bound of the logits, if there is one.
    visible
        [batch or 1, n_q, tail]: which tail keys each query sees. By default the last query sees
        them all, and every query before it one less.

    Returns
    -------
    Tensor
        [batch, heads, n_q, d_v] in the type of q: a view of an array [batch, n_q, heads, d_v]. A
        query that sees no key at all gets 0.
    """
    batch, heads, n_q, d_k = q.shape
    texts, key_heads, tail, width = tail_keys.shape
    count, width_k, width_v = segments.sizes
    # the compiled kernel would read elsewhere
    if not (
        texts == batch
        and heads % key_heads == 0
        and width == d_k == width_k
        and tail_values.shape == (batch, key_heads, tail, width_v)
        and count == batch * key_heads
        and (visible is None or visible.shape in ((batch, n_q, tail), (1, n_q, tail)))
    ):
        shapes = {
            "q": q,
            "keys": segments.keys,
            "values": segments.values,
            "start": segments.start,
            "tail_keys": tail_keys,
            "tail_values": tail_values,
            "visible": visible,
        }
        listed = ", ".join(f"{k} {list(x.shape)}" for k, x in shapes.items() if x is not None)
        raise InputError(f"these do not belong together: {listed}")
    if visible is not None and visible.dtype != torch.bool:
        raise InputError(f"visible is of type {visible.dtype}; it must be of torch.bool")
    lists, dtype = segments.compiled, segments.keys.dtype
    if (
        lists is not None
        and tail_keys.dtype is dtype
        and tail_values.dtype is dtype
        and q.dtype in TYPES
        and q.is_cpu
        and tail_keys.is_cpu
        and tail_values.is_cpu
        and tail_keys.stride(3) == 1
        and tail_values.stride(3) == 1
    ):
        outputs = attend_lists(lists, q, tail_keys, tail_values, scaling, softcap, visible)
    else:
        segments = segments.decoded()
        outputs = listed_attention(q, segments, tail_keys, tail_values, scaling, softcap, visible)
    return outputs.transpose(1, 2)
