"""Numbers of heads and layers, as cells and results hold them.

In context mode a cell is a passage, and the result has the mean of each number over the passages.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Generic, TypeAlias, TypeVar

import numpy as np

from esscher.core.codec import Amount, Count, Estimate, Index, Interval, Name, Record
from esscher.core.streams import random_stream
from esscher.core.validation import Array
from esscher.engine.sampled.sizes import METRICS, ReferenceUsed
from esscher.math.statistics import Rate, TailIndex
from esscher.math.statistics.records import ByMetric, Ends
from esscher.math.tails.candidates import Cloud
from esscher.runs.result import Result, WithHeads

if TYPE_CHECKING:
    import pandas as pd
    import xarray

    from esscher.studies.probe.study import ProbeStudy  # noqa: F401 - below, in a string


T = TypeVar("T")

#: Standard errors to each side of a 95% interval.
NORMAL = 1.96
#: Output error from which a head is one to leave alone: sampling it is no estimate.
LARGE = 0.5
#: A number for each pair of heads.
Matrix: TypeAlias = tuple[tuple[float, ...], ...]


class ByTolerance(
    Record,
    Generic[T],
    frozen=True,
    kw_only=True,
    rename={"percent_5": "0.05", "percent_10": "0.1", "percent_20": "0.2"},
):
    """The same for a relative output error of 5%, 10% and 20%."""

    percent_5: T
    percent_10: T
    percent_20: T


class Psi(
    Record,
    frozen=True,
    kw_only=True,
    rename={"two_sided": "two-sided", "one_sided": "one-sided"},
):
    """The constant of the published bound, in both conventions.

    Attributes
    ----------
    two_sided
        ``H^2``, from the covariances of queries and keys: the published version of the paper.
    one_sided
        ``||Sigma||_2 ||Sigma^{1/2} A||_2^2``, from that of tokens alone: its first version. None
        where it is not known.
    """

    two_sided: float
    one_sided: float | None


class Quantiles(Record, frozen=True, kw_only=True):
    """Quantiles over queries."""

    p10: float
    median: float
    p90: float


class Sink(Record, frozen=True, kw_only=True):
    """A token that is a sink, and the share of the attention that it receives."""

    token: str
    share: float


class Sinks(Record, frozen=True, kw_only=True):
    """How many sinks there are, their share of the attention, and the largest of them."""

    count: Amount
    share: float
    tokens: tuple[Sink, ...]


class PredictedError(Record, frozen=True, kw_only=True):
    """The error that one pass predicts at each size, and its exponent on them.

    Standard errors are of what is sampled: queries, tokens, pairs of coordinates. A single size has
    no exponent.
    """

    error: tuple[float, ...]
    standard_error: tuple[float, ...]
    exponent: float | None
    exponent_error: float | None


class AtContext(Record, frozen=True, kw_only=True):
    """Relative output error at the model's own context length.

    Attributes
    ----------
    n
        That many tokens.
    error, interval
        Root mean square over queries, over the norm of the outputs, with its 95% interval.
    extrapolated
        Whether the cloud had fewer tokens.
    """

    n: Amount
    error: float
    interval: Interval
    extrapolated: bool


class PredictedExponents(Record, frozen=True, kw_only=True):
    """Exponents that one pass predicts.

    Attributes
    ----------
    khat
        From the tail of received attention, of the mean error.
    sharp
        Asymptotic, for Gaussian tokens of the same horizon: conjectured.
    paper_reference, paper_bound
        The published ones, ``1/(2(1 + Psi))`` and ``1/(2(1 + 32 Psi))``, of the two-sided Psi.
    paper_reference_one_sided, paper_bound_one_sided
        The same of the one-sided Psi; None where that is not known, and in older runs.
    """

    khat: float
    sharp: ByMetric[float]
    paper_reference: float
    paper_bound: float
    paper_reference_one_sided: float | None = None
    paper_bound_one_sided: float | None = None


class HeadStatistics(Record, frozen=True, kw_only=True):
    """What one pass says about a head.

    Attributes
    ----------
    horizon, frobenius, tau, spectrum
        H and F of ``M = S_k^{1/2} S_q^{1/2}``, the norm of the mean tilt, and the largest singular
        values of M.
    psi
        Constant of the published bound.
    log_burn_in, frozen_share
        ``F^2 + tau^2``, and the share of queries past freezing at the largest size.
    khat
        Tail of received attention.
    ess
        Effective number of tokens that a query attends, ``1 / sum_j p_j^2``.
    sinks, delimiter_share
        Attention that goes to sinks, and to delimiters.
    tails
        Tails of the keys; None where there are too few to judge.
    norm
        Root mean square of the outputs.
    predicted_error
        Errors that one pass over the cloud predicts at the sizes, of mean, covariance and map.
    predicted
        Exponents by other predictors.
    keys
        Tokens of the cloud.
    tokens_for, tokens_for_interval
        Tokens for a relative output error, with 95% intervals; None: more than 10^8. Beyond
        ``keys`` it is an extrapolation, which knows of no rarer tokens than the cloud has.
    at_context
        Output error at the model's own context length.
    """

    horizon: float
    frobenius: float
    tau: float
    spectrum: tuple[float, ...]
    psi: Psi
    log_burn_in: float
    frozen_share: float
    khat: TailIndex
    ess: Quantiles
    sinks: Sinks
    delimiter_share: float
    tails: Cloud | None
    norm: float
    predicted_error: ByMetric[PredictedError]
    predicted: PredictedExponents
    keys: Amount
    tokens_for: ByTolerance[float | None]
    tokens_for_interval: ByTolerance[Ends]
    at_context: AtContext


class LayerPart(Record, frozen=True, kw_only=True):
    """What a cell holds of a layer; its errors, of this shape, are in the table.

    Attributes
    ----------
    layer, heads, sizes
        Its number, its heads, and the numbers of keys n.
    shape
        Metrics, units (heads, and last the whole layer), replicates, sizes.
    relative, reference_error
        See :class:`esscher.engine.sampled.layer.LayerMeasurement`.
    reference
        How the reference was computed, in pooled mode.
    stats
        One entry per head.
    products
        Whether the table holds products of errors.
    """

    layer: Index
    heads: tuple[Index, ...]
    sizes: tuple[Count, ...]
    shape: tuple[Index, Index, Index, Index]
    relative: tuple[float, ...]
    reference_error: tuple[float, ...]
    reference: ReferenceUsed | None
    stats: tuple[HeadStatistics, ...]
    products: bool

    def __post_init__(self) -> None:
        units = len(self.heads) + 1
        lengths = [len(self.stats) + 1, len(self.relative), len(self.reference_error)]
        if self.reference is not None:
            lengths.append(len(self.reference.cov_error))
        if self.shape[0] != 3 or self.shape[1] != units or set(lengths) != {units}:
            raise ValueError("Expected `object` with one entry per head, and one of the layer")
        if self.shape[3] != len(self.sizes) or not self.sizes:
            raise ValueError("Expected `object` with errors at each size")
        errors = (s.predicted_error[metric] for s in self.stats for metric in METRICS)
        if any(len(error.error) != len(self.sizes) for error in errors):
            raise ValueError("Expected `object` with a predicted error at each size")


class ProbeCell(Record, frozen=True, kw_only=True):
    """A cell: a layer in pooled mode, all layers of a passage in context mode."""

    layers: tuple[LayerPart, ...]


class ErrorSummary(Record, frozen=True, kw_only=True):
    """An error at each size, over the replicates; no standard error of a single one."""

    mean: tuple[float, ...]
    median: tuple[float, ...]
    standard_error: tuple[float, ...] | None


class Curves(ByMetric[ErrorSummary], frozen=True, kw_only=True):
    """Measured errors, and the root mean square norm of the outputs they are relative to."""

    norm: float


class MeanAndCovariance(Record, frozen=True, kw_only=True):
    """A number for the mean of the reference's outputs, and for their covariance if it is known."""

    mean: float
    cov: float | None


