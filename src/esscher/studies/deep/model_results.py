"""From the passages of a real model to errors by layer and what became of its end.

Keys are drawn without replacement, so that errors vanish at n = E. Exponents are fitted to errors
divided by the finite-population factor ``sqrt((E - n)/(E - 1))``, and to divergences (which are
quadratic in the error) divided by its square; the errors themselves are reported as they are.

Draws of one passage share its text, and are not independent. So every interval is over passages,
the draws of a passage averaged first. With one passage means have no interval, and those of growth
factors and exponents are over its draws: they cover the chance of the sample, not that of the text.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import pandas as pd
from msgspec.structs import asdict

from esscher.core.errors import InputError
from esscher.core.validation import Array
from esscher.math.statistics.records import FittedRate
from esscher.runs.folder import Cell, CellRun
from esscher.studies.deep.headlines import NOTHING, model_headline
from esscher.studies.deep.horizons import describe_terciles, split_terciles
from esscher.studies.deep.intervals import (
    fitted,
    growth_factors,
    independent_errors,
    means,
    ratios,
)
from esscher.studies.deep.measure import COLUMNS, DECODER_END, ENCODER_END, LAYER_METRICS
from esscher.studies.deep.records import (
    TERCILES,
    Damage,
    DeepCell,
    DeepEnd,
    DeepLayer,
    Means,
    Perplexity,
    Terciles,
)
from esscher.studies.deep.result import Deep
from esscher.studies.deep.study import DeepStudy

#: Smallest and largest value that a number of a model's end can have.
RANGES = {"kl": (0.0, np.inf), "top1": (0.0, 1.0), "cosine": (-1.0, 1.0)}


def assemble(study: DeepStudy, cells: Mapping[str, Cell], run: CellRun) -> Deep:
    """Return layers, overall growth, end and terciles; some passages may be missing."""
    passages = {name: cell for name, cell in cells.items() if name != "horizons"}
    measured = _Measured(passages, study, run)
    ways = [name for name in study.ways if name in measured.variants]
    growth = {
        way: [
            growth_factors(measured.independent(way, "residual")[:, :, j], study.seed)
            for j in range(len(study.sizes))
        ]
        for way in ways
    }
    depth = measured.values(ways[0], "residual").shape[1] if ways else 0
    layers = []
    for i in range(depth):
        errors: dict[str, Any] = {
            name: {way: means(measured.by_passage(way, quantity)[:, i], 0.0) for way in ways}
            for name, quantity in zip(("error", *LAYER_METRICS[1:]), LAYER_METRICS, strict=True)
        }
        layers.append(
            DeepLayer(
                layer=i,
                growth={way: tuple(found.steps[i] for found in growth[way]) for way in ways},
                fit={way: measured.fit(way, "residual", i) for way in ways},
                **errors,
            )
        )
    overall = {way: tuple(found.overall for found in growth[way]) for way in ways}
    end = _end(measured)
    terciles = _terciles(measured, study, cells["horizons"], run) if "horizons" in cells else None
    headline = NOTHING
    if layers:
        eligible, way = measured.eligible, ways[0]
        fits = [layer.fit[way] for layer in layers]
        headline = model_headline(study.sizes, way, eligible, overall[way], fits, end, terciles)
    return Deep.of(
        run,
        study,
        len(cells),
        headline,
        sizes=study.sizes,
        layers=tuple(layers),
        growth=overall,
        eligible=tuple(measured.eligible),
        end=end,
        terciles=terciles,
    )


def _end(measured: _Measured) -> DeepEnd:
    def of(name: str) -> dict[str, Means]:
        return {
            variant: means(measured.end_by_passage(variant, name), *RANGES[name])
            for variant in measured.variants
        }

    def damage(name: str) -> dict[str, Damage]:
        return {
            variant: Damage(**asdict(found), fit=measured.fit_end(variant, name))
            for variant, found in of(name).items()
        }

    if not measured.causal:
        return DeepEnd(cosine=damage("cosine"))
    perplexity = {}
    if measured.variants:
        dense = ratios(measured.dense_nll(measured.variants[0])[:, None])
        perplexity["dense"] = Perplexity(mean=dense.mean, interval=dense.interval)
    for variant in measured.variants:
        surprise = measured.end_by_passage(variant, "nll")
        own = ratios(surprise)
        ratio = ratios(surprise - measured.dense_nll(variant)[:, None])
        perplexity[variant] = Perplexity(
            mean=own.mean, interval=own.interval, ratio=ratio.mean, ratio_interval=ratio.interval
        )
    return DeepEnd(kl=damage("kl"), top1=of("top1"), perplexity=perplexity or None)


def _terciles(measured: _Measured, study: DeepStudy, cell: Cell, run: CellRun) -> Terciles:
    """What the terciles are, and how much more damage the highest does than the lowest."""
    shape = study.model_record
    rows = cell.about.horizons
    if rows is None or {len(row) for row in rows} != {shape.heads} or len(rows) != shape.layers:
        raise run.damaged("horizons", "it lacks the horizon of some heads of the model")
    assert study.terciles != "none"  # there would be no cell of horizons
    horizons = np.array(rows)
    ratio = None
    if all(name in measured.variants for name in TERCILES):
        low, high = (measured.damage(name) for name in ("low", "high"))
        if np.all(low > 0) and np.all(high > 0):
            ratio = ratios(np.log(high) - np.log(low))
    return Terciles(
        scope=study.terciles,
        keys=study.ways[0],
        heads=describe_terciles(horizons, split_terciles(horizons, study.terciles)),
        horizons=rows,
        error=_last_layer(measured, "residual"),
        common=_last_layer(measured, "common"),
        high_over_low=ratio,
    )


def _last_layer(measured: _Measured, quantity: str) -> dict[str, Means]:
    return {
        name: means(measured.by_passage(name, quantity)[:, -1], 0.0)
        for name in TERCILES
        if name in measured.variants
    }


@dataclass(frozen=True)
class _Passage:
    """What is known about a passage besides its errors."""

    eligible: int
    dense_nll: float


class _Measured:
    """The stored numbers of all passages, by variant and quantity."""

    def __init__(self, cells: Mapping[str, Cell], study: DeepStudy, run: CellRun) -> None:
        self._study = study
        self.causal = study.model_record.causal
        self._about: dict[int, _Passage] = {}
        tables = []
        for name, cell in cells.items():
            try:
                number, about = self._passage(cell.about)
                if name.split("-")[1] != str(number):
                    raise InputError(f"it is of passage {number}")
                tables.append(self._checked(cell.table).assign(passage=number))
            except (ValueError, LookupError, TypeError) as error:
                raise run.damaged(name, error) from error
            self._about[number] = about
        self._table = pd.concat(tables, ignore_index=True) if tables else pd.DataFrame()
        there = set(self._table["variant"]) if tables else set()
        self.variants = [name for name in study.variants if name in there]

    def _passage(self, about: DeepCell) -> tuple[int, _Passage]:
        nll = about.dense_nll if self.causal else 0.0
        if about.passage is None or about.eligible is None or nll is None:
            raise InputError("it lacks numbers of its passage")
        if about.eligible <= self._study.sizes[-1]:
            raise InputError(f"eligible is {about.eligible}, but sizes go beyond")
        return about.passage, _Passage(about.eligible, nll)

    def _checked(self, table: pd.DataFrame) -> pd.DataFrame:
        """The table, if every variant in it has all numbers of a passage."""
        own = table[COLUMNS]
        own["value"].astype(np.float64)
        study, layers = self._study, self._study.model_record.layers
        ends = DECODER_END if self.causal else ENCODER_END
        wanted = dict.fromkeys(LAYER_METRICS, layers) | dict.fromkeys(ends, 1)
        for variant in own["variant"].unique():
            rows = own[own["variant"] == variant]
            found = rows["quantity"].value_counts().to_dict()
            each = study.draws * len(study.sizes)
            if found != {name: count * each for name, count in wanted.items()}:
                raise InputError(f"it lacks numbers of {variant!r}")
        return own

    @property
    def eligible(self) -> list[int]:
        """Number E of keys that can be drawn, by passage."""
        return [self._about[p].eligible for p in sorted(self._about)]

    def values(self, variant: str, quantity: str) -> Array:
        """Axes [draw, layer, size]: the draws of all passages, which are not independent."""
        shape = (-1, len(self._study.sizes), self._layers(quantity))
        return self._ordered(variant, quantity).reshape(shape).transpose(0, 2, 1)

    def by_passage(self, variant: str, quantity: str) -> Array:
        """Axes [passage, layer, size], the mean over draws."""
        values = self.values(variant, quantity)
        return np.asarray(values.reshape(-1, self._study.draws, *values.shape[1:]).mean(axis=1))

    def independent(self, variant: str, quantity: str) -> Array:
        """Axes [replicate, layer, size]: passages, or the draws of a single one."""
        return independent_errors(self.values(variant, quantity), self._study.draws)

    def end_by_passage(self, variant: str, quantity: str) -> Array:
        """Axes [passage, size], the mean over draws."""
        return self.by_passage(variant, quantity)[:, 0]

    def damage(self, variant: str) -> Array:
        """KL divergence, or 1 - cosine, by passage and size."""
        if self.causal:
            return self.end_by_passage(variant, "kl")
        return 1.0 - self.end_by_passage(variant, "cosine")

    def dense_nll(self, variant: str) -> Array:
        """Mean surprise of the dense model by passage, of those that have the variant."""
        return np.array([self._about[p].dense_nll for p in self._passages(variant)])

    def fit(self, variant: str, quantity: str, layer: int) -> FittedRate | None:
        """Rate of a layer's error, corrected for the finite population."""
        factor = np.sqrt(self._factors(variant))
        return self._rate(self.independent(variant, quantity)[:, layer] / factor)

    def fit_end(self, variant: str, quantity: str) -> FittedRate | None:
        """Rate of the KL divergence or of 1 - cosine, corrected for the finite population."""
        values = self.independent(variant, quantity)[:, 0]
        damage = np.maximum(1.0 - values, 0.0) if quantity == "cosine" else values
        return self._rate(damage / self._factors(variant))

    def _rate(self, errors: Array) -> FittedRate | None:
        return fitted(errors, self._study.sizes, self._study.seed)

    def _factors(self, variant: str) -> Array:
        """``(E - n)/(E - 1)`` by passage (or draw of a single one) and size."""
        passages = self._passages(variant)
        total = np.array([self._about[p].eligible for p in passages], dtype=np.float64)[:, None]
        n = np.asarray(self._study.sizes, dtype=np.float64)[None, :]
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
