"""The heads of a layer together: errors in common, effective number of heads, exponents."""

from __future__ import annotations

from typing import Any

import numpy as np
import pandas as pd

from esscher.core.validation import Array
from esscher.engine.sampled.layer import METRICS, LayerMeasurement
from esscher.engine.sampled.outputs import PRODUCTS
from esscher.math.statistics import Rate, fit_rate
from esscher.studies.probe.manyheads import (
    FEWEST,
    amplification,
    effective_heads,
    effective_magnitudes,
    error_correlation,
    magnitude_correlation,
)


def heads_together(
    measured: LayerMeasurement, heads: list[dict[str, Any]], layer: dict[str, Rate], seed: int
) -> dict[str, Any] | None:
    """What the heads of a layer have in common; None for a single head, or too few replicates.

    Parameters
    ----------
    measured
        Errors of the layer, with products.
    heads
        Results of its heads, with their fits.
    layer
        Rates of the heads side by side.
    seed
        Of resampling.
    """
    if measured.products is None or len(measured.heads) < 2:
        return None
    if measured.products.shape[1] < FEWEST:
        return None
    sizes = np.asarray(measured.sizes, dtype=np.float64)
    by_error = {}
    for kind, name in enumerate(PRODUCTS):
        products = measured.products[kind]
        # rounding can make the norm of a vanishing sum negative
        projected = np.sqrt(np.maximum(products.sum(axis=(2, 3)), 0.0))
        rate = fit_rate(projected, sizes, seed=seed)
        by_error[name] = _one_error(products, sizes, seed) | {
            "fit_projected": rate.to_dict(),
            "exponents": _exponents(heads, layer[name].to_dict(), rate.to_dict(), name),
        }
    norms = measured.errors[METRICS.index("mean"), :-1, :, -1].T
    return by_error["mean"] | {
        "heads": list(measured.heads),
        "map": by_error["map"],
        "magnitudes": {
            "correlation": magnitude_correlation(norms).tolist(),
            "effective_heads": effective_magnitudes(norms, seed),
        },
    }


def _one_error(products: Array, sizes: Array, seed: int) -> dict[str, Any]:
    """Numbers at the largest size, and the two short ones at every size."""
    every = [
        {
            "n": int(n),
            "effective_heads": effective_heads(products[:, j], seed),
            "amplification": amplification(products[:, j], seed),
        }
        for j, n in enumerate(sizes)
    ]
    return {
        "correlation": error_correlation(products[:, -1]).tolist(),
        "effective_heads": every[-1]["effective_heads"],
        "amplification": every[-1]["amplification"],
        "by_size": every,
    }


def _exponents(
    heads: list[dict[str, Any]], layer: dict[str, Any], projected: dict[str, Any], metric: str
) -> dict[str, Any]:
    """Exponents of the layer beside those of its heads."""
    each = np.array([head["fit"][metric]["exponent"] for head in heads])
    worst = int(np.argmin(each))
    return {
        "heads_mean": float(each.mean()),
        "heads_worst": float(each[worst]),
        "worst_head": heads[worst]["head"],
        "side_by_side": layer["exponent"],
        "side_by_side_interval": layer["interval"],
        "projected": projected["exponent"],
        "projected_interval": projected["interval"],
    }


def layers_frame(layers: list[dict[str, Any]]) -> pd.DataFrame:
    """One row per layer with more than one head; columns of single queries end in ``_map``."""
    rows = []
    for layer in layers:
        found = layer["heads_together"]
        if found is None:
            continue
        row: dict[str, Any] = {"layer": layer["layer"], "heads": len(found["heads"])}
        for part, suffix in ((found, ""), (found["map"], "_map")):
            for name in ("effective_heads", "amplification"):
                row |= _columns(f"{name}{suffix}", part[name]["value"], part[name]["interval"])
            exponents = part["exponents"]
            for name in ("heads_mean", "heads_worst", "worst_head"):
                row[f"{name}{suffix}"] = exponents[name]
            for name in ("side_by_side", "projected"):
                row |= _columns(f"{name}{suffix}", exponents[name], exponents[f"{name}_interval"])
        common = np.asarray(found["magnitudes"]["correlation"])
        others = common[~np.eye(len(common), dtype=bool)]
        row |= {
            "magnitude_correlation": float(others.mean()),
        }
        number = found["magnitudes"]["effective_heads"]
        row |= _columns("effective_magnitudes", number["value"], number["interval"])
        rows.append(row)
    return pd.DataFrame(rows)


def _columns(name: str, value: float, interval: list[float] | None) -> dict[str, Any]:
    low, high = interval or (None, None)
    return {name: value, f"{name}_low": low, f"{name}_high": high}