class ReferenceQuality(Record, frozen=True, kw_only=True):
    """How good the reference is.

    Attributes
    ----------
    queries, coarse_keys
        See :class:`esscher.engine.sampled.sizes.ReferenceUsed`; None in context mode.
    standard_error
        Its standard errors.
    share
        The same over the errors measured at the largest size.
    """

    queries: Count | None
    coarse_keys: Count | None
    standard_error: MeanAndCovariance
    share: MeanAndCovariance

    @property
    def largest_share(self) -> float:
        """The larger of the two shares."""
        return max(self.share.mean, self.share.cov or 0.0)


class Flag(Record, frozen=True, kw_only=True):
    """Why a head's numbers may not be what they seem, with the evidence."""

    flag: Name
    evidence: str


class ProbeHead(HeadStatistics, frozen=True, kw_only=True):
    """A head: what one pass says, what was measured, and what stands against it.

    Attributes
    ----------
    layer, head
        Which one.
    fit, curve
        Fitted rates and measured errors: of the mean output, of the covariance, of the map; None if
        nothing was sampled.
    reference
        How good the reference is.
    flags
        Why the numbers may not be what they seem.
    """

    layer: Index
    head: Index
    fit: ByMetric[Rate] | None
    curve: Curves | None
    reference: ReferenceQuality
    flags: tuple[Flag, ...]

    def __repr__(self) -> str:
        tokens = self.tokens_for.percent_10
        needed = "never" if tokens is None else f"from {tokens:,.0f} tokens on"
        flags = ", ".join(dict.fromkeys(flag.flag for flag in self.flags)) or "none"
        value, (low, high) = self.exponent("mean")
        beta = "beta not measured"
        if value is not None and low is not None and high is not None:
            how = "predicted" if self.fit is None else "measured"
            beta = f"beta {value:.2f} ({low:.2f} to {high:.2f}) {how}"
        return (
            f"head {self.layer}.{self.head}: H = {self.horizon:.3g}, Psi = "
            f"{self.psi.two_sided:.3g}; {beta}, paper >= {self.predicted.paper_bound:.2g}: "
            f"{self.bound}; output error below 10% {needed}, {self.at_context.error:.2g} at "
            f"{self.at_context.n:,.0f}; flags: {flags}"
        )

    @property
    def bound(self) -> str:
        """Whether the exponent of the mean is above the published bound, by its 95% interval."""
        _, (low, high) = self.exponent("mean")
        if low is not None and low > self.predicted.paper_bound:
            return "holds"
        return "violated" if high is not None and high < self.predicted.paper_bound else "undecided"

    def exponent(self, metric: str) -> tuple[float | None, Ends]:
        """Exponent with its 95% interval: measured, or predicted if nothing was sampled."""
        if self.fit is not None:
            return self.fit[metric].exponent, self.fit[metric].interval
        return self.predicted_exponent(metric), self.predicted_interval(metric)

    def predicted_exponent(self, metric: str) -> float | None:
        """Exponent that one pass predicts; beside a measured one, with the weights of its fit.

        Curves bend, so exponents of the same curve differ if sizes count differently.
        """
        known = None if self.fit is None else self.fit[metric].predicted
        return self.predicted_error[metric].exponent if known is None else known

    def predicted_interval(self, metric: str) -> Ends:
        """95% interval of that exponent."""
        value, noise = self.predicted_exponent(metric), self.predicted_error[metric].exponent_error
        if value is None or noise is None:
            return (None, None)
        return (value - NORMAL * noise, value + NORMAL * noise)


