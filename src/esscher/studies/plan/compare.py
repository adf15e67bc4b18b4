"""From checked passages to numbers with intervals, and the verdict.

Passages are the independent units: means have Student's interval over them, and configurations are
compared by the paired logarithm of their ratio, passage by passage: an interval that lies on one
side of 0 decides.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, TypeVar

import numpy as np
import pandas as pd

from esscher.core.validation import Array
from esscher.math.statistics.intervals import exponentials, mean_and_interval, replicates_needed
from esscher.runs.folder import Cell, CellRun
from esscher.studies.plan.records import (
    END,
    Check,
    Configuration,
    HeadErrors,
    LayerMeans,
    Mean,
    Measures,
    Verdict,
)
from esscher.studies.plan.scores import task_results

if TYPE_CHECKING:
    from esscher.studies.plan.study import PlanStudy

#: A head's prediction counts as right within this factor.
FACTOR = 1.5
#: Divergences below this are rounding, and count as equal.
ROUNDING = 1e-9


def check_results(
    cells: Sequence[Cell], predicted_error: Array, items: Sequence[Cell] = ()
) -> Check:
    """Measures of every configuration, comparisons with planned, and calibration by head.

    Parameters
    ----------
    cells
        One per passage.
    predicted_error
        Predicted relative error of every head, [layers, heads].
    items
        Items of tasks.
    """
    tables = [cell.table for cell in cells]
    first = tables[0]
    names: list[Configuration] = list(
        dict.fromkeys(first[first["measure"] == "error"]["configuration"])
    )
    measures: dict[Configuration, Measures] = {}
    distances: dict[Configuration, Array] = {}
    for name in names:
        rows = [table[table["configuration"] == name] for table in tables]
        measures[name] = _measures(rows, cells, name)
        distances[name] = np.maximum(divergences(cells, name), ROUNDING)
    planned, uniform = distances["planned"], distances["uniform"]
    ratios: dict[Configuration, Mean] = {
        name: paired_ratio(distances[name], planned) for name in names if name != "planned"
    }
    verdict = verdict_of(ratios["uniform"])
    best = closest(distances)
    nearest = distances[best[0]]
    named: dict[str, Any] = {name: one for name, one in measures.items() if ":" not in name}
    return Check(
        passages=len(cells),
        dense=_dense(cells),
        **named,
        others={name: found for name, found in measures.items() if ":" in name},
        ratios=ratios,
        verdict=verdict,
        earned=verdict == "better",
        passages_needed=passages_needed(uniform, planned) if verdict == "undecided" else None,
        best=tuple(best),
        over_best={n: paired_ratio(distances[n], nearest) for n in names if n != best[0]},
        heads=_calibration(cells, predicted_error),
        # budgets are numbers of tokens: all passages take the same
        cache=cells[0].about.cache,
        **task_results(items),
    )


def check_tables(
    study: PlanStudy, cells: Mapping[str, Cell], run: CellRun, others: Sequence[str]
) -> None:
    """Refuse stored passages that lack measures of a plan, of uniform budgets or of others.

    Raises
    ------
    InputError
        Naming the cell.
    """
    model = study.model_record
    names = ["planned", "uniform", *others]
    layers = range(model.layers)
    wanted = {(name, layer, "error") for name in names for layer in layers}
    wanted |= {(name, END, measure) for name in names for measure in ("kl", "top1", "nll")}
    wanted |= {(f"head {h}", n, "realised") for h in range(model.heads) for n in layers}
    for name, cell in cells.items():
        about, found = cell.about, _rows(name, cell, run)
        if set(found) != wanted or len(found) != len(wanted):
            raise run.damaged(name, "its table is not of all configurations, layers and heads")
        if about.dense_nll is None or set(about.kept or ()) != set(names):
            raise run.damaged(name, "it does not say what dense attention gives")


def check_items(study: PlanStudy, cells: Mapping[str, Cell], run: CellRun) -> None:
    """Refuse stored items of tasks that lack what the others have.

    Raises
    ------
    InputError
        Naming the cell.
    """
    names = ["planned", "uniform", *study.against]
    wanted = {
        (name, END, measure)
        for name in ("dense", *names)
        for measure in ("score", "log_probability")
    }
    for cell_name, cell in cells.items():
        found = _rows(cell_name, cell, run)
        if set(found) != wanted or len(found) != len(wanted):
            raise run.damaged(cell_name, "its table is not of all configurations")
        about = cell.about
        if about.task not in study.tasks or about.haystack not in ("noise", "text"):
            raise run.damaged(cell_name, "it does not say what was asked")
        if set(about.kept or ()) != set(names):
            raise run.damaged(cell_name, "it does not say what was kept")


def _rows(name: str, cell: Cell, run: CellRun) -> list[tuple[Any, ...]]:
    """What the values of a cell's table are of."""
    table, columns = cell.table, ("configuration", "layer", "measure", "value")
    if not set(columns) <= set(table.columns) or table["value"].dtype.kind not in "fiu":
        raise run.damaged(name, "its table lacks columns")
    return list(zip(*(table[column] for column in columns[:3]), strict=True))


