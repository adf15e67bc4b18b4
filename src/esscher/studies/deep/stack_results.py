"""From the replicates of a Gaussian stack to errors, growth and exponents by layer."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np
import pandas as pd

from esscher.core.shown import counted
from esscher.core.validation import Array
from esscher.math.heads import WeightHead
from esscher.math.limits import GaussianStack
from esscher.math.theory import exponents
from esscher.runs.cells import Cell, CellRun
from esscher.studies.deep.extrapolation import compare_with_recursion, doubts
from esscher.studies.deep.headlines import NOTHING, stack_headline
from esscher.studies.deep.intervals import fitted, growth_factors, means
from esscher.studies.deep.records import DeepLayer
from esscher.studies.deep.result import Deep
from esscher.studies.deep.simulate import METRICS, RESOLUTION
from esscher.studies.deep.study import DeepStackStudy

#: Fields of the asymptotic exponents that belong to the metrics.
_SHARP = {"map": "map_rms", "mean": "mean", "cov": "cov"}


def assemble(study: DeepStackStudy, cells: Mapping[str, Cell], run: CellRun) -> Deep:
    """Return layers, overall growth and the measured limit."""
    if not cells:
        return Deep.of(run, study, 0, NOTHING, sizes=study.sizes)
    tables = [_checked(name, cell, study, run) for name, cell in cells.items()]
    errors, moments = _arrays(tables, study)
    stack, exact = study.stack()
    pair = (study.sizes[-2], study.sizes[-1])
    doubt = doubts(stack, pair[0], errors["map"][:, :, -2].mean(axis=0).tolist())
    growth = {
        metric: [
            growth_factors(errors[metric][:, :, j], study.seed) for j in range(len(study.sizes))
        ]
        for metric in METRICS
    }
    asymptotic = exponents(study.horizon)
    burn_in = np.exp(np.maximum.accumulate([h.frobenius**2 + h.tau @ h.tau for h in _heads(stack)]))
    layers = tuple(
        DeepLayer(
            layer=i,
            horizon=float(exact.horizons[i][0]),
            error={m: means(errors[m][:, i], 0.0) for m in METRICS},
            growth={m: tuple(found.steps[i] for found in growth[m]) for m in METRICS},
            fit={
                m: fitted(
                    errors[m][:, i], study.sizes, study.seed,
                    sharp=getattr(asymptotic, _SHARP[m]), resolution=RESOLUTION,
                    burn_in=float(burn_in[i]),
                )
                for m in METRICS
            },
        )
        for i in range(study.depth)
    )  # fmt: skip
    overall = {m: tuple(found.overall for found in growth[m]) for m in METRICS}
    limit = compare_with_recursion(moments, pair, exact, doubt)
    return Deep.of(
        run,
        study,
        len(cells),
        stack_headline(study.sizes, layers, overall["map"][-1], limit[-1]),
        sizes=study.sizes,
        layers=layers,
        growth=overall,
        limit=limit,
    )


def _heads(stack: GaussianStack) -> list[WeightHead]:
    """The one head of every layer, over the law that reaches it."""
    return [layer.heads[0] for layer in stack.layers]


def _checked(name: str, cell: Cell, study: DeepStackStudy, run: CellRun) -> pd.DataFrame:
    """The table of a replicate, if it has a value for every metric, size and layer."""
    try:
        found = cell.table["quantity"].value_counts()
        wanted = len(study.sizes) * study.depth
        rows = {metric: int(found[metric]) for metric in METRICS}
        if any(count != wanted for count in rows.values()) or found["moment"] % (2 * study.depth):
            raise ValueError(f"it has not {counted(wanted, 'value')} of each error")
        cell.table["value"].astype(np.float64)
    except (ValueError, LookupError, TypeError) as error:
        raise run.damaged(name, error) from error
    return cell.table


def _arrays(
    tables: Sequence[pd.DataFrame], study: DeepStackStudy
) -> tuple[dict[str, Array], Array]:
    """Errors by metric, [replicate, layer, size], and moments, [replicate, size, layer, entry]."""
    table = pd.concat(
        [found.assign(replicate=i) for i, found in enumerate(tables)], ignore_index=True
    )
    shape = (len(tables), len(study.sizes), study.depth)
    errors = {}
    for metric in METRICS:
        own = table[table["quantity"] == metric].sort_values(["replicate", "n", "layer"])
        errors[metric] = own["value"].to_numpy().reshape(shape).transpose(0, 2, 1)
    own = table[table["quantity"] == "moment"].sort_values(["replicate", "n", "layer", "entry"])
    moments = own["value"].to_numpy().reshape(len(tables), 2, study.depth, -1)
    return errors, np.asarray(moments)