class SharedExponents(Record, frozen=True, kw_only=True):
    """Exponents of a layer beside those of its heads."""

    heads_mean: float
    heads_worst: float
    worst_head: Index
    side_by_side: float
    side_by_side_interval: Ends
    projected: float
    projected_interval: Ends


class AtSize(Record, frozen=True, kw_only=True):
    """Effective number of heads, and amplification, at one size."""

    n: Count
    effective_heads: Estimate
    amplification: Estimate


class SharedErrors(Record, frozen=True, kw_only=True):
    """What the errors of a layer's heads have in common, behind the output projection.

    Attributes
    ----------
    correlation
        Of the errors of each pair of heads, at the largest size.
    effective_heads, amplification
        ``(tr R)^2 / tr R^2`` of the correlations R, and the squared error of the sum over the sum
        of the squared errors, at the largest size.
    by_size
        Both at every size.
    fit_projected
        Rate of the error behind the output projection.
    exponents
        Exponents of the layer beside those of its heads.
    """

    correlation: Matrix
    effective_heads: Estimate
    amplification: Estimate
    by_size: tuple[AtSize, ...]
    fit_projected: Rate
    exponents: SharedExponents


class Magnitudes(Record, frozen=True, kw_only=True):
    """What the norms of errors have in common, at the largest size."""

    correlation: Matrix
    effective_heads: Estimate


