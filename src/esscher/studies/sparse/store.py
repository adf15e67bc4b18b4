"""How the measurements of a study are kept as cells of a run.

A cell is a block of replicates (laws) or a passage (models). Its table has one row per error:
layer, head, pattern, reference, metric, replicate, budget, error; then the squared biases.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pandas as pd

from esscher.runs import Cell, CellRun
from esscher.studies.sparse.measurement import METRICS, Measurement

#: Name of the rows that hold squared biases; they belong to no replicate.
BIAS, NO_REPLICATE = "bias_square", -1


def make_cell(measured: Measurement, patterns: Sequence[str], budgets: Sequence[int]) -> Cell:
    """What is stored of a measurement."""
    about = {
        "units": [list(unit) for unit in measured.units],
        "references": list(measured.references),
        "shape": list(measured.errors.shape),
        "norms": measured.norms.tolist(),
        "visible": measured.visible,
        "dense_limit": measured.dense_limit.tolist(),
    }
    return Cell(about, _table(measured, patterns, budgets))


def read_part(run: CellRun, name: str) -> Measurement | None:
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
        about, shape = cell.about, tuple(cell.about["shape"])
        values = cell.table["error"].to_numpy(dtype=np.float64)
        count = int(np.prod(shape))
        return Measurement(
            units=tuple((int(layer), int(head)) for layer, head in about["units"]),
            references=tuple(about["references"]),
            errors=values[:count].reshape(shape),
            bias_square=values[count:].reshape(shape[1], shape[3], shape[5]),
            norms=np.asarray(about["norms"], dtype=np.float64),
            visible=float(about["visible"]),
            dense_limit=np.asarray(about["dense_limit"], dtype=np.float64),
        )
    except (ValueError, LookupError, TypeError) as error:
        raise run.damaged(name, error) from error


def _table(measured: Measurement, patterns: Sequence[str], budgets: Sequence[int]) -> pd.DataFrame:
    units = np.asarray(measured.units, dtype=np.int64)
    sizes = np.asarray(budgets, dtype=np.int64)
    r, p, m, u, i, b = (axis.ravel() for axis in np.indices(measured.errors.shape))
    errors = {
        "layer": units[u, 0],
        "head": units[u, 1],
        "pattern": np.array(patterns)[p],
        "reference": np.array(measured.references)[r],
        "metric": np.array(METRICS)[m],
        "replicate": i.astype(np.int64),
        "budget": sizes[b],
        "error": measured.errors.ravel(),
    }
    p, u, b = (axis.ravel() for axis in np.indices(measured.bias_square.shape))
    bias = {
        "layer": units[u, 0],
        "head": units[u, 1],
        "pattern": np.array(patterns)[p],
        "reference": np.full(len(p), "dense"),
        "metric": np.full(len(p), BIAS),
        "replicate": np.full(len(p), NO_REPLICATE, dtype=np.int64),
        "budget": sizes[b],
        "error": measured.bias_square.ravel(),
    }
    return pd.concat([pd.DataFrame(errors), pd.DataFrame(bias)], ignore_index=True)
