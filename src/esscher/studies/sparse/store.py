"""How the measurements of a study are kept as cells of a run.

A cell is a block of replicates (laws) or a passage (models). Its table has one row per error:
layer, head, pattern, reference, metric, replicate, budget, error; then the squared biases.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np
import pandas as pd

from esscher.core.errors import InputError
from esscher.core.validation import Array
from esscher.runs.folder import Cell, CellRun
from esscher.studies.sparse.measurement import Measurement
from esscher.studies.sparse.records import METRICS, SparseCell

#: Name of the rows that hold squared biases; they belong to no replicate.
BIAS, NO_REPLICATE = "bias_square", -1


def make_cell(measured: Measurement, patterns: Sequence[str], budgets: Sequence[int]) -> Cell:
    """What is stored of a measurement."""
    about = SparseCell(
        units=measured.units,
        references=measured.references,
        shape=measured.errors.shape,
        norms=_rows(measured.norms),
        visible=measured.visible,
        dense_limit=_rows(measured.dense_limit),
    )
    return Cell(about, _table(measured, patterns, budgets))


def read_measurements(
    cells: Mapping[str, Cell], run: CellRun, patterns: int, budgets: int
) -> list[Measurement]:
    """Return the measurements of cells, all of the same heads, patterns and budgets.

    Parameters
    ----------
    cells
        By name.
    run
        The run that they are from.
    patterns, budgets
        How many there are.

    Raises
    ------
    InputError
        If one is damaged.
    """
    found: list[Measurement] = []
    for name, cell in cells.items():
        try:
            measured = _measurement(cell, patterns, budgets)
            if found and (measured.units, measured.references) != (
                found[0].units, found[0].references,
            ):  # fmt: skip
                raise InputError("its heads are not those of the other cells")
        except (ValueError, LookupError, TypeError) as error:
            raise run.damaged(name, error) from error
        found.append(measured)
    return found


def _measurement(cell: Cell, patterns: int, budgets: int) -> Measurement:
    about: SparseCell = cell.about
    shape, units, references = about.shape, len(about.units), len(about.references)
    replicates = shape[4]
    if about.references not in (("dense",), ("dense", "limit")):
        raise InputError(f"its references are {', '.join(about.references)}")
    if shape != (references, patterns, len(METRICS), units, replicates, budgets):
        raise InputError(f"its shape is {list(shape)}, which is not that of the run")
    values = cell.table["error"].to_numpy(dtype=np.float64)
    count = int(np.prod(shape))
    limits = replicates if references > 1 else 0
    return Measurement(
        units=about.units,
        references=about.references,
        errors=values[:count].reshape(shape),
        bias_square=values[count:].reshape(patterns, units, budgets),
        norms=np.array(about.norms, dtype=np.float64).reshape(units, replicates),
        visible=about.visible,
        dense_limit=np.array(about.dense_limit, dtype=np.float64).reshape(len(METRICS), limits),
    )


def _rows(values: Array) -> tuple[tuple[float, ...], ...]:
    return tuple(tuple(row) for row in values.tolist())


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
