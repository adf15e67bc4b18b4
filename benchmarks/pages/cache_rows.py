"""Results of :mod:`benchmarks.cache`: those of a folder, and those that a finding keeps."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pandas as pd

from benchmarks.cache import RESULTS
from benchmarks.pages.cache_words import CALLED
from esscher.core.errors import InputError
from esscher.core.untrusted.files import read_json
from esscher.engine.cache.published import RULES

#: What a page keeps of a result, so that it can be made again; answers are left out.
KEPT = (
    "model", "prefix", "text", "passage", "task", "haystack", "item", "budget", "configuration",
    "kept", "kl", "top1", "nll", "score", "log_probability",
)  # fmt: skip
#: How the names of tables with results end.
ROWS = "-rows"
#: What is told of predictions, by budget and configuration.
PREDICTED = ("budget", "configuration", "predicted", "predicted_low", "predicted_high")


def rows_of(runs: Sequence[Path]) -> dict[str, pd.DataFrame]:
    """All results, by the name of the folder; or those that a page keeps, by the name it gave."""
    if not runs:
        raise InputError("there are no runs to make a page of; give folders of benchmarks.cache")
    found: dict[str, pd.DataFrame] = {}
    for folder in runs:
        found |= page_rows(folder) or {folder.name: stored_rows(folder)}
    return found


def page_rows(folder: Path) -> dict[str, pd.DataFrame]:
    """Results that the page in a folder keeps, so that it can be made again; none if it has none.

    Trials are not kept: what was predicted from them is read from the page's table.
    """
    found: dict[str, list[pd.DataFrame]] = {}
    for path in sorted(folder.glob(f"*{ROWS}.csv")):
        name, _, part = path.name.removesuffix(f"{ROWS}.csv").rpartition("-")
        found.setdefault(name, []).append(pd.read_csv(path).assign(part=part))
        if part == "small":
            made = pd.read_csv(folder / f"{name}-{part}.csv")[list(PREDICTED)]
            found[name].append(made.drop_duplicates().assign(part="predicted"))
    return {name: pd.concat(parts, ignore_index=True) for name, parts in found.items()}


def part_rows(runs: Sequence[Path], part: str) -> dict[str, pd.DataFrame]:
    """The results of one part, by the name of the folder."""
    own = {name: rows[rows["part"] == part] for name, rows in rows_of(runs).items()}
    return {name: rows.dropna(axis="columns", how="all") for name, rows in own.items() if len(rows)}


def kept_rows(rows: pd.DataFrame) -> pd.DataFrame:
    """What a page keeps of its results."""
    return rows[[name for name in KEPT if name in rows]].dropna(axis="columns", how="all")


def stored_rows(folder: Path) -> pd.DataFrame:
    """All results of a folder, one row per passage or item, budget and configuration."""
    rows: list[dict[str, Any]] = []
    for path in sorted(folder.rglob(RESULTS)):
        found = read_json(path)
        dense = found.pop("dense", None)
        own = found.pop("rows")
        if dense is not None:
            budgets = sorted({row["budget"] for row in own})
            own += [{"configuration": "dense", "budget": budget, **dense} for budget in budgets]
        rows += [{**found, **row} for row in own]
    if not rows:
        raise InputError(f"there are no results in {folder}; make them with benchmarks.cache")
    # plans first, whenever they were measured; what has no place of its own stays in its order
    order = {name: i for i, name in enumerate((*CALLED, "uniform", *RULES))}
    rows.sort(key=lambda row: order.get(row["configuration"], len(order)))
    return pd.DataFrame(rows)
