"""Numbers of heads and layers, as cells and results hold them.

In context mode a cell is a passage, and the result has the mean of each number over the passages.
"""

from __future__ import annotations

from typing import Generic, TypeAlias, TypeVar

from esscher.core.codec import Amount, Count, Estimate, Index, Interval, Name, Record
from esscher.engine.sampled.sizes import METRICS, ReferenceUsed
from esscher.math.statistics.records import ByMetric, Ends, FittedRate, ReceivedTail
from esscher.math.tails.candidates import Cloud

T = TypeVar("T")

#: Standard errors to each side of a 95% interval.
NORMAL = 1.96
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
    khat: ReceivedTail
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
    fit: ByMetric[FittedRate] | None
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
    fit_projected: FittedRate
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
    fit: ByMetric[FittedRate] | None
    curve: Curves | None
    heads_together: HeadsTogether | None
