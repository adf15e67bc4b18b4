"""From the passages of a real model to errors by layer and what became of its end.

Keys are drawn without replacement, so that errors vanish at n = E. Exponents are fitted to errors
divided by the finite-population factor ``sqrt((E - n)/(E - 1))``, and to divergences (which are
quadratic in the error) divided by its square; the errors themselves are reported as they are.

Means have intervals over passages (draws of a passage averaged first). Growth factors and exponents
resample the passages' draws.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import pandas as pd

from esscher.core.validation import Array
from esscher.math.statistics.means import exponentials, mean_and_interval
from esscher.runs import Cell
from esscher.studies.deep.arguments import TERCILES, ModelRequest
from esscher.studies.deep.horizons import describe_terciles, split_terciles
from esscher.studies.deep.intervals import fitted, growth_factors
from esscher.studies.deep.measure import DECODER_END, ENCODER_END, LAYER_METRICS

#: Smallest and largest value that a number of a model's end can have.
RANGES = {"kl": (0.0, np.inf), "top1": (0.0, 1.0), "cosine": (-1.0, 1.0)}


def model_results(
    parts: list[Cell], horizons: Array | None, request: ModelRequest, causal: bool
) -> dict[str, Any]:
    """Layers, overall growth, end and terciles, as plain numbers, lists and strings.

    Parameters
    ----------
    parts
        Cells of passages; those of a variant may be missing for some passages.
    horizons
        Of every head, [layer, head]; None without terciles, or when they are not there yet.
    request
        What was asked for.
    causal
        Whether the model is a decoder.
    """
    measured = _Measured(parts, request)
    modes = [name for name in request.modes if name in measured.variants]
    growth = {
        mode: [
            growth_factors(measured.values(mode, "residual")[:, :, j], request.seed)
            for j in range(len(request.budgets))
        ]
        for mode in modes
    }
    depth = measured.values(modes[0], "residual").shape[1] if modes else 0
    layers: list[dict[str, Any]] = []
    for i in range(depth):
        errors = {
            name: {m: mean_and_interval(measured.by_passage(m, quantity)[:, i], 0.0) for m in modes}
            for name, quantity in zip(("error", *LAYER_METRICS[1:]), LAYER_METRICS, strict=True)
        }
        layers.append(
            {"layer": i}
            | errors
            | {
                "growth": {m: [found["steps"][i] for found in growth[m]] for m in modes},
                "fit": {m: measured.fit(m, "residual", i) for m in modes},
            }
        )
    out: dict[str, Any] = {
        "budgets": list(request.budgets),
        "eligible": measured.eligible,
        "layers": layers,
        "growth": {m: [found["overall"] for found in growth[m]] for m in modes},
        "end": _end(measured, causal),
        "terciles": None,
    }
    if horizons is not None:
        out["terciles"] = _terciles(measured, horizons, request, causal)
    return out


def _end(measured: _Measured, causal: bool) -> dict[str, Any]:
    out: dict[str, Any] = {}
    for name in DECODER_END[:2] if causal else ENCODER_END:
        out[name] = {
            variant: mean_and_interval(measured.end_by_passage(variant, name), *RANGES[name])
            for variant in measured.variants
        }
    for variant in measured.variants:
        quantity = "kl" if causal else "cosine"
        out[quantity][variant]["fit"] = measured.fit_end(variant, quantity)
    if causal and measured.variants:
        dense = measured.dense_nll()
        out["perplexity"] = {"dense": exponentials(dense[:, None])}
        for variant in measured.variants:
            surprise = measured.end_by_passage(variant, "nll")
            there = measured.dense_nll(variant)[:, None]
            ratio = exponentials(surprise - there)
            out["perplexity"][variant] = exponentials(surprise) | {
                "ratio": ratio["mean"],
                "ratio_interval": ratio["interval"],
            }
    return out


def _terciles(
    measured: _Measured, horizons: Array, request: ModelRequest, causal: bool
) -> dict[str, Any]:
    """What the terciles are, and how much more damage the highest does than the lowest.

    ``error`` is the relative error of the tokens behind the last block, ``common`` the share of it
    that is the same for all tokens.
    """
    heads = split_terciles(horizons, request.terciles)
    out: dict[str, Any] = {
        "scope": request.terciles,
        "mode": request.tercile_mode,
        "heads": describe_terciles(horizons, heads),
        "horizons": horizons.tolist(),
        "error": _last_layer(measured, "residual"),
        "common": _last_layer(measured, "common"),
        "high_over_low": None,
    }
    if all(name in measured.variants for name in TERCILES):
        low, high = (_damage(measured, name, causal) for name in ("low", "high"))
        if np.all(low > 0) and np.all(high > 0):
            out["high_over_low"] = exponentials(np.log(high) - np.log(low))
    return out


def _last_layer(measured: _Measured, quantity: str) -> dict[str, Any]:
    return {
        name: mean_and_interval(measured.by_passage(name, quantity)[:, -1], 0.0)
        for name in TERCILES
        if name in measured.variants
    }


def _damage(measured: _Measured, variant: str, causal: bool) -> Array:
    """KL divergence, or 1 - cosine, by passage and budget."""
    values = measured.end_by_passage(variant, "kl" if causal else "cosine")
    return values if causal else 1.0 - values


class _Measured:
    """The stored numbers of all passages, by variant and quantity."""

    def __init__(self, parts: list[Cell], request: ModelRequest) -> None:
        self._request = request
        self._about = {part.about["passage"]: part.about for part in parts}
        tables = [part.table.assign(passage=part.about["passage"]) for part in parts]
        self._table = pd.concat(tables, ignore_index=True) if tables else pd.DataFrame()
        there = set(self._table["variant"]) if tables else set()
        self.variants = [name for name in request.variants if name in there]

    @property
    def eligible(self) -> list[int]:
        """Number E of keys that can be drawn, by passage."""
        return [self._about[p]["eligible"] for p in sorted(self._about)]

    def values(self, variant: str, quantity: str) -> Array:
        """Axes [replicate, layer, budget]; replicates are the draws of all passages."""
        shape = (-1, len(self._request.budgets), self._layers(quantity))
        return self._ordered(variant, quantity).reshape(shape).transpose(0, 2, 1)

    def by_passage(self, variant: str, quantity: str) -> Array:
        """Axes [passage, layer, budget], the mean over draws."""
        values = self.values(variant, quantity)
        return np.asarray(values.reshape(-1, self._request.draws, *values.shape[1:]).mean(axis=1))

    def end_by_passage(self, variant: str, quantity: str) -> Array:
        """Axes [passage, budget], the mean over draws."""
        return self.by_passage(variant, quantity)[:, 0]

    def dense_nll(self, variant: str | None = None) -> Array:
        """Mean surprise of the dense model by passage, of those that have the variant."""
        passages = self._passages(self.variants[0] if variant is None else variant)
        return np.array([self._about[p]["dense_nll"] for p in passages])

    def fit(self, variant: str, quantity: str, layer: int) -> dict[str, Any] | None:
        """Rate of a layer's error, corrected for the finite population."""
        factor = np.sqrt(self._factors(variant))
        return self._rate(self.values(variant, quantity)[:, layer] / factor)

    def fit_end(self, variant: str, quantity: str) -> dict[str, Any] | None:
        """Rate of the KL divergence or of 1 - cosine, corrected for the finite population."""
        values = self.values(variant, quantity)[:, 0]
        damage = np.maximum(1.0 - values, 0.0) if quantity == "cosine" else values
        return self._rate(damage / self._factors(variant))

    def _rate(self, errors: Array) -> dict[str, Any] | None:
        return fitted(errors, list(self._request.budgets), self._request.seed)

    def _factors(self, variant: str) -> Array:
        """``(E - n)/(E - 1)`` of every replicate and budget."""
        passages = np.repeat(self._passages(variant), self._request.draws)
        total = np.array([self._about[p]["eligible"] for p in passages], dtype=np.float64)[:, None]
        n = np.asarray(self._request.budgets, dtype=np.float64)[None, :]
        return np.asarray((total - n) / (total - 1))

    def _passages(self, variant: str) -> list[int]:
        own = self._table[self._table["variant"] == variant]
        return sorted(int(p) for p in own["passage"].unique())

    def _layers(self, quantity: str) -> int:
        own = self._table[self._table["quantity"] == quantity]
        return int(own["layer"].nunique())

    def _ordered(self, variant: str, quantity: str) -> Array:
        table = self._table
        own = table[(table["variant"] == variant) & (table["quantity"] == quantity)]
        own = own.sort_values(["passage", "draw", "n", "layer"])
        return own["value"].to_numpy(dtype=np.float64)
