"""Cells of a probe: a layer in pooled mode, a passage in context mode.

The table of a cell holds the raw errors (layer, unit, metric, replicate, n, error); then, as
metrics "mean product" and "map product" of units such as "0 x 3", the inner products of the heads'
errors behind the output projection.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import pandas as pd

from esscher.core.validation import Array
from esscher.engine.sampled.layer import PRODUCTS, LayerMeasurement
from esscher.engine.sampled.sizes import METRICS
from esscher.runs.folder import Cell, CellRun
from esscher.studies.probe.records import HeadStatistics, LayerPart, ProbeCell


@dataclass(frozen=True, eq=False)
class LayerFound:
    """Errors of a layer, and what one pass says about its heads."""

    measured: LayerMeasurement
    stats: tuple[HeadStatistics, ...]


def make_cell(layers: Sequence[LayerFound]) -> Cell:
    """Return what is stored of layers."""
    about = tuple(
        LayerPart(
            layer=m.layer,
            heads=m.heads,
            sizes=m.sizes,
            shape=m.errors.shape,
            relative=tuple(m.relative.tolist()),
            reference_error=tuple(m.reference_error.tolist()),
            reference=m.reference,
            stats=found.stats,
            products=m.products is not None,
        )
        for found in layers
        for m in [found.measured]
    )
    return Cell(ProbeCell(layers=about), _errors_table([found.measured for found in layers]))


def read_cell(run: CellRun, name: str, cell: Cell) -> list[LayerFound]:
    """Return the layers of a cell.

    Raises
    ------
    InputError
        If its table is not that of its layers.
    """
    about: ProbeCell = cell.about
    try:
        errors = cell.table["error"].to_numpy(dtype=np.float64)
        layers, start = [], 0
        for part in about.layers:
            found, start = _read_layer(part, errors, start)
            layers.append(found)
        if start != len(errors):
            raise ValueError(f"its table has {len(errors)} rows, not {start}")
    except (ValueError, LookupError, TypeError) as error:
        raise run.damaged(name, error) from error
    return layers


def _read_layer(part: LayerPart, errors: Array, start: int) -> tuple[LayerFound, int]:
    """A layer from the rows of a table that begin at ``start``, and where they end."""
    _, units, replicates, sizes = part.shape
    middle = end = start + math.prod(part.shape)
    products = None
    if part.products:
        products, end = _unfolded(errors, middle, units - 1, replicates, sizes)
    measured = LayerMeasurement(
        layer=part.layer,
        heads=part.heads,
        sizes=part.sizes,
        errors=errors[start:middle].reshape(part.shape),
        relative=np.asarray(part.relative),
        reference_error=np.asarray(part.reference_error),
        products=products,
        reference=part.reference,
    )
    return LayerFound(measured, part.stats), end


def _errors_table(layers: Sequence[LayerMeasurement]) -> pd.DataFrame:
    tables = []
    for m in layers:
        metric, unit, replicate, size = (axis.ravel() for axis in np.indices(m.errors.shape))
        names = np.array([*(str(head) for head in m.heads), "layer"])
        columns: dict[str, Any] = {
            "layer": np.full(m.errors.size, m.layer, dtype=np.int64),
            "unit": names[unit],
            "metric": np.array(METRICS)[metric],
            "replicate": replicate.astype(np.int64),
            "n": np.asarray(m.sizes, dtype=np.int64)[size],
            "error": m.errors.ravel(),
        }
        tables.append(pd.DataFrame(columns))
        if m.products is not None:
            tables.append(_products_table(m, m.products))
    return pd.concat(tables, ignore_index=True)


def _products_table(m: LayerMeasurement, products: Array) -> pd.DataFrame:
    """One row per pair of heads: the matrices are symmetric."""
    first, second = np.triu_indices(len(m.heads))
    folded = products[..., first, second]
    kind, replicate, size, pair = (axis.ravel() for axis in np.indices(folded.shape))
    names = np.array([f"{m.heads[i]} x {m.heads[j]}" for i, j in zip(first, second, strict=True)])
    return pd.DataFrame(
        {
            "layer": np.full(folded.size, m.layer, dtype=np.int64),
            "unit": names[pair],
            "metric": np.array([f"{name} product" for name in PRODUCTS])[kind],
            "replicate": replicate.astype(np.int64),
            "n": np.asarray(m.sizes, dtype=np.int64)[size],
            "error": folded.ravel(),
        }
    )


def _unfolded(
    values: Array, start: int, heads: int, replicates: int, sizes: int
) -> tuple[Array, int]:
    """Products [error, replicate, size, head, head] from the table, and where they end in it."""
    first, second = np.triu_indices(heads)
    shape = (len(PRODUCTS), replicates, sizes, len(first))
    end = start + math.prod(shape)
    folded = values[start:end].reshape(shape)
    products = np.empty((*shape[:3], heads, heads))
    products[..., first, second] = folded
    products[..., second, first] = folded
    return products, end
