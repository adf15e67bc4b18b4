"""Measurements of several passages as one."""

from __future__ import annotations

from typing import Any

import numpy as np

from esscher.core.validation import Array
from esscher.engine.sampled.layer import LayerMeasurement


def combine(parts: list[LayerMeasurement]) -> LayerMeasurement:
    """One measurement of a layer: replicates side by side, statistics averaged."""
    first = parts[0]
    if len(parts) == 1:
        return first
    return LayerMeasurement(
        layer=first.layer,
        heads=first.heads,
        sizes=first.sizes,
        errors=np.concatenate([part.errors for part in parts], axis=2),
        relative=np.sqrt(np.mean([part.relative**2 for part in parts], axis=0)),
        reference_error=np.sqrt(np.mean([part.reference_error**2 for part in parts], axis=0)),
        stats=[average([part.stats[h] for part in parts]) for h in range(len(first.heads))],
        products=_joined([part.products for part in parts]),
    )


def _joined(products: list[Array | None]) -> Array | None:
    present = [product for product in products if product is not None]
    return np.concatenate(present, axis=1) if len(present) == len(products) else None


def average(values: list[Any]) -> Any:
    """Mean of numbers, entry by entry of dictionaries and lists; else the first value.

    A number that is missing somewhere is missing, a truth value is that of the majority.
    """
    first = values[0]
    if isinstance(first, dict):
        return {key: average([value[key] for value in values]) for key in first}
    if any(value is None for value in values):
        return None
    if isinstance(first, bool):
        return sum(values) * 2 > len(values)
    if isinstance(first, (int, float)):
        return float(np.mean(values))
    if isinstance(first, list) and first and all(isinstance(x, (dict, list)) for x in first):
        # as far as all of them go: passages may differ in the number of thresholds
        shortest = min(len(value) for value in values)
        return [average([value[i] for value in values]) for i in range(shortest)]
    numeric = isinstance(first, list) and all(isinstance(x, (int, float)) for x in first)
    if numeric and all(len(value) == len(first) for value in values):
        return [average(list(entries)) for entries in zip(*values, strict=True)]
    return first