class HeadsTogether(SharedErrors, frozen=True, kw_only=True):
    """The heads of a layer together: errors of the mean output; in ``map``, of single queries."""

    heads: tuple[Index, ...]
    map: SharedErrors
    magnitudes: Magnitudes

    def __post_init__(self) -> None:
        count = len(self.heads)
        for matrix in (self.correlation, self.map.correlation, self.magnitudes.correlation):
            if [len(row) for row in matrix] != [count] * count:
                raise ValueError("Expected `object` with correlations of all pairs of heads")


class ProbeLayer(Record, frozen=True, kw_only=True):
    """A layer: rates and errors of its heads side by side, and what they have in common.

    None if nothing was sampled.
    """

    layer: Index
    fit: ByMetric[Rate] | None
    curve: Curves | None
    heads_together: HeadsTogether | None


# How good the predictors of exponents are, beside the trivial one: always 1/2.
#
# Skill is ``1 - MAE / MAE(always 1/2)``, both over the same heads: 0 is as good as the constant, 1
# is perfect. Its interval resamples heads in pairs of errors. The measured exponents have noise of
# their own, which no predictor can know: it keeps every skill below 1.

#: The trivial predictor.
CONSTANT = "always 1/2"
#: Predictors of an exponent: column of the table of heads and name, by metric.
PREDICTORS = {
    "mean": {
        "predicted_mean": "predicted on the range",
        "constant": CONSTANT,
        "predicted_khat": "one-pass k-hat",
        "sharp": "Gaussian, conjectured",
        "paper_reference": "published reference",
        "paper_bound": "published bound",
    },
    "cov": {
        "predicted_cov": "predicted on the range",
        "constant": CONSTANT,
        "predicted_khat": "one-pass k-hat",
        "sharp": "Gaussian, conjectured",
    },
    "map": {
        "predicted_map": "predicted on the range",
        "constant": CONSTANT,
        "predicted_khat": "one-pass k-hat",
        "paper_reference": "published reference",
        "paper_bound": "published bound",
    },
}
#: Resamples of the heads.
RESAMPLES = 1000


def predictor_table(heads: pd.DataFrame) -> pd.DataFrame:
    """Mean absolute error and skill of each predictor, smallest error first, by metric.

    Parameters
    ----------
    heads
        Measured and predicted exponents, one row per head.
    """
    import pandas as pd

    rows = []
    for metric in METRICS:
        some = [
            _predictor_row(heads, metric, column, name)
            for column, name in PREDICTORS[metric].items()
        ]
        rows += sorted((row for row in some if row), key=lambda row: row["mean absolute error"])
    return pd.DataFrame(rows)


def beats_constant(row: Any) -> bool:
    """Whether a row of the table is better than the constant, beyond its interval."""
    low = row["skill_low"]
    return row["predictor"] != CONSTANT and low is not None and bool(low > 0)


def _predictor_row(heads: pd.DataFrame, metric: str, column: str, name: str) -> dict[str, Any]:
    measured = heads[metric].to_numpy(dtype=float)
    predicted = np.full(len(heads), 0.5) if column == "constant" else heads[column].to_numpy(float)
    known = np.isfinite(measured) & np.isfinite(predicted)
    if not known.any():
        return {}
    error, trivial = np.abs(predicted - measured)[known], np.abs(0.5 - measured)[known]
    low, high = _skill_interval(error, trivial)
    return {
        "metric": metric,
        "predictor": name,
        "mean absolute error": float(error.mean()),
        "skill": float(1 - error.mean() / trivial.mean()) if trivial.mean() > 0 else None,
        "skill_low": None if column == "constant" else low,
        "skill_high": None if column == "constant" else high,
    }


