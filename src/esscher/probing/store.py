"""How the measurements of a probe are kept as cells of a run.

A cell is a layer (pooled mode) or a passage (context mode). Its table holds the raw errors (layer,
unit, metric, replicate, n, error).
"""

from __future__ import annotations

from typing import Any

import numpy as np
import pandas as pd

from esscher.probing.layer import METRICS, LayerMeasurement
from esscher.runs import Cell, CellRun

KIND = "probe"


def write_part(run: CellRun, name: str, layers: list[LayerMeasurement]) -> None:
    """Store one cell."""
    about = [
        {
            "layer": m.layer,
            "heads": list(m.heads),
            "sizes": list(m.sizes),
            "shape": list(m.errors.shape),
            "relative": m.relative.tolist(),
            "reference_error": m.reference_error.tolist(),
            "stats": m.stats,
        }
        for m in layers
    ]
    run.write(name, Cell({"layers": about}, _errors_table(layers)))


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
            layers.append(
                LayerMeasurement(
                    layer=layer["layer"],
                    heads=tuple(layer["heads"]),
                    sizes=tuple(layer["sizes"]),
                    errors=errors[start : start + count].reshape(layer["shape"]),
                    relative=np.asarray(layer["relative"]),
                    reference_error=np.asarray(layer["reference_error"]),
                    stats=layer["stats"],
                )
            )
            start += count
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
    return pd.concat(tables, ignore_index=True)
