"""The result: errors by layer, how they grow, and what becomes of the end."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, TypeAlias, cast

from esscher.core.codec import Count
from esscher.core.errors import InputError
from esscher.runs.result import Result
from esscher.studies.deep.records import (
    Curve,
    DeepEnd,
    DeepLayer,
    Growth,
    LayerLimit,
    Means,
    Terciles,
)

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
                        {"quantity": name, "variant": variant, "n": n, "mean": found.mean[j],
                         "low": low, "high": high}
                    )  # fmt: skip
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
