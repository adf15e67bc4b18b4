"""Are these the weights of a stored run: the same, the same in another type, or others."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

#: Field of a configuration with some of the weights: 32-bit numbers, as hexadecimal digits.
SAMPLE = "weight_sample"
#: Types of weights, the coarsest first.
_COARSE = ("bfloat16", "float16", "float32", "float64")


def compare_weights(
    stored: Mapping[str, Any], now: Mapping[str, Any]
) -> Literal["same", "other type", "others"]:
    """Compare what two configurations say about their weights.

    Parameters
    ----------
    stored, now
        ``weight_hash``, ``model`` with its ``dtype``, and ``weight_sample``, which runs of older
        versions do not have: then weights of another type cannot be told from others.
    """
    before, after = (_weights(about) for about in (stored, now))
    if before.get("weight_hash") == after.get("weight_hash"):
        return "same"
    types = [str(about.get("dtype")) for about in (before, after)]
    samples = [_numbers(about.get(SAMPLE)) for about in (before, after)]
    if types[0] == types[1] or not all(name in _COARSE for name in types):
        return "others"
    first, second = samples
    if first is None or second is None or first.shape != second.shape:
        return "others"
    coarser = min(types, key=_COARSE.index)
    equal = np.array_equal(_rounded(first, coarser), _rounded(second, coarser), equal_nan=True)
    return "other type" if equal else "others"


def _weights(configuration: Mapping[str, Any]) -> dict[str, Any]:
    """Type, hash and sample, which stand with the model or, in some kinds of runs, beside it."""
    model = configuration.get("model")
    return {**configuration, **(model if isinstance(model, Mapping) else {})}


def said_of_types(stored: Mapping[str, Any], now: Mapping[str, Any]) -> str:
    """Describe the same weights in another type."""
    return f"the same weights in {now['model']['dtype']} instead of {stored['model']['dtype']}"


def _numbers(sample: object) -> NDArray[np.float32] | None:
    if not isinstance(sample, str) or len(sample) % 8:
        return None
    try:
        return np.frombuffer(bytes.fromhex(sample), dtype="<f4")
    except ValueError:
        return None


def _rounded(values: NDArray[np.float32], dtype: str) -> NDArray[np.float32]:
    """The values as a type holds them, rounded to the nearest, to even in the middle."""
    if dtype == "bfloat16":
        bits = values.view(np.uint32).astype(np.uint64)
        kept = (bits + 0x7FFF + ((bits >> 16) & 1)) >> 16 << 16
        return (kept & 0xFFFFFFFF).astype(np.uint32).view(np.float32)
    if dtype == "float16":
        with np.errstate(over="ignore"):
            return values.astype(np.float16).astype(np.float32)
    return values