def _skill_interval(error: Array, trivial: Array) -> tuple[float | None, float | None]:
    """95% interval of the skill; none of fewer than 4 heads."""
    count = len(error)
    if count < 4 or not trivial.any():
        return None, None
    picks = random_stream(0, "skill").integers(count, size=(RESAMPLES, count))
    below = trivial[picks].mean(axis=1)
    skill = 1 - error[picks].mean(axis=1)[below > 0] / below[below > 0]
    low, high = np.quantile(skill, [0.025, 0.975])
    return float(low), float(high)


# The result: every head's numbers, and what the heads of each layer have in common.

#: Errors, in the order of the panels.
METRIC_NAMES = {"mean": "mean output", "map": "map (rms)", "cov": "covariance"}
#: Most heads whose curves, and whose evidence in the report, are kept: those that need most tokens.
#: A report of 80 layers of 64 heads then stays below 8 MB.
KEPT = 1_000


@dataclass(frozen=True, eq=False, repr=False, kw_only=True)
class Probe(WithHeads[ProbeHead], Result["ProbeStudy"]):
    """The numbers of every head.

    Attributes
    ----------
    sizes
        Numbers of tokens n at which errors were measured.
    heads
        One entry per head.
    layers
        One entry per layer: its heads side by side, and what they have in common.
    """

    sizes: tuple[Count, ...]
    heads: tuple[ProbeHead, ...]
    layers: tuple[ProbeLayer, ...]

    def table(self) -> pd.DataFrame:
        """Return a data frame, one row per head.

        Exponents ``mean``, ``cov`` and ``map`` are measured, and missing if nothing was sampled;
        those that one pass predicts are ``predicted_mean`` and so on. The paper's are
        ``paper_bound``, ``1/(2(1 + 32 Psi))``, and ``paper_reference``, ``1/(2(1 + Psi))``; those
        that end in ``_one_sided`` are of the other convention of Psi. ``H_unscaled`` is the horizon
        as the authors' programs compute it, without the factor ``1/sqrt(d)`` of the logits.
        """
        import pandas as pd

        dim = self.study.model_record.head_dim
        return pd.DataFrame([_row(head, dim) for head in self.heads])

    def to_xarray(self) -> xarray.Dataset:
        """Return the numbers of the table as a labelled dataset along ``layer`` and ``head``."""
        table = self.table()
        if not table.empty:
            table = table.set_index(["layer", "head"])
        found: xarray.Dataset = table.to_xarray()
        return found.assign_attrs(headline=self.headline, seed=self.study.seed)

    def exponent_column(self, metric: str) -> str:
        """Column of the table that has an exponent: measured, or predicted if none was."""
        return f"predicted_{metric}" if self.study.predict else metric

    def layers_table(self) -> pd.DataFrame:
        """Return a data frame of what the heads of each layer have in common, one row per layer.

        Layers with one head only are left out. Columns of single queries end in ``_map``.
        """
        import pandas as pd

        return pd.DataFrame([row for layer in self.layers if (row := _layer_row(layer))])

    def predictors(self) -> pd.DataFrame:
        """Mean absolute error and skill of each predictor of the measured exponents.

        See :mod:`esscher.studies.probe.result`. Empty if nothing was measured.
        """
        import pandas as pd

        return pd.DataFrame() if self.study.predict else predictor_table(self.table())

    def shown(self) -> list[pd.DataFrame]:
        """Return the heads, those that need most tokens first."""
        table = self.table()
        if table.empty:
            return []
        exponents = [self.exponent_column(metric) for metric in METRICS]
        names = [
            "layer",
            "head",
            "H",
            "psi",
            "paper_bound",
            *exponents,
            "khat",
            "at_context",
            "tokens_10",
            "extrapolated",
            "flags",
        ]
        return [table.sort_values("tokens_10", ascending=False, na_position="first")[names]]


