"""Numbers of deep stacks, as they are stored and read."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Literal, TypeAlias

import numpy as np

from esscher.core.codec import Count, Index, Interval, Name, Record
from esscher.math.statistics.records import Ends, FittedRate

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

    fit: FittedRate | None


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
        Of a model: see :data:`esscher.studies.deep.measure.LAYER_METRICS`.
    """

    layer: Index
    error: dict[str, Means]
    growth: dict[str, tuple[Growth | None, ...]]
    fit: dict[str, FittedRate | None]
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
