"""A model as stored runs know it: its name and shape, and a hash and a sample of its weights."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Annotated, Any, Literal, TypeVar
from weakref import WeakKeyDictionary

from msgspec import Meta

from esscher.core.codec import Count, Hash, Name, Record

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray
    from torch import Tensor


#: Sizes of models: bounded, since figures and tables have as many cells.
Size = Annotated[int, Meta(ge=1, le=100_000)]
#: Weights that are kept beside the hash of all, and the field of a record that holds them.
SAMPLED, SAMPLE = 64, "weight_sample"
#: Types of weights, the coarsest first.
_COARSE = ("bfloat16", "float16", "float32", "float64")


class ModelRecord(Record, frozen=True, kw_only=True):
    """A model, as runs and plans name it.

    Attributes
    ----------
    name
        The name it was asked for by; of a folder, its last part.
    family, architecture
        What Esscher and what transformers call it.
    layers, heads, key_heads, head_dim, hidden
        Its shape.
    causal
        Whether queries see only earlier keys.
    max_positions
        Longest passage it reads, in tokens.
    dtype
        Type of the weights.
    note
        What to know about the family.
    weight_hash
        SHA-256 over all weights.
    weight_sample
        Some of the weights as 32-bit numbers in hexadecimal digits, by which the same weights are
        known again in another type.
    """

    name: Name
    family: Name
    architecture: Name
    layers: Size
    heads: Size
    key_heads: Size
    head_dim: Size
    hidden: Annotated[int, Meta(ge=1, le=10_000_000)]
    causal: bool
    max_positions: Count
    dtype: Name
    note: Name = ""
    weight_hash: Hash = ""
    weight_sample: Annotated[str, Meta(pattern="^[0-9a-f]{0,512}$")] = ""

    def __str__(self) -> str:
        return self.name


def tensor_hash(tensors: Mapping[str, Tensor]) -> str:
    """SHA-256 over names, types, shapes and bits of tensors."""
    import torch

    digest = hashlib.sha256()
    for key, tensor in sorted(tensors.items()):
        digest.update(f"{key}:{tensor.dtype}:{tuple(tensor.shape)};".encode())
        # Viewed as bytes, since numpy does not know every type of torch.
        flat = tensor.detach().cpu().contiguous().reshape(-1)
        if flat.numel():
            digest.update(flat.view(torch.uint8).numpy().data)
    return digest.hexdigest()


def weight_sample(model: Any) -> str:
    """Some weights as 32-bit numbers, in hexadecimal digits: which ones depends on names alone.

    By it, :func:`compare_weights` knows the same weights again in another type.
    """
    import numpy as np
    import torch

    tensors = {
        key: tensor
        for key, tensor in sorted(model.state_dict().items())
        if tensor.is_floating_point() and tensor.numel()
    }
    names = list(tensors)
    chosen = []
    for i in range(SAMPLED if names else 0):
        key = names[i * len(names) // SAMPLED]
        flat = tensors[key].detach().reshape(-1)
        at = int.from_bytes(hashlib.sha256(f"{key}:{i}".encode()).digest()[:8], "little")
        chosen.append(flat[at % flat.numel()].to("cpu", torch.float32))
    values = torch.stack(chosen).numpy() if chosen else np.zeros(0, np.float32)
    return values.astype("<f4").tobytes().hex()


def compare_weights(
    stored: Mapping[str, Any], now: Mapping[str, Any]
) -> Literal["same", "other type", "others"]:
    """Compare what the records of two models say about their weights.

    Parameters
    ----------
    stored, now
        Fields of a :class:`ModelRecord`. Without a sample, which runs of older versions do not
        have, weights of another type cannot be told from others.
    """
    import numpy as np

    if stored.get("weight_hash") == now.get("weight_hash"):
        return "same"
    types = [str(record.get("dtype")) for record in (stored, now)]
    if types[0] == types[1] or not all(name in _COARSE for name in types):
        return "others"
    coarser = min(types, key=_COARSE.index)
    samples = []
    for record in (stored, now):
        digits = record.get(SAMPLE)
        try:
            numbers = np.frombuffer(bytes.fromhex(digits), dtype="<f4") if digits else None
        except (TypeError, ValueError):
            numbers = None
        if numbers is None:
            return "others"
        samples.append(_rounded(numbers, coarser))
    first, second = samples
    return "other type" if np.array_equal(first, second, equal_nan=True) else "others"


def type_difference(stored: Mapping[str, Any], now: Mapping[str, Any]) -> str:
    """Describe the same weights in another type."""
    return f"the same weights in {now['dtype']} instead of {stored['dtype']}"


def _rounded(values: NDArray[np.float32], dtype: str) -> NDArray[np.float32]:
    """The values as a type holds them, rounded to the nearest, to even in the middle."""
    import numpy as np

    if dtype == "bfloat16":
        bits = values.view(np.uint32).astype(np.uint64)
        kept = (bits + 0x7FFF + ((bits >> 16) & 1)) >> 16 << 16
        return (kept & 0xFFFFFFFF).astype(np.uint32).view(np.float32)
    if dtype == "float16":
        with np.errstate(over="ignore"):
            return values.astype(np.float16).astype(np.float32)
    return values


# Weights that were looked at before: hashed and checked once, not for every cache of a plan.
#
# A model in memory is known again by where its weights lie and how often they were written to, and
# by a sample of them. What writes around PyTorch's count of writes (``weight.data``) is noticed by
# the sample alone.

T = TypeVar("T")


#: What changes when weights do, and what was computed from them, by model.
_computed: WeakKeyDictionary[Any, tuple[tuple[Any, ...], dict[str, Any]]] = WeakKeyDictionary()


def computed_once(model: Any, key: str, compute: Callable[[Any], T]) -> T:
    """Return what a function computes from a model's weights; again only if they changed.

    Parameters
    ----------
    model
        The model.
    key
        Name of the result.
    compute
        Takes the model.
    """
    tensors = list(model.state_dict(keep_vars=True).values())
    if any(tensor.is_inference() or tensor.is_meta for tensor in tensors):
        return compute(model)  # their writes are not counted
    state = (*((tensor.data_ptr(), tensor._version) for tensor in tensors), weight_sample(model))
    if model not in _computed or _computed[model][0] != state:
        _computed[model] = state, {}
    results = _computed[model][1]
    if key not in results:
        results[key] = compute(model)
    result: T = results[key]
    return result
