"""From the replicates of a Gaussian stack to errors, growth and exponents by layer."""

from __future__ import annotations

from typing import Any

import numpy as np
import pandas as pd

from esscher.core.validation import Array
from esscher.math.heads import WeightHead
from esscher.math.limits import GaussianStack, StackLimit
from esscher.math.statistics.means import mean_and_interval
from esscher.math.theory import exponents
from esscher.runs import Cell
from esscher.studies.deep.arguments import StackRequest
from esscher.studies.deep.extrapolation import compare_with_recursion, doubts
from esscher.studies.deep.intervals import fitted, growth_factors
from esscher.studies.deep.simulate import METRICS, RESOLUTION

#: Fields of the asymptotic exponents that belong to the metrics.
_SHARP = {"map": "map_rms", "mean": "mean", "cov": "cov"}


def stack_results(
    parts: list[Cell], request: StackRequest, stack: GaussianStack, limit: StackLimit
) -> dict[str, Any]:
    """Layers, overall growth and the measured limit, as plain numbers, lists and strings."""
    if not parts:
        return {"layers": [], "growth": {}, "limit": [], "sizes": list(request.sizes)}
    errors, moments = _arrays(parts, request)
    asymptotic = exponents(request.horizon)
    pair = (request.sizes[-2], request.sizes[-1])
    doubt = doubts(stack, pair[0], errors["map"][:, :, -2].mean(axis=0).tolist())
    burn_in = np.exp(np.maximum.accumulate([h.frobenius**2 + h.tau @ h.tau for h in _heads(stack)]))
    growth = {
        metric: [
            growth_factors(errors[metric][:, :, j], request.seed) for j in range(len(request.sizes))
        ]
        for metric in METRICS
    }
    layers = []
    for i in range(request.depth):
        layers.append(
            {
                "layer": i,
                "horizon": float(limit.horizons[i][0]),
                "error": {m: mean_and_interval(errors[m][:, i], 0.0) for m in METRICS},
                "growth": {m: [found["steps"][i] for found in growth[m]] for m in METRICS},
                "fit": {
                    m: fitted(
                        errors[m][:, i], list(request.sizes), request.seed,
                        sharp=getattr(asymptotic, _SHARP[m]), resolution=RESOLUTION,
                        burn_in=float(burn_in[i]),
                    )
                    for m in METRICS
                },
            }
        )  # fmt: skip
    return {
        "sizes": list(request.sizes),
        "layers": layers,
        "growth": {m: [found["overall"] for found in growth[m]] for m in METRICS},
        "limit": compare_with_recursion(moments, pair, limit, doubt),
    }


def _heads(stack: GaussianStack) -> list[WeightHead]:
    """The one head of every layer, over the law that reaches it."""
    return [layer.heads[0] for layer in stack.layers]


def _arrays(parts: list[Cell], request: StackRequest) -> tuple[dict[str, Array], Array]:
    """Errors by metric, [replicate, layer, size], and moments, [replicate, size, layer, entry]."""
    table = pd.concat(
        [part.table.assign(replicate=i) for i, part in enumerate(parts)], ignore_index=True
    )
    shape = (len(parts), len(request.sizes), request.depth)
    errors = {}
    for metric in METRICS:
        own = table[table["quantity"] == metric].sort_values(["replicate", "n", "layer"])
        errors[metric] = own["value"].to_numpy().reshape(shape).transpose(0, 2, 1)
    own = table[table["quantity"] == "moment"].sort_values(["replicate", "n", "layer", "entry"])
    moments = own["value"].to_numpy().reshape(len(parts), 2, request.depth, -1)
    return errors, np.asarray(moments)