def _measures(rows: list[pd.DataFrame], cells: Sequence[Cell], name: str) -> Measures:
    by_layer = np.stack([_layers(row) for row in rows])
    layers = mean_and_interval(by_layer, 0.0)
    surprise = _end(rows, "nll")
    more = surprise - np.array([cell.about.dense_nll for cell in cells])
    return Measures(
        kl=_mean(_end(rows, "kl"), 0.0),
        top1=_mean(_end(rows, "top1"), 0.0, 1.0),
        perplexity=mean_exponential(surprise),
        perplexity_ratio=mean_exponential(more),
        kept=cells[0].about.kept[name],
        error=_mean(by_layer.mean(axis=1), 0.0),
        layer_error=LayerMeans(
            mean=tuple(layers["mean"]),
            standard_error=tuple(layers["standard_error"]),
            interval=tuple(ends_of(ends) for ends in layers["interval"]),
        ),
    )


def _dense(cells: Sequence[Cell]) -> Measures:
    """What dense attention has by definition, and its perplexity."""
    exact = Mean(mean=0.0, interval=(0.0, 0.0))
    one = Mean(mean=1.0, interval=(1.0, 1.0))
    surprise = np.array([cell.about.dense_nll for cell in cells])
    return Measures(kl=exact, top1=one, perplexity=mean_exponential(surprise), error=exact)


def _mean(values: Array, lowest: float, highest: float = np.inf) -> Mean:
    """The mean over passages."""
    found = mean_and_interval(values[:, None], lowest, highest)
    return Mean(
        mean=found["mean"][0],
        standard_error=found["standard_error"][0],
        interval=ends_of(found["interval"][0]),
    )


def _end(rows: list[pd.DataFrame], measure: str) -> Array:
    picked = [row[(row["layer"] == END) & (row["measure"] == measure)] for row in rows]
    return np.array([float(row["value"].iloc[0]) for row in picked])


def _layers(row: pd.DataFrame) -> Array:
    own = row[row["measure"] == "error"].sort_values("layer")
    return own["value"].to_numpy(dtype=np.float64)


def divergences(cells: Sequence[Cell], name: Configuration) -> Array:
    """KL of a configuration from dense on every passage."""
    rows = [cell.table[cell.table["configuration"] == name] for cell in cells]
    return _end(rows, "kl")


def realised_errors(cells: Sequence[Cell]) -> Array:
    """Relative error of every head when only it is reduced, [layers, heads]: over passages, rms."""
    squares = []
    for cell in cells:
        own = cell.table[cell.table["measure"] == "realised"]
        head = own["configuration"].str.removeprefix("head ").astype(int)
        by_head = own.assign(head=head).pivot(index="layer", columns="head", values="value")
        squares.append(by_head.to_numpy(dtype=np.float64) ** 2)
    return np.asarray(np.sqrt(np.mean(squares, axis=0)))


def _calibration(cells: Sequence[Cell], predicted: Array) -> HeadErrors:
    """Predicted against realised relative error of every head, when only it is reduced."""
    realised = realised_errors(cells)
    shown = (predicted > 0) & (realised > 0)
    ratio = realised[shown] / predicted[shown]
    within = float(np.mean((ratio < FACTOR) & (ratio > 1 / FACTOR))) if shown.any() else None
    return HeadErrors(
        predicted=tuple(map(tuple, predicted.tolist())),
        realised=tuple(map(tuple, realised.tolist())),
        factor=FACTOR,
        within_factor=within,
        median_ratio=float(np.median(ratio)) if shown.any() else None,
    )


N = TypeVar("N", bound=str)


def paired_ratio(over: Array, under: Array) -> Mean:
    """How many times larger distances are than others on the same passages, with interval."""
    return mean_exponential(np.log(over / under))


def mean_exponential(logs: Array) -> Mean:
    """Exponential of the mean of logarithms over passages, with interval."""
    found = exponentials(logs[:, None])
    return Mean(mean=found["mean"][0], interval=ends_of(found["interval"][0]))


def ends_of(interval: list[float] | None) -> tuple[float, float] | None:
    """Return the ends of an interval as records hold them."""
    return None if interval is None else (interval[0], interval[1])


def verdict_of(ratio: Mean) -> Verdict:
    """Judge the plan by the ratio of the distance of another configuration to its own."""
    interval = ratio.interval
    if interval is not None and interval[0] > 1:
        return "better"
    if interval is not None and interval[1] < 1:
        return "worse"
    return "undecided"


def passages_needed(over: Array, under: Array) -> int | None:
    """Passages in all with which a check would decide in 4 of 5 cases.

    See :func:`replicates_needed`: m is the mean and s the spread of the paired logarithms of the
    ratio. None if there is no spread yet, or if m is so small that no reasonable number decides.
    """
    logs = np.log(over / under)
    if len(logs) < 2:
        return None
    return replicates_needed(float(logs.mean()), float(logs.std(ddof=1)))


def closest(distances: Mapping[N, Array]) -> list[N]:
    """Names of the configurations closest to dense, the closest first.

    More than one if the passages cannot tell them from the closest.
    """
    order = sorted(distances, key=lambda name: float(np.log(distances[name]).mean()))
    first = distances[order[0]]
    return [
        name
        for name in order
        if name == order[0] or verdict_of(paired_ratio(distances[name], first)) != "better"
    ]
