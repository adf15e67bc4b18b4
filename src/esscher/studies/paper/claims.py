"""All claims and measurements, and how a run's cells become the ledger."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import pandas as pd

from esscher.runs.folder import Cell
from esscher.studies.paper import decoders, heads, rest, synthetic
from esscher.studies.paper.ledger import Claim, Entry, Measurement, Setting

MEASUREMENTS: dict[str, Measurement] = (
    synthetic.MEASUREMENTS | heads.MEASUREMENTS | decoders.MEASUREMENTS | rest.MEASUREMENTS
)
CLAIMS: dict[str, Claim] = synthetic.CLAIMS | heads.CLAIMS | decoders.CLAIMS | rest.CLAIMS


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
        name: pd.concat([cell.table for cell in own], ignore_index=True)
        for name, own in cells.items()
        if name not in missing
    }
    return tuple(
        CLAIMS[name].judge(tables, setting)
        for name in chosen
        if all(used in tables for used in CLAIMS[name].uses)
    )
