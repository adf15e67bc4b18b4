"""How the measurements of a probe are kept as cells of a run.

A cell is a layer (pooled mode) or a passage (context mode). Its table holds the raw errors (layer,
unit, metric, replicate, n, error); then, as metrics "mean product" and "map product" of units such
as "0 x 3", the inner products of the heads' errors behind the output projection.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import pandas as pd

from esscher.core.validation import Array
from esscher.engine.sampled.layer import METRICS, LayerMeasurement
from esscher.engine.sampled.outputs import PRODUCTS
from esscher.runs import Cell, CellRun

#: Version of what a probe's cells hold; it is part of the configuration, so that a run of another
#: version is neither continued nor misread. 2: products of errors, tails by their own test.
LAYOUT = 2


def make_cell(layers: list[LayerMeasurement]) -> Cell:
    """What is stored of measurements."""
    about = [
        {
            "layer": m.layer,
            "heads": list(m.heads),
            "sizes": list(m.sizes),
            "shape": list(m.errors.shape),
            "relative": m.relative.tolist(),
            "reference_error": m.reference_error.tolist(),
            "reference": m.reference,
            "stats": m.stats,
            "products": m.products is not None,
        }
        for m in layers
    ]
    return Cell({"layers": about}, _errors_table(layers))


def read_part(run: CellRun, name: str) -> list[LayerMeasurement] | None:
    """One cell, or None if it is not there.

    Raises
    ------
    InputError
        If it is damaged.
    """
    cell = run.read(name)
    if cell is None:
        return None
    try:
        errors = cell.table["error"].to_numpy()
        layers, start = [], 0
        for layer in cell.about["layers"]:
            count = int(np.prod(layer["shape"]))
            products, end = None, start + count
            if layer["products"]:
                _, units, replicates, sizes = layer["shape"]
                products, end = _unfolded(errors, end, units - 1, replicates, sizes)
            layers.append(
                LayerMeasurement(
                    layer=layer["layer"],
                    heads=tuple(layer["heads"]),
                    sizes=tuple(layer["sizes"]),
                    errors=errors[start : start + count].reshape(layer["shape"]),
                    relative=np.asarray(layer["relative"]),
                    reference_error=np.asarray(layer["reference_error"]),
                    stats=layer["stats"],
                    products=products,
                    reference=layer.get("reference"),  # older runs have none
                )
            )
            start = end
    except (ValueError, LookupError, TypeError) as error:
        raise run.damaged(name, error) from error
    return layers


def _errors_table(layers: list[LayerMeasurement]) -> pd.DataFrame:
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
    end = start + int(np.prod(shape))
    folded = values[start:end].reshape(shape)
    products = np.empty((*shape[:3], heads, heads))
    products[..., first, second] = folded
    products[..., second, first] = folded
    return products, end
