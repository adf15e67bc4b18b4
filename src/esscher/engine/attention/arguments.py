"""Checks of what the caller passes, and the heads taken out of it one by one."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np

from esscher.core.errors import InputError
from esscher.core.validation import as_nonnegative, as_positive, as_sizes
from esscher.engine.attention.arrays import AnyArray, Workspace, is_numpy, tensor_of, type_name
from esscher.engine.attention.blocks import BlockShape, PassOptions, RawHead, default_shape
from esscher.engine.attention.compiled.kernel import kernel_for

#: Numbers per query that a pass can return.
WEIGHTS = ("participation", "largest")
#: Types of the arithmetic inside a block.
TYPES = ("float32", "float64")


@dataclass(frozen=True, eq=False)
class Inputs:
    """Arrays with one leading axis of query heads or of key heads; ``group`` queries share one."""

    head_shape: tuple[int, ...]
    group: int
    q: AnyArray
    k: AnyArray
    v: AnyArray
    limit: AnyArray | None
    key_mask: AnyArray | None
    query_mask: AnyArray | None

    def heads(self, scale_order: Sequence[int]) -> Iterator[RawHead]:
        """One head after the other, with the limits of all scales in the order of the pass."""
        # limits of many scales are large: they are copied only if their order has to change
        sorted_already = list(scale_order) == sorted(scale_order)
        several = self.limit is not None and len(self.limit) > 1 and not sorted_already
        for i, index in enumerate(np.ndindex(*self.head_shape)):
            j = i // self.group
            limit = None if self.limit is None else self.limit[:, i]
            yield RawHead(
                index=tuple(index),
                q=self.q[i],
                k=self.k[j],
                v=self.v[j],
                limit=limit[list(scale_order)] if limit is not None and several else limit,
                key_mask=None if self.key_mask is None else self.key_mask[j],
                query_mask=None if self.query_mask is None else self.query_mask[i],
            )


def for_the_kernel(dtype: object, *arrays: AnyArray | None) -> tuple[AnyArray | None, ...]:
    """The arrays themselves, or as tensors if they are numpy's and PyTorch has to do the work."""
    if kernel_for("cpu", dtype) is not None:
        return arrays
    return tuple(map(tensor_of, arrays))


def device_of(x: AnyArray) -> object:
    """Where an array lies."""
    return "cpu" if is_numpy(x) else x.device


def as_inputs(
    q: AnyArray,
    k: AnyArray,
    v: AnyArray,
    *,
    limit: AnyArray | None,
    key_mask: AnyArray | None,
    query_mask: AnyArray | None,
    scale_count: int,
    separate: bool,
) -> Inputs:
    """Check that the arrays belong together."""
    given: dict[str, AnyArray] = {"q": q, "k": k, "v": v}
    for name, array in (given if limit is None else given | {"limit": limit}).items():
        if not _is_array(array, like=q) or not _is_floating(array):
            kind = array.dtype if _is_array(array, like=q) else type(array).__name__
            wanted = "numpy array" if is_numpy(q) else "torch tensor"
            raise InputError(f"{name} is {kind}; it must be a {wanted} of floats")
        if not is_numpy(q) and array.device != q.device:
            raise InputError(f"{name} is on {array.device} but q is on {q.device}")
    shapes = f"q {tuple(q.shape)}, k {tuple(k.shape)}, v {tuple(v.shape)}"
    if min(q.ndim, k.ndim, v.ndim) < 2 or not q.ndim == k.ndim == v.ndim:
        raise InputError(f"q, k and v must have the same number of axes, at least 2; got {shapes}")
    if min(map(math.prod, (q.shape, k.shape, v.shape))) == 0:
        raise InputError(f"q, k and v must not be empty; got {shapes}")
    if k.shape[:-1] != v.shape[:-1]:
        raise InputError(f"k and v must agree in all axes but the last; got {shapes}")
    if q.shape[-1] != k.shape[-1]:
        raise InputError(f"q and k must have the same last axis; got {shapes}")
    if not separate and q.shape[-2] != k.shape[-2]:
        raise InputError(
            f"with queries='tokens' there must be as many queries as keys; got {shapes}; "
            "for other queries pass queries='separate'"
        )
    group = 1
    if q.ndim > 2:
        if q.shape[:-3] != k.shape[:-3] or q.shape[-3] % k.shape[-3]:
            raise InputError(
                "leading axes must agree, and query heads be a multiple of key heads "
                f"(third axis from the end); got {shapes}"
            )
        group = q.shape[-3] // k.shape[-3]
    head_shape = tuple(q.shape[:-2])
    heads = math.prod(head_shape)
    if limit is not None:
        limit = _as_limit(limit, (*q.shape[:-1], v.shape[-1]), scale_count, heads)
    return Inputs(
        head_shape=head_shape,
        group=group,
        q=_detached(q).reshape(heads, *q.shape[-2:]),
        k=_detached(k).reshape(-1, *k.shape[-2:]),
        v=_detached(v).reshape(-1, *v.shape[-2:]),
        limit=limit,
        key_mask=_as_mask(key_mask, tuple(k.shape[:-1]), "key_mask"),
        query_mask=_as_mask(query_mask, tuple(q.shape[:-1]), "query_mask"),
    )