def _row(head: ProbeHead, dim: int) -> dict[str, Any]:
    row: dict[str, Any] = {
        "layer": head.layer,
        "head": head.head,
        "H": head.horizon,
        "psi": head.psi.two_sided,
        "psi_one_sided": head.psi.one_sided,
        "H_unscaled": head.horizon * dim**0.5,
        "F": head.frobenius,
        "tau": head.tau,
        "khat": head.khat.k,
    }
    for metric in METRICS:
        fit = None if head.fit is None else head.fit[metric]
        measured = (None, (None, None)) if fit is None else (fit.exponent, fit.interval)
        row |= _columns(metric, *measured)
        row |= _columns(
            f"predicted_{metric}", head.predicted_exponent(metric), head.predicted_interval(metric)
        )
    predicted = head.predicted
    context = head.at_context
    low, high = head.tokens_for_interval.percent_10
    return row | {
        "predicted_khat": predicted.khat,
        "sharp": predicted.sharp.mean,
        "paper_reference": predicted.paper_reference,
        "paper_bound": predicted.paper_bound,
        "paper_reference_one_sided": predicted.paper_reference_one_sided,
        "paper_bound_one_sided": predicted.paper_bound_one_sided,
        "bound": head.bound,
        "ess": head.ess.median,
        "sinks": head.sinks.share,
        "delimiters": head.delimiter_share,
        "tokens_5": head.tokens_for.percent_5,
        "tokens_10": head.tokens_for.percent_10,
        "tokens_20": head.tokens_for.percent_20,
        "tokens_10_low": low,
        "tokens_10_high": high,
        "extrapolated": head.tokens_for.percent_10 is None
        or head.tokens_for.percent_10 > head.keys,
        **_columns("at_context", context.error, context.interval),
        "context": context.n,
        "reference_share": head.reference.largest_share,
        **_proxy(head),
        "flags": ", ".join(dict.fromkeys(flag.flag for flag in head.flags)),
    }


def _proxy(head: ProbeHead) -> dict[str, Any]:
    """Variance proxy of the keys over their variance, with its interval."""
    if head.tails is None:
        return _columns("proxy", None, (None, None))
    return _columns("proxy", head.tails.proxy.value, head.tails.proxy.interval)


def _layer_row(layer: ProbeLayer) -> dict[str, Any]:
    """A row of the table of layers; empty for a layer with one head."""
    import numpy as np

    found = layer.heads_together
    if found is None:
        return {}
    row: dict[str, Any] = {"layer": layer.layer, "heads": len(found.heads)}
    for part, suffix in ((found, ""), (found.map, "_map")):
        row |= _estimate(f"effective_heads{suffix}", part.effective_heads)
        row |= _estimate(f"amplification{suffix}", part.amplification)
        exponents = part.exponents
        row |= {
            f"heads_mean{suffix}": exponents.heads_mean,
            f"heads_worst{suffix}": exponents.heads_worst,
            f"worst_head{suffix}": exponents.worst_head,
        }
        row |= _columns(
            f"side_by_side{suffix}", exponents.side_by_side, exponents.side_by_side_interval
        )
        row |= _columns(f"projected{suffix}", exponents.projected, exponents.projected_interval)
    common = np.asarray(found.magnitudes.correlation)
    others = common[~np.eye(len(common), dtype=bool)]
    row["magnitude_correlation"] = float(others.mean())
    return row | _estimate("effective_magnitudes", found.magnitudes.effective_heads)


def _estimate(name: str, found: Estimate) -> dict[str, Any]:
    return _columns(name, found.value, found.interval)


def _columns(
    name: str, value: float | None, interval: tuple[float | None, float | None]
) -> dict[str, Any]:
    low, high = interval
    return {name: value, f"{name}_low": low, f"{name}_high": high}


def by_need(found: Probe) -> list[ProbeHead]:
    """Return the heads, those that need most tokens first."""
    return sorted(found.heads, key=lambda head: -(head.tokens_for.percent_10 or math.inf))


def enough_for(found: Probe, share: float) -> float | None:
    """Return the tokens for 10% error that are enough for a share of the heads; None: none are."""
    at = math.ceil(share * len(found.heads))
    return by_need(found)[-at].tokens_for.percent_10
