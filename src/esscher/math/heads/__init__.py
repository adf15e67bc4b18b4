"""Heads: the joint law of (tilt, key, value) of a token, from weights or from arrays."""

from __future__ import annotations

from esscher.math.heads.arrays import ArrayHead, array_head
from esscher.math.heads.head import PSI_CONVENTIONS, Head, Tokens, as_head
from esscher.math.heads.weights import WeightHead, gaussian_head, law_head, weight_head

__all__ = [
    "PSI_CONVENTIONS",
    "ArrayHead",
    "Head",
    "Tokens",
    "WeightHead",
    "array_head",
    "as_head",
    "gaussian_head",
    "law_head",
    "weight_head",
]
