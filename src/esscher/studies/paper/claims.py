"""All claims and measurements, and how a run's cells become the ledger."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import pandas as pd

from esscher.runs.folder import Cell
from esscher.studies.paper import causal, downstream, heads, rest, sweeps, synthetic
from esscher.studies.paper.ledger import Claim, Entry, Measurement, Setting

#: Where claims are measured and judged.
_MODULES = (synthetic, sweeps, heads, causal, downstream, rest)
MEASUREMENTS: dict[str, Measurement] = {}
CLAIMS: dict[str, Claim] = {}
for module in _MODULES:
    MEASUREMENTS |= module.MEASUREMENTS
    CLAIMS |= module.CLAIMS


def judge_all(
    chosen: Sequence[str],
    cells: Mapping[str, Sequence[Cell]],
    missing: set[str],
    setting: Setting,
) -> tuple[Entry, ...]:
    """Judge every claim whose measurements are all there.

    Parameters
    ----------
    chosen
        Names of the claims.
    cells
        The cells of every measurement, in order.
    missing
        Measurements of which cells are missing.
    setting
        What the cells are a function of.
    """
    tables = {
        name: pd.concat([cell.table for cell in parts], ignore_index=True)
        for name, parts in cells.items()
        if name not in missing
    }
    return tuple(
        CLAIMS[name].judge(tables, setting)
        for name in chosen
        if all(
            used in tables or not MEASUREMENTS[used].units(setting.scale)
            for used in CLAIMS[name].uses
        )
    )
