"""Budgets of a plan for other runtimes.

They have no weighted samples and no fitted values: plans for them are better made with
``selection="topk"``.
"""

from __future__ import annotations

import io
import json
import warnings
from pathlib import Path
from typing import TYPE_CHECKING, Literal, TypeAlias

import numpy as np

from esscher.core.atomic import write_output
from esscher.core.errors import InputError

if TYPE_CHECKING:
    from esscher.studies.plan.result import Plan

#: Forms of an export: a table of text, the same as JSON, and the array of kvpress' LUKVPress.
ExportFormat: TypeAlias = Literal["csv", "json", "kvpress"]
#: How the names of their files end.
ENDINGS: dict[ExportFormat, str] = {"csv": ".csv", "json": ".json", "kvpress": ".npy"}
#: Rows of LU-KV's array: shares that are dropped, from 1% to 99%.
TARGETS = 99


def export_plan(plan: Plan, path: Path, form: ExportFormat | None) -> None:
    """Write the budgets; see :meth:`Plan.export`."""
    named = {ending: name for name, ending in ENDINGS.items()}.get(path.suffix.lower())
    form = form or named
    if form is None:
        raise InputError(
            f"the name {path.name!r} does not say what to write; let it end in .json, .csv or .npy "
            "(kvpress), or give a format"
        )
    if form not in ENDINGS:
        raise InputError(f"format is {form!r}; choose 'csv', 'json' or 'kvpress'")
    if named not in (None, form):
        raise InputError(
            f"format is {form!r}, but {path.name!r} is the name of a file of format {named!r}; let "
            f"it end in {ENDINGS[form]}, or leave the format out"
        )
    write_output(path, {"csv": _csv, "json": _json, "kvpress": _kvpress}[form](plan))


def _csv(plan: Plan) -> bytes:
    table = plan.table()[["layer", "key_head", "tokens", "ratio"]]
    return table.to_csv(index=False).encode()


def _json(plan: Plan) -> bytes:
    found = {
        "model": plan.model.name,
        "weight_hash": plan.model.weight_hash,
        "prefix": plan.prefix,
        "selection": plan.selection,
        "sinks": plan.keeping.sinks,
        "recent": plan.keeping.recent,
        "tokens": plan.budgets,
        "ratios": plan.ratios,
    }
    return json.dumps(found, indent=1).encode()


def _kvpress(plan: Plan) -> bytes:
    """Write LU-KV's array [99, layers, key heads]: the share that each head drops, by target.

    A plan is for one target. Rows of others are not known, and are NaN: to use them is an error.
    """
    if plan.sliding:
        raise InputError(
            f"{plan.model.name} has layers with a sliding window, which kvpress' array of ratios "
            "cannot leave out; export 'csv' or 'json'"
        )
    if plan.selection != "topk":
        lost = "weights" if plan.selection == "sample" else "weights and fitted values"
        warnings.warn(
            f"the plan is for selection {plan.selection!r}, and kvpress has no {lost} of tokens: "
            "its budgets alone are exported, and what it says of errors does not hold for them. "
            "Make a plan with selection='topk' for kvpress",
            stacklevel=4,
        )
    row = min(TARGETS, max(1, round(100 * (1 - plan.total.ratio)))) - 1
    out = np.full((TARGETS, *np.shape(plan.ratios)), np.nan, dtype=np.float32)
    out[row] = 1 - np.asarray(plan.ratios)
    data = io.BytesIO()
    np.save(data, out, allow_pickle=False)
    return data.getvalue()
