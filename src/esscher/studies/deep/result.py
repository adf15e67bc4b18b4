"""Numbers of deep stacks, as they are stored and read."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Literal, TypeAlias, cast

import numpy as np

from esscher.core.codec import Count, Index, Interval, Name, Record
from esscher.core.errors import InputError
from esscher.math.statistics import Rate
from esscher.math.statistics.records import Ends
from esscher.runs.result import Result

#: Names of the terciles, by increasing horizon.
TERCILES = ("low", "middle", "high")
#: What terciles are taken over: all heads of the model, or those of each layer.
Scope: TypeAlias = Literal["model", "layer"]


class StackCell(Record, frozen=True, kw_only=True):
    """A cell of a Gaussian stack: a replicate."""

    replicate: Count


class DeepCell(Record, frozen=True, kw_only=True, omit_defaults=True):
    """A cell of a model: a passage and a way of sampling, or the horizons of all heads.

    Attributes
    ----------
    passage, eligible, queries
        Its number, and how many keys can be drawn and tokens ask.
    residual_norm
        Median norm of the tokens behind every block.
    positions, dense_nll
        In a decoder: tokens that are predicted, and their mean surprise.
    horizons
        Of every head, [layer][head]; the other fields are missing then.
    """

    passage: Index | None = None
    eligible: Count | None = None
    queries: Count | None = None
    residual_norm: tuple[float, ...] | None = None
    positions: Count | None = None
    dense_nll: float | None = None
    horizons: tuple[tuple[float, ...], ...] | None = None


class Curve(Record, frozen=True, kw_only=True):
    """Means by size, and their intervals where there are replicates."""

    mean: tuple[float, ...]
    interval: tuple[Interval | None, ...]


class Means(Curve, frozen=True, kw_only=True):
    """Means by size with standard errors."""

    standard_error: tuple[float | None, ...]


class Damage(Means, frozen=True, kw_only=True):
    """A divergence, and the rate at which it falls."""

    fit: Rate | None


class Perplexity(Curve, frozen=True, kw_only=True, omit_defaults=True):
    """Perplexity, and its ratio to the dense one."""

    ratio: tuple[float, ...] | None = None
    ratio_interval: tuple[Interval | None, ...] | None = None


class Growth(Record, frozen=True, kw_only=True):
    """Factor by which an error grows."""

    factor: float
    interval: Ends


class DeepLayer(Record, frozen=True, kw_only=True, omit_defaults=True):
    """Errors behind a layer, by curve: a metric of a stack, a way of sampling a model's keys.

    Attributes
    ----------
    error, growth, fit
        Relative error of the tokens, its ratio to that of the layer before, and its rate.
    horizon
        Of a stack: that of the layer.
    typical, common, attention, fresh
        Of a model: see :data:`esscher.studies.deep.sampling.LAYER_METRICS`.
    """

    layer: Index
    error: dict[str, Means]
    growth: dict[str, tuple[Growth | None, ...]]
    fit: dict[str, Rate | None]
    horizon: float | None = None
    typical: dict[str, Means] | None = None
    common: dict[str, Means] | None = None
    attention: dict[str, Means] | None = None
    fresh: dict[str, Means] | None = None


class LayerLimit(Record, frozen=True, kw_only=True):
    """The measured limit of a layer against the recursion.

    Attributes
    ----------
    entries
        How many numbers are compared.
    measured, standard_error, exact
        Entry by entry.
    largest, bound
        The largest deviation in standard errors, and what the largest of so many stays below with
        probability 0.95 if the recursion is right (Student, Bonferroni).
    agrees, doubt
        The verdict; None if there is none, and why.
    rms
        Root mean square of the deviations, 1 for pure noise.
    resolution
        Median standard error relative to the mean variance of a coordinate: what could be seen.
    """

    layer: Index
    entries: Count
    measured: tuple[float, ...]
    exact: tuple[float, ...]
    standard_error: tuple[float, ...] | None = None
    largest: float | None = None
    rms: float | None = None
    resolution: float | None = None
    bound: float | None = None
    agrees: bool | None = None
    doubt: str | None = None

    @property
    def deviations(self) -> list[float]:
        """Measured minus exact, in standard errors; none if these are not known."""
        if self.standard_error is None:
            return []
        with np.errstate(divide="ignore", invalid="ignore"):
            found = np.subtract(self.measured, self.exact) / np.array(self.standard_error)
        return list(found.tolist())


class DeepEnd(Record, frozen=True, kw_only=True, omit_defaults=True):
    """The end of a model against the dense one, by what was sampled.

    Attributes
    ----------
    kl, top1, perplexity
        Of a decoder: divergence of the next-token law, share of tokens with the same most likely
        one, and perplexity (``"dense"`` too).
    cosine
        Of an encoder: between embeddings.
    """

    kl: dict[str, Damage] | None = None
    top1: dict[str, Means] | None = None
    cosine: dict[str, Damage] | None = None
    perplexity: dict[str, Perplexity] | None = None

    @property
    def quantities(self) -> dict[str, Mapping[str, Curve]]:
        """Those that were measured, by name."""
        found: dict[str, Mapping[str, Curve] | None] = {
            "kl": self.kl,
            "top1": self.top1,
            "cosine": self.cosine,
            "perplexity": self.perplexity,
        }
        return {name: curves for name, curves in found.items() if curves}

    @property
    def damage(self) -> dict[str, Damage]:
        """What falls as more keys are drawn (KL), or rises to 1 (cosine), by what was sampled."""
        return self.kl or self.cosine or {}


class TercileHeads(Record, frozen=True, kw_only=True):
    """How many heads a tercile has, their horizons, and how deep they lie on average."""

    heads: Count
    horizon_min: float | None
    horizon_median: float | None
    horizon_max: float | None
    mean_layer: float | None


class Terciles(Record, frozen=True, kw_only=True):
    """Thirds of the heads, by horizon, sampled one at a time.

    Attributes
    ----------
    scope, keys
        What they are thirds of, and how their keys are drawn.
    heads, horizons
        The terciles, and the horizon of every head, [layer][head].
    error, common
        Relative error of the tokens behind the last block, and the share of it that is the same
        for all tokens.
    high_over_low
        How much more damage the highest does than the lowest.
    """

    scope: Scope
    keys: Name
    heads: dict[str, TercileHeads]
    horizons: tuple[tuple[float, ...], ...]
    error: dict[str, Means]
    common: dict[str, Means]
    high_over_low: Curve | None


# The result: errors by layer, how they grow, and what becomes of the end.

if TYPE_CHECKING:
    import pandas as pd

    from esscher.studies.deep.study import DeepStackStudy, DeepStudy

    AnyDeep: TypeAlias = DeepStudy | DeepStackStudy

#: Numbers of a layer of a model besides its error.
MODEL_ERRORS = ("typical", "common", "attention", "fresh")


@dataclass(frozen=True, eq=False, repr=False, kw_only=True)
class Deep(Result["AnyDeep"]):
    """Errors of a stack by layer, how they grow, and what becomes of its end.

    Attributes
    ----------
    sizes
        Numbers n of tokens (Gaussian stack) or of keys that are drawn (models).
    layers
        One entry per layer. Curves are the metrics of a Gaussian stack (map, mean, cov), or the
        ways in which a model's keys are drawn.
    growth
        By curve and size: factor per layer, geometric mean over all of them.
    limit
        Of a stack: the measured limit against the recursion, by layer.
    eligible
        Of a model: keys that can be drawn, by passage.
    end, terciles
        Of a model: what becomes of its end, and thirds of the heads sampled on their own.
    """

    sizes: tuple[Count, ...]
    layers: tuple[DeepLayer, ...] = ()
    growth: dict[str, tuple[Growth | None, ...]] = field(default_factory=dict)
    limit: tuple[LayerLimit, ...] = ()
    eligible: tuple[Count, ...] = ()
    end: DeepEnd = field(default_factory=DeepEnd)
    terciles: Terciles | None = None

    def __post_init__(self) -> None:
        """Refuse parts that do not belong together: tables and figures go from one to another."""
        if not self.layers:
            return
        curves, study = self.layers[0].error.keys(), cast("Any", self.study)
        names = ("map", "mean", "cov") if self.is_gaussian else study.ways
        if not curves or not curves <= set(names) or self.growth.keys() != curves:
            raise InputError("its curves are not those that were asked for")
        for layer in self.layers:
            more = () if self.is_gaussian else tuple(getattr(layer, n) for n in MODEL_ERRORS)
            if any(x is None or x.keys() != curves for x in (layer.growth, layer.fit, *more)):
                raise InputError("its layers do not have the same curves")
            if layer.error.keys() != curves:
                raise InputError("its layers do not have the same curves")
        if self.is_gaussian:
            self._check_limit()
        else:
            self._check_end(study.variants)
        if any(count != len(self.sizes) for count in self._lengths()):
            raise InputError("its curves do not have one number per size")

    def _check_limit(self) -> None:
        if len(self.limit) != len(self.layers):
            raise InputError("it lacks the limit of some layers")
        for limit in self.limit:
            known = limit.standard_error
            lists = [limit.measured, limit.exact, *([] if known is None else [known])]
            bounded = limit.largest is None or limit.bound is not None
            if len({len(numbers) for numbers in lists}) != 1 or not bounded:
                raise InputError("its limits do not have the same entries")

    def _check_end(self, sampled: tuple[str, ...]) -> None:
        variants = self.end.damage.keys()
        end = self.end
        if not variants or not self.growth.keys() <= variants <= set(sampled):
            raise InputError("its end is not of what was sampled")
        if end.kl and (end.top1 is None or end.perplexity is None or end.cosine):
            raise InputError("its end is neither a decoder's nor an encoder's")
        perplexity = {} if end.perplexity is None else end.perplexity
        if end.kl and perplexity.keys() != variants | {"dense"}:
            raise InputError("its end is not of what was sampled")
        if end.top1 is not None and end.top1.keys() != variants:
            raise InputError("its end is not of what was sampled")
        if any((p.ratio is None) != (name == "dense") for name, p in perplexity.items()):
            raise InputError("its perplexities have no ratio to the dense one")
        third = self.terciles
        thirds = variants - self.growth.keys()
        if third is not None and (
            not thirds <= third.heads.keys()
            or third.error.keys() != thirds
            or third.common.keys() != thirds
        ):
            raise InputError("its terciles are not those that were sampled")

    def _lengths(self) -> Iterator[int]:
        """Of everything that has one number per size."""
        yield from map(len, self.growth.values())
        found: list[Curve] = []
        for layer in self.layers:
            yield from map(len, layer.growth.values())
            parts = [layer.error, layer.typical, layer.common, layer.attention, layer.fresh]
            found += [curve for part in parts for curve in (part or {}).values()]
        for curves in self.end.quantities.values():
            found += [curve for name, curve in curves.items() if name != "dense"]
        for name, perplexity in (self.end.perplexity or {}).items():
            if name == "dense":
                yield (
                    len(self.sizes) if len(perplexity.mean) == len(perplexity.interval) == 1 else 0
                )
            else:
                yield len(perplexity.ratio or ())
                yield len(perplexity.ratio_interval or ())
        if self.terciles is not None:
            third = self.terciles
            found += [*third.error.values(), *third.common.values()]
            found += [third.high_over_low] if third.high_over_low is not None else []
        for curve in found:
            yield len(curve.mean)
            yield len(curve.interval)
            if isinstance(curve, Means):
                yield len(curve.standard_error)

    @property
    def is_gaussian(self) -> bool:
        """Whether it is a Gaussian stack, not a model."""
        return self.study.name == "deep-stack"

    def table(self) -> pd.DataFrame:
        """Return a data frame, one row per layer, curve and n.

        ``growth`` is the ratio to the error of the layer before.
        """
        import pandas as pd

        return pd.DataFrame(
            [row for layer in self.layers for row in _layer_rows(layer, self.sizes)]
        )

    def end_table(self) -> pd.DataFrame:
        """Return a data frame of a model's end, one row per variant and n; empty for a stack."""
        import pandas as pd

        rows = []
        for name, curves in self.end.quantities.items():
            for variant, found in curves.items():
                for j, n in enumerate(self.sizes if variant != "dense" else [None]):
                    low, high = found.interval[j] or (None, None)
                    rows.append(
                        {
                            "quantity": name,
                            "variant": variant,
                            "n": n,
                            "mean": found.mean[j],
                            "low": low,
                            "high": high,
                        }
                    )
        return pd.DataFrame(rows)

    def limit_table(self) -> pd.DataFrame:
        """Return the measured limit against the recursion, by layer; empty for a model."""
        import pandas as pd

        kept = ("layer", "entries", "largest", "bound", "rms", "resolution", "agrees", "doubt")
        return pd.DataFrame([{name: getattr(found, name) for name in kept} for found in self.limit])

    def shown(self) -> list[pd.DataFrame]:
        """Return errors at the largest n (exponents belong to all), and the limit or the end."""
        table = self.table()
        largest = table if table.empty else table[table["n"] == self.sizes[-1]]
        return [largest, self.limit_table() if self.is_gaussian else self.end_table()]


def _layer_rows(layer: DeepLayer, sizes: tuple[int, ...]) -> list[dict[str, Any]]:
    rows = []
    for curve, error in layer.error.items():
        fit = layer.fit[curve]
        low, high = (None, None) if fit is None else fit.interval
        for j, n in enumerate(sizes):
            step = layer.growth[curve][j]
            ends = error.interval[j] or (None, None)
            row = {
                "layer": layer.layer,
                "curve": curve,
                "n": n,
                "error": error.mean[j],
                "standard_error": error.standard_error[j],
                "error_low": ends[0],
                "error_high": ends[1],
                "growth": None if step is None else step.factor,
                "growth_low": None if step is None else step.interval[0],
                "growth_high": None if step is None else step.interval[1],
                "exponent": None if fit is None else fit.exponent,
                "exponent_low": low,
                "exponent_high": high,
                "trusted": None if fit is None else fit.trusted,
            }
            for name in MODEL_ERRORS:
                by_curve: dict[str, Means] | None = getattr(layer, name)
                if by_curve is not None:
                    row[name] = by_curve[curve].mean[j]
            rows.append(row)
    return rows
