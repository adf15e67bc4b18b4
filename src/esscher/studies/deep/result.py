"""The result: errors by layer, how they grow, and the model's end, as they are stored and read."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Literal, TypeAlias

from esscher.core.codec import Count, Estimate, Index, Name, Record
from esscher.core.errors import InputError
from esscher.math.statistics import Rate
from esscher.math.statistics.intervals import Means
from esscher.runs.old_result import Result

if TYPE_CHECKING:
    import pandas as pd

    from esscher.studies.deep.study import DeepStackStudy, DeepStudy

    AnyDeep: TypeAlias = DeepStudy | DeepStackStudy

#: Names of the terciles, by increasing horizon.
TERCILES = ("low", "middle", "high")
#: Curves of a layer: errors of a Gaussian stack, and ways in which a model's keys are drawn.
STACK_CURVES, WAYS = ("map", "mean", "cov"), ("independent", "shared")


class DeepCell(Record, frozen=True, kw_only=True, omit_defaults=True):
    """A cell: a passage and a way of sampling, the horizons of all heads, or a stack's replicate.

    Attributes
    ----------
    number
        Of the passage or the replicate.
    eligible
        How many keys of the passage can be drawn.
    dense_nll
        In a decoder: mean surprise of the dense model.
    horizons
        Of every head, [layer][head]; the other fields are missing then.
    """

    number: Index | None = None
    eligible: Count | None = None
    dense_nll: float | None = None
    horizons: tuple[tuple[float, ...], ...] | None = None


class DeepLayer(Record, frozen=True, kw_only=True, omit_defaults=True):
    """Errors behind a layer, by curve: a metric of a stack, a way of sampling a model's keys.

    Attributes
    ----------
    error, growth, fit
        Relative error of the tokens by size, its ratio to that of the layer before, and its rate.
    horizon
        Of a stack: that of the layer.
    """

    layer: Index
    error: dict[str, Means]
    growth: dict[str, tuple[Estimate | None, ...]]
    fit: dict[str, Rate | None]
    horizon: float | None = None


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


class TercileHeads(Record, frozen=True, kw_only=True):
    """How many heads a tercile has, and their horizons."""

    heads: Count
    horizon_min: float | None
    horizon_median: float | None
    horizon_max: float | None


class Terciles(Record, frozen=True, kw_only=True):
    """Thirds of the heads, by horizon, sampled one at a time.

    Attributes
    ----------
    scope, keys
        What they are thirds of, and how their keys are drawn.
    heads, horizons
        The terciles, and the horizon of every head, [layer][head].
    high_over_low
        How much more damage the highest does than the lowest, by size.
    """

    scope: Literal["model", "layer"]
    keys: Name
    heads: dict[str, TercileHeads]
    horizons: tuple[tuple[float, ...], ...]
    high_over_low: Means | None


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
    end
        Of a model, by quantity and by what was sampled (a way, or a tercile). Decoders: ``kl`` to
        the dense next-token distribution, ``top1`` (share of tokens with the same most likely
        one), ``perplexity`` (``"dense"`` too) and ``ratio`` of it to the dense one. Encoders:
        ``cosine`` between embeddings.
    damage
        Rates of the KL, or of 1 - cosine, by what was sampled.
    terciles
        Of a model: thirds of the heads sampled on their own.
    """

    sizes: tuple[Count, ...]
    layers: tuple[DeepLayer, ...] = ()
    growth: dict[str, tuple[Estimate | None, ...]] = field(default_factory=dict)
    limit: tuple[LayerLimit, ...] = ()
    eligible: tuple[Count, ...] = ()
    end: dict[str, dict[str, Means]] = field(default_factory=dict)
    damage: dict[str, Rate | None] = field(default_factory=dict)
    terciles: Terciles | None = None

    def __post_init__(self) -> None:
        """Refuse parts that do not belong together: tables and figures go from one to another."""
        if not self.layers:
            return
        curves = self.layers[0].error.keys()
        parts: list[Any] = [self.growth]
        for layer in self.layers:
            parts += [layer.error, layer.growth, layer.fit]
        known = {*STACK_CURVES} if self.is_gaussian else {*WAYS}
        complete = curves == known if self.is_gaussian else bool(curves) and curves <= known
        if not complete or any(part.keys() != curves for part in parts):
            raise InputError("its layers do not have the same curves")
        lengths = [*map(len, self.growth.values())]
        means = [error for layer in self.layers for error in layer.error.values()]
        for layer in self.layers:
            lengths += map(len, layer.growth.values())
        if self.is_gaussian:
            if len(self.limit) != len(self.layers):
                raise InputError("it lacks the limit of some layers")
            for limit in self.limit:
                noise = limit.measured if limit.standard_error is None else limit.standard_error
                same = len(limit.measured) == len(limit.exact) == len(noise)
                if not same or (limit.largest is None) != (limit.bound is None):
                    raise InputError("its limits do not have the same entries")
        else:
            variants = self.damage.keys()
            end = {"kl", "top1", "perplexity", "ratio"} if "kl" in self.end else {"cosine"}
            if self.end.keys() != end or not curves <= variants <= {*WAYS, *TERCILES}:
                raise InputError("its end is not of what was sampled")
            for name, by_variant in self.end.items():
                dense = by_variant.get("dense") if name == "perplexity" else None
                fits = dense is None or len(dense.mean) == len(dense.interval) == 1
                if not fits or by_variant.keys() - {"dense"} != variants:
                    raise InputError("its end is not of what was sampled")
                means += [curve for curve in by_variant.values() if curve is not dense]
            if self.terciles is not None:
                ratio = self.terciles.high_over_low
                means += [] if ratio is None else [ratio]
                if not variants - curves <= self.terciles.heads.keys():
                    raise InputError("its terciles are not those that were sampled")
        for curve in means:
            lengths += map(len, (curve.mean, curve.standard_error, curve.interval))
        if {*lengths} != {len(self.sizes)}:
            raise InputError("its curves do not have one number per size")

    @property
    def is_gaussian(self) -> bool:
        """Whether it is a Gaussian stack, not a model."""
        return self.study.name == "deep-stack"

    def table(self) -> pd.DataFrame:
        """Return a data frame, one row per layer, curve and n.

        ``growth`` is the ratio to the error of the layer before.
        """
        import pandas as pd

        rows = []
        for layer in self.layers:
            for curve, error in layer.error.items():
                fit = layer.fit[curve]
                low, high = (None, None) if fit is None else fit.interval
                for j, n in enumerate(self.sizes):
                    step = layer.growth[curve][j]
                    ends = error.interval[j] or (None, None)
                    rows.append(
                        {
                            "layer": layer.layer,
                            "curve": curve,
                            "n": n,
                            "error": error.mean[j],
                            "standard_error": error.standard_error[j],
                            "error_low": ends[0],
                            "error_high": ends[1],
                            "growth": None if step is None else step.value,
                            "growth_low": None if step is None else step.interval[0],
                            "growth_high": None if step is None else step.interval[1],
                            "exponent": None if fit is None else fit.exponent,
                            "exponent_low": low,
                            "exponent_high": high,
                            "trusted": None if fit is None else fit.trusted,
                        }
                    )
        return pd.DataFrame(rows)

    def end_table(self) -> pd.DataFrame:
        """Return a data frame of a model's end, one row per variant and n; empty for a stack."""
        import pandas as pd

        rows = []
        for quantity, by_variant in self.end.items():
            for variant, curve in by_variant.items():
                for j, mean in enumerate(curve.mean):
                    low, high = curve.interval[j] or (None, None)
                    n = None if variant == "dense" else self.sizes[j]
                    rows.append((quantity, variant, n, mean, low, high))
        columns = ["quantity", "variant", "n", "mean", "low", "high"]
        return pd.DataFrame(rows, columns=columns)

    def limit_table(self) -> pd.DataFrame:
        """Return the measured limit against the recursion, by layer; empty for a model."""
        import pandas as pd

        kept = ("layer", "entries", "largest", "bound", "rms", "resolution", "agrees", "doubt")
        return pd.DataFrame([{name: getattr(layer, name) for name in kept} for layer in self.limit])

    def shown(self) -> list[pd.DataFrame]:
        """Return errors at the largest n (exponents belong to all), and the limit or the end."""
        table = self.table()
        largest = table if table.empty else table[table["n"] == self.sizes[-1]]
        return [largest, self.limit_table() if self.is_gaussian else self.end_table()]
