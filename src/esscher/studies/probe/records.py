"""Numbers of heads and layers, as cells and results hold them.

In context mode a cell is a passage, and the result has the mean of each number over the passages.
"""

from __future__ import annotations

from typing import Generic, TypeAlias, TypeVar

from esscher.core.codec import Amount, Count, Estimate, Index, Name, Record
from esscher.engine.sampled.layer import ReferenceUsed
from esscher.math.statistics.records import ByMetric, Ends, FittedRate, ReceivedTail
from esscher.math.tails.records import Cloud, Deciding

T = TypeVar("T")

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
    """The constant of the published bound: from both covariances, and from that of tokens alone."""

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
    """The map error that one pass predicts, at each size."""

    error: tuple[float, ...]
    standard_error: tuple[float, ...]


class RangeExponent(Record, frozen=True, kw_only=True):
    """Exponent on the sizes measured; None of a single size."""

    map: float | None


class PredictedExponents(Record, frozen=True, kw_only=True):
    """Exponents that one pass predicts.

    Attributes
    ----------
    khat
        From the tail of received attention, of the mean error.
    range
        From the predicted map error on the same sizes.
    sharp
        Asymptotic, for Gaussian tokens of the same horizon.
    paper_reference, paper_bound
        The published ones.
    """

    khat: float
    range: RangeExponent
    sharp: ByMetric[float]
    paper_reference: float
    paper_bound: float


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
    predicted_map, predicted
        What is predicted for the map error, and for exponents.
    tokens_for, tokens_for_interval
        Tokens for a relative output error, with 95% intervals; None: more than 10^8.
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
    predicted_map: PredictedError
    predicted: PredictedExponents
    tokens_for: ByTolerance[float | None]
    tokens_for_interval: ByTolerance[Ends]


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
        if self.shape[3] != len(self.sizes) or not self.sizes or not self.shape[2]:
            raise ValueError("Expected `object` with errors of replicates at each size")
        if any(len(s.predicted_map.error) != len(self.sizes) for s in self.stats):
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
        See :class:`esscher.engine.sampled.layer.ReferenceUsed`; None in context mode.
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


class KeyTails(Cloud, frozen=True, kw_only=True):
    """The tails of a head's keys, judged: see :class:`esscher.math.tails.Judgement`."""

    verdict: Name
    evidence: str
    meaning: str
    decided_by: Deciding


class ProbeHead(HeadStatistics, frozen=True, kw_only=True):
    """A head: what one pass says, what was measured, and what stands against it.

    Attributes
    ----------
    layer, head
        Which one.
    tails
        Tails of its keys, judged.
    fit, curve
        Fitted rates and measured errors: of the mean output, of the covariance, of the map.
    reference
        How good the reference is.
    flags
        Why the numbers may not be what they seem.
    """

    layer: Index
    head: Index
    tails: KeyTails | None
    fit: ByMetric[FittedRate]
    curve: Curves
    reference: ReferenceQuality
    flags: tuple[Flag, ...]


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
    """A layer: rates and errors of its heads side by side, and what they have in common."""

    layer: Index
    fit: ByMetric[FittedRate]
    curve: Curves
    heads_together: HeadsTogether | None
