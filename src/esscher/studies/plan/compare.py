"""From checked passages to numbers with intervals, and the verdict.

Passages are the independent units: means have Student's interval over them, and configurations are
compared by the paired logarithm of their ratio, passage by passage.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import pandas as pd

from esscher.core.validation import Array
from esscher.math.statistics.means import exponentials, mean_and_interval
from esscher.runs import Cell
from esscher.studies.plan.arguments import NEIGHBOURS
from esscher.studies.plan.check import END
from esscher.studies.plan.verdict import closest, paired_ratio, passages_needed, verdict_of

#: A head's prediction counts as right within this factor.
FACTOR = 1.5
#: Divergences below this are rounding, and count as equal.
ROUNDING = 1e-9
#: Ranges of the measures.
RANGES = {"kl": (0.0, np.inf), "top1": (0.0, 1.0), "cosine": (-1.0, 1.0), "error": (0.0, np.inf)}


def check_results(cells: list[Cell], predicted_error: Array, causal: bool) -> dict[str, Any]:
    """Measures of every configuration, comparisons with planned, and calibration by head.

    Parameters
    ----------
    cells
        One per passage.
    predicted_error
        Predicted relative error of every head, [layers, heads].
    causal
        Whether the model is a decoder.
    """
    tables = [cell.table for cell in cells]
    names = [n for n in dict.fromkeys(tables[0]["configuration"]) if not n.startswith("head ")]
    out: dict[str, Any] = {"passages": len(cells), "dense": _dense(cells, causal)}
    damages = {}
    for name in names:
        rows = [table[table["configuration"] == name] for table in tables]
        measures: dict[str, Any] = {}
        for measure in ("kl", "top1") if causal else ("cosine",):
            values = _end(rows, measure)
            measures[measure] = _single(mean_and_interval(values[:, None], *RANGES[measure]))
        if causal:
            surprise = _end(rows, "nll")
            measures["perplexity"] = _single(exponentials(surprise[:, None]))
            more = surprise - np.array([cell.about["dense_nll"] for cell in cells])
            measures["perplexity_ratio"] = _single(exponentials(more[:, None]))
        elif len(cells) >= NEIGHBOURS:  # a run that was stopped may have fewer
            measures["nearest"] = _single(mean_and_interval(_nearest(cells, name)[:, None], 0, 1))
        by_layer = np.stack([_layers(row) for row in rows])
        measures["layer_error"] = mean_and_interval(by_layer, 0.0)
        measures["error"] = _single(mean_and_interval(by_layer.mean(axis=1)[:, None], 0.0))
        out[name] = measures
        damage = _end(rows, "kl") if causal else 1 - _end(rows, "cosine")
        damages[name] = np.maximum(damage, ROUNDING)
    planned, uniform = damages["planned"], damages["uniform"]
    out["ratios"] = {
        name: paired_ratio(damages[name], planned) for name in names if name != "planned"
    }
    out["verdict"] = verdict_of(out["ratios"]["uniform"])
    out["earned"] = out["verdict"] == "better"
    undecided = out["verdict"] == "undecided"
    out["passages_needed"] = passages_needed(uniform, planned) if undecided else None
    out["best"] = closest(damages)
    out["over_best"] = {
        name: paired_ratio(damages[name], damages[out["best"][0]])
        for name in names
        if name != out["best"][0]
    }
    out["heads"] = _calibration(tables, predicted_error)
    return out


def _dense(cells: list[Cell], causal: bool) -> dict[str, Any]:
    """What dense attention has by definition, and its perplexity."""
    exact = {"mean": 0.0, "interval": [0.0, 0.0]}
    one = {"mean": 1.0, "interval": [1.0, 1.0]}
    if not causal:
        return {"cosine": one, "nearest": one, "error": exact}
    surprise = np.array([cell.about["dense_nll"] for cell in cells])
    perplexity = _single(exponentials(surprise[:, None]))
    return {"kl": exact, "top1": one, "perplexity": perplexity, "error": exact}


def _single(found: dict[str, Any]) -> dict[str, Any]:
    """The only entry of each list."""
    return {name: values[0] for name, values in found.items()}


def _end(rows: list[pd.DataFrame], measure: str) -> Array:
    picked = [row[(row["layer"] == END) & (row["measure"] == measure)] for row in rows]
    return np.array([float(row["value"].iloc[0]) for row in picked])


def _layers(row: pd.DataFrame) -> Array:
    own = row[row["measure"] == "error"].sort_values("layer")
    return own["value"].to_numpy(dtype=np.float64)


def _nearest(cells: list[Cell], name: str) -> Array:
    """Share of samples in which a passage's nearest neighbour among the dense others stays."""
    dense = _units(np.array([cell.about["embeddings"]["dense"][0] for cell in cells]))
    own = np.eye(len(cells), dtype=bool)
    nearest = np.where(own, -np.inf, dense @ dense.T).argmax(axis=1)
    others = _units(np.array([cell.about["embeddings"][name] for cell in cells]))
    moved = np.einsum("psd,qd->spq", others, dense)
    kept = np.where(own, -np.inf, moved).argmax(axis=2) == nearest
    return np.asarray(kept.mean(axis=0))


def _units(rows: Array) -> Array:
    return np.asarray(rows / np.linalg.norm(rows, axis=-1, keepdims=True))


def _calibration(tables: list[pd.DataFrame], predicted: Array) -> dict[str, Any]:
    """Predicted against realised relative error of every head, when only it is reduced."""
    layers, heads = predicted.shape
    squares = np.zeros((layers, heads))
    for table in tables:
        own = table[table["measure"] == "realised"]
        head = own["configuration"].str.removeprefix("head ").astype(int)
        squares[own["layer"], head] += own["value"].to_numpy() ** 2
    realised = np.sqrt(squares / len(tables))
    shown = (predicted > 0) & (realised > 0)
    ratio = realised[shown] / predicted[shown]
    within = float(np.mean((ratio < FACTOR) & (ratio > 1 / FACTOR))) if shown.any() else None
    return {
        "predicted": predicted.tolist(),
        "realised": realised.tolist(),
        "factor": FACTOR,
        "within_factor": within,
        "median_ratio": float(np.median(ratio)) if shown.any() else None,
    }