def as_options(
    inputs: Inputs,
    *,
    sizes: Sequence[int],
    scales: Sequence[float],
    factor: float | None,
    separate: bool,
    causal: bool,
    received_sizes: Sequence[int],
    weights: Sequence[str],
    dtype: object,
    block: tuple[int, int] | None,
) -> tuple[PassOptions, tuple[float, ...], list[int]]:
    """Check the options; return them, the scales as given, and the order a pass takes them in."""
    tokens, key_dim = inputs.k.shape[-2:]
    n = tuple(int(size) for size in as_sizes(list(sizes), smallest=1))
    if n[-1] > tokens:
        raise InputError(f"sizes contains n = {n[-1]}, but there are only {tokens} keys")
    alphas = tuple(as_nonnegative(alpha, f"scales[{i}]") for i, alpha in enumerate(scales))
    if not alphas:
        raise InputError("scales is empty; pass at least one, such as 1.0")
    factor = key_dim**-0.5 if factor is None else as_positive(factor, "factor")
    received: tuple[int, ...] = ()
    if len(received_sizes):
        chosen = as_sizes(list(received_sizes), "received_sizes", smallest=1)
        missing = [int(size) for size in chosen if int(size) not in n]
        if missing:
            raise InputError(f"received_sizes contains {missing[0]}, which is not one of sizes {n}")
        received = tuple(n.index(int(size)) for size in chosen)
    unknown = [name for name in weights if name not in WEIGHTS]
    if unknown:
        raise InputError(f"weights contains {unknown[0]!r}; choose from {', '.join(WEIGHTS)}")
    kind = type_name(dtype)
    if kind not in TYPES:
        raise InputError(f"dtype is {dtype}; it must be {' or '.join(TYPES)}")
    if causal and separate:
        raise InputError(
            "causal needs queries that are tokens; to use only some of them, pass all tokens as q "
            "and choose with query_mask"
        )
    device = device_of(inputs.k)
    kernel = kernel_for(device, kind)
    shape = default_shape(device, kind, kernel) if block is None else _as_block(block)
    top = max(alphas) or 1.0
    order = sorted(range(len(alphas)), key=lambda s: alphas[s])
    options = PassOptions(
        sizes=n,
        relative=tuple(alphas[s] / top for s in order),
        bits=top * factor * math.log2(math.e),
        shape=shape,
        dtype=kind,
        causal=causal,
        separate=separate,
        participation="participation" in weights,
        largest="largest" in weights,
        received=received,
        kernel=kernel,
        workspace=Workspace(),
    )
    return options, alphas, order


def _is_array(x: object, like: AnyArray) -> bool:
    """Whether it is an array of the same library as another, of which at least that is known."""
    if is_numpy(x) or is_numpy(like):
        return is_numpy(x) and is_numpy(like)
    return hasattr(x, "is_floating_point")


def _is_floating(x: AnyArray) -> bool:
    return x.dtype.kind == "f" if is_numpy(x) else bool(x.is_floating_point())


def _detached(x: AnyArray) -> AnyArray:
    return x if is_numpy(x) else x.detach()


def _as_block(block: tuple[int, int]) -> BlockShape:
    try:
        queries, keys = (int(number) for number in block)
    except (TypeError, ValueError) as error:
        raise InputError(f"block is {block!r}; it must be (queries, keys)") from error
    if min(queries, keys) < 1:
        raise InputError(f"block is {block!r}; both numbers must be at least 1")
    return BlockShape(queries, keys)


def _as_limit(limit: AnyArray, shape: tuple[int, ...], scale_count: int, heads: int) -> AnyArray:
    """The limit as [1 or scale, head, query, d_v]."""
    if limit.shape not in (shape, (scale_count, *shape)):
        raise InputError(
            f"limit has shape {tuple(limit.shape)}; it must be {shape}, or {scale_count} of those "
            "(one per scale) along a first axis"
        )
    return _detached(limit).reshape(-1, heads, *shape[-2:])


def _as_mask(mask: AnyArray | None, shape: tuple[int, ...], name: str) -> AnyArray | None:
    if mask is None:
        return None
    if type_name(getattr(mask, "dtype", None)) != "bool":
        raise InputError(f"{name} must be an array of bool, True where a token is used")
    try:
        wide = np.broadcast_to(mask, shape) if is_numpy(mask) else mask.expand(shape)
        return wide.reshape(-1, shape[-1])
    except (RuntimeError, ValueError) as error:
        raise InputError(
            f"{name} has shape {tuple(mask.shape)}, which does not broadcast to {shape}"
        ) from error
