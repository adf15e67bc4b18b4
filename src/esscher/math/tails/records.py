"""Numbers of a cloud's tails, as they are stored and read."""

from __future__ import annotations

from esscher.core.codec import Amount, Count, Estimate, Interval, Record


class TailComparison(Record, frozen=True, kw_only=True):
    """Which type of tail exceedances have.

    Attributes
    ----------
    share, threshold, exceedances, groups
        Share of the values that is the tail, threshold u, number of values above it, and of
        passages that they come from.
    tau, tau_interval
        Exponent of ``exp(-b y^tau)`` by maximum likelihood over all tau (2: Gaussian, 1:
        exponential; ends of the range mean "beyond"), with profile interval.
    k
        Shape of the Pareto law, larger than 0.
    inflation
        Factor of passages, at least 1, by which log-likelihoods were divided.
    criterion
        Quasi-likelihood criterion ``-2 ln L + 2 parameters`` of each candidate, smallest 0.
    weights
        Akaike weights.
    gaussian_over_exponential
        ``2 ln L`` of tau = 2 less that of tau = 1, divided by the inflation.
    level
        Level of the interval.
    """

    share: float
    threshold: float
    exceedances: Amount
    groups: Amount
    tau: float
    tau_interval: Interval
    k: float
    inflation: float
    criterion: dict[str, float]
    weights: dict[str, float]
    gaussian_over_exponential: float
    level: float


class VarianceProxy(Record, frozen=True, kw_only=True):
    """Sub-Gaussian parameter over the variance.

    Attributes
    ----------
    value, interval
        The ratio, and its interval by resampling passages; at least 1. Of a whole cloud: the
        geometric mean of its two halves, and what their intervals span.
    reach
        Largest ``|t|`` at which the sample says anything, in units of 1 / standard deviation.
    at
        The t at which the ratio is attained (in the half where it is larger).
    level
        Level of the interval.
    """

    value: float
    interval: Interval
    reach: float
    at: float
    level: float


class Cloud(Record, frozen=True, kw_only=True):
    """Tails of a cloud of tokens along its worst direction.

    Attributes
    ----------
    tokens, passages
        How many there are.
    kurtosis, proxy
        Excess kurtosis and variance proxy.
    tail
        Comparisons at lower and higher thresholds, largest share of the values first.
    tail_halves, proxy_halves
        The same and the variance proxy in each half, along the direction that the other half
        found. Earlier versions stored the first only where the directions differ, and no proxies.
    largest
        Largest standardised projection.
    agreement
        Cosine of the two halves' directions, in whitened coordinates.
    """

    tokens: Amount
    passages: Amount
    kurtosis: Estimate
    proxy: VarianceProxy
    tail: tuple[TailComparison, ...]
    tail_halves: tuple[tuple[TailComparison, ...], ...]
    largest: float
    agreement: float
    proxy_halves: tuple[VarianceProxy, ...] = ()


class Deciding(Record, frozen=True, kw_only=True):
    """The comparison on which a verdict rests."""

    threshold: float
    tau: float
    tau_interval: Interval


class Judgement(Record, frozen=True, kw_only=True):
    """Verdict on a cloud, its evidence, what it means for the theory, and what decided it."""

    verdict: str
    evidence: str
    meaning: str
    decided_by: Deciding


class LogitShape(Estimate, frozen=True, kw_only=True):
    """k-hat of the upper tail of logits: median over queries.

    Attributes
    ----------
    largest
        The 90% quantile over the queries.
    queries
        How many there are.
    """

    largest: float | None
    queries: Count
