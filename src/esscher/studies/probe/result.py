"""Numbers of heads and layers, as cells and results hold them.

In context mode a cell is a passage, and the result has the mean of each number over the passages.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from esscher.core.codec import Amount, Count, Estimate, Index, Interval, Name, Record
from esscher.engine.sampled.sizes import METRICS, ReferenceUsed
from esscher.math.statistics import Rate, TailIndex
from esscher.math.statistics.intervals import ByMetric, Ends, Matrix
from esscher.math.tails.candidates import Cloud
from esscher.runs.old_result import Result, WithHeads

if TYPE_CHECKING:
    import pandas as pd
    import xarray

    from esscher.studies.probe.study import ProbeStudy  # noqa: F401 - below, in a string


#: Standard errors to each side of a 95% interval.
NORMAL = 1.96
#: Output error from which a head is one to leave alone: sampling it is no estimate.
LARGE = 0.5
#: Errors, in the order of the panels.
METRIC_NAMES = {"mean": "mean output", "map": "map (rms)", "cov": "covariance"}
#: Most heads whose curves, and whose evidence in the report, are kept: those that need most tokens.
#: A report of 80 layers of 64 heads then stays below 8 MB.
KEPT = 1_000
#: Relative output errors for which the number of tokens is given.
TOLERANCES = ("0.05", "0.1", "0.2")


class PredictedError(Record, frozen=True, kw_only=True):
    """The error that one pass predicts at each size, and its exponent on them.

    Standard errors are of what is sampled: queries, tokens, pairs of coordinates. A single size has
    no exponent.
    """

    error: tuple[float, ...]
    standard_error: tuple[float, ...]
    exponent: float | None
    exponent_error: float | None


class HeadStatistics(Record, frozen=True, kw_only=True):
    """What one pass says about a head.

    Attributes
    ----------
    horizon, frobenius, tau, spectrum
        H and F of ``M = S_k^{1/2} S_q^{1/2}``, the norm of the mean tilt, and the largest singular
        values of M.
    psi, psi_one_sided
        Constant of the published bound: ``H^2``, from the covariances of queries and keys (the
        published version of the paper), and ``||Sigma||_2 ||Sigma^{1/2} A||_2^2``, from that of
        tokens alone (its first version); None where the latter is not known.
    paper_reference, paper_bound
        The published exponents, ``1/(2(1 + Psi))`` and ``1/(2(1 + 32 Psi))``.
    paper_reference_one_sided, paper_bound_one_sided
        The same of the one-sided Psi.
    sharp
        Asymptotic exponents for Gaussian tokens of the same horizon: conjectured.
    log_burn_in, frozen_share
        ``F^2 + tau^2``, and the share of queries past freezing at the largest size.
    khat
        Tail of received attention.
    ess
        Effective number of tokens that a query attends, ``1 / sum_j p_j^2``: quantiles ``p10``,
        ``median`` and ``p90`` over queries.
    sinks, sink_share, delimiter_share
        The largest sinks, each with its share of the attention; the attention that all sinks
        receive, and that of delimiters.
    tails
        Tails of the keys; None where there are too few to judge.
    norm
        Root mean square of the outputs.
    predicted_error
        Errors that one pass over the cloud predicts at the sizes, of mean, covariance and map.
    keys
        Tokens of the cloud.
    tokens_for, tokens_for_interval
        Tokens for a relative output error of 0.05, 0.1 and 0.2, with 95% intervals; None: more than
        10^8. Beyond ``keys`` it is an extrapolation, which knows of no rarer tokens than the cloud
        has.
    context, at_context, at_context_interval
        The model's own context length, and the relative output error there (root mean square over
        queries, over the norm of the outputs) with its 95% interval.
    """

    horizon: float
    frobenius: float
    tau: float
    spectrum: tuple[float, ...]
    psi: float
    psi_one_sided: float | None
    paper_reference: float
    paper_bound: float
    paper_reference_one_sided: float | None
    paper_bound_one_sided: float | None
    sharp: ByMetric[float]
    log_burn_in: float
    frozen_share: float
    khat: TailIndex
    ess: dict[str, float]
    sinks: tuple[tuple[str, float], ...]
    sink_share: float
    delimiter_share: float
    tails: Cloud | None
    norm: float
    predicted_error: ByMetric[PredictedError]
    keys: Amount
    tokens_for: dict[str, float | None]
    tokens_for_interval: dict[str, Ends]
    context: Amount
    at_context: float
    at_context_interval: Interval

    def __post_init__(self) -> None:
        for numbers in (self.tokens_for, self.tokens_for_interval):
            if not numbers.keys() >= set(TOLERANCES):
                raise ValueError(f"Expected `object` with tokens for {', '.join(TOLERANCES)}")
        if "median" not in self.ess:
            raise ValueError("Expected `object` with the median of ess")


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


class ProbeHead(HeadStatistics, frozen=True, kw_only=True):
    """A head: what one pass says, what was measured, and what stands against it.

    Attributes
    ----------
    layer, head
        Which one.
    fit
        Rates of the measured errors: of the mean output, of the covariance, of the map; None if
        nothing was sampled.
    reference_share
        Standard error of the reference over the error measured at the largest size: of the mean
        output or of the covariance, whichever is larger.
    flags
        Why the numbers may not be what they seem: names, with the evidence.
    """

    layer: Index
    head: Index
    fit: ByMetric[Rate] | None
    reference_share: float
    flags: dict[Name, str]

    def __repr__(self) -> str:
        tokens = self.tokens_for["0.1"]
        needed = "never" if tokens is None else f"from {tokens:,.0f} tokens on"
        flags = ", ".join(self.flags) or "none"
        value, (low, high) = self.exponent("mean")
        beta = "beta not measured"
        if value is not None and low is not None and high is not None:
            how = "predicted" if self.fit is None else "measured"
            beta = f"beta {value:.2f} ({low:.2f} to {high:.2f}) {how}"
        return (
            f"head {self.layer}.{self.head}: H = {self.horizon:.3g}, Psi = {self.psi:.3g}; "
            f"{beta}, paper >= {self.paper_bound:.2g}: {self.bound}; output error below 10% "
            f"{needed}, {self.at_context:.2g} at {self.context:,.0f}; flags: {flags}"
        )

    @property
    def bound(self) -> str:
        """Whether the exponent of the mean is above the published bound, by its 95% interval."""
        _, (low, high) = self.exponent("mean")
        if low is not None and low > self.paper_bound:
            return "holds"
        return "violated" if high is not None and high < self.paper_bound else "undecided"

    def exponent(self, metric: str) -> tuple[float | None, Ends]:
        """Exponent with its 95% interval: measured, or predicted if nothing was sampled."""
        if self.fit is None:
            return self.predicted_exponent(metric)
        return self.fit[metric].exponent, self.fit[metric].interval

    def predicted_exponent(self, metric: str) -> tuple[float | None, Ends]:
        """Exponent that one pass predicts, with its 95% interval.

        Beside a measured one it has the weights of its fit: curves bend, so exponents of the same
        curve differ if sizes count differently.
        """
        predicted = self.predicted_error[metric]
        weighted = None if self.fit is None else self.fit[metric].predicted
        value = predicted.exponent if weighted is None else weighted
        error = predicted.exponent_error
        if value is None or error is None:
            return value, (None, None)
        return value, (value - NORMAL * error, value + NORMAL * error)


class SharedErrors(Record, frozen=True, kw_only=True):
    """What the errors of a layer's heads have in common, behind the output projection.

    Attributes
    ----------
    correlation
        Of the errors of each pair of heads, at the largest size.
    effective_heads, amplification
        ``(tr R)^2 / tr R^2`` of the correlations R, and the squared error of the sum over the sum
        of the squared errors, at every size. The norms of errors have the first of them, at the
        largest size.
    projected
        Rate of the error behind the output projection; norms have none.
    """

    correlation: Matrix
    effective_heads: tuple[Estimate, ...]
    amplification: tuple[Estimate, ...] = ()
    projected: Rate | None = None


class ProbeLayer(Record, frozen=True, kw_only=True):
    """A layer.

    Attributes
    ----------
    layer, heads
        Its number, and its heads.
    fit
        Rates of the errors of its heads side by side; None if nothing was sampled.
    heads_together
        What errors of the mean output (``mean``), of single queries (``map``) and the norms of the
        first (``magnitudes``) have in common; None for one head, or too few replicates.
    """

    layer: Index
    heads: tuple[Index, ...]
    fit: ByMetric[Rate] | None
    heads_together: dict[str, SharedErrors] | None

    def __post_init__(self) -> None:
        if self.heads_together is None:
            return
        if self.heads_together.keys() != {"mean", "map", "magnitudes"}:
            raise ValueError("Expected `object` with mean, map and magnitudes")
        for shared in self.heads_together.values():
            if [len(row) for row in shared.correlation] != [len(self.heads)] * len(self.heads):
                raise ValueError("Expected `object` with correlations of all pairs of heads")
            if not shared.effective_heads:
                raise ValueError("Expected `object` with effective heads at a size")


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
        data: xarray.Dataset = table.to_xarray()
        return data.assign_attrs(headline=self.headline, seed=self.study.seed)

    def exponent_column(self, metric: str) -> str:
        """Column of the table that has an exponent: measured, or predicted if none was."""
        return f"predicted_{metric}" if self.study.predict else metric

    def layers_table(self) -> pd.DataFrame:
        """Return a data frame of what the heads of each layer have in common, one row per layer.

        Layers with one head only are left out. Columns of single queries end in ``_map``.
        """
        import pandas as pd

        rows = []
        for layer in self.layers:
            together = layer.heads_together
            heads = [h for h in self.heads if h.layer == layer.layer and h.fit is not None]
            if together is None or layer.fit is None or not heads:
                continue
            row: dict[str, Any] = {"layer": layer.layer, "heads": len(layer.heads)}
            for metric, end in (("mean", ""), ("map", "_map")):
                shared, side_by_side = together[metric], layer.fit[metric]
                for name, estimates in (
                    ("effective_heads", shared.effective_heads),
                    ("amplification", shared.amplification),
                ):
                    row |= _columns(f"{name}{end}", estimates[-1].value, estimates[-1].interval)
                exponents = np.array([head.exponent(metric)[0] for head in heads], dtype=float)
                row[f"heads_mean{end}"] = float(exponents.mean())
                row[f"heads_worst{end}"] = float(exponents.min())
                row[f"worst_head{end}"] = heads[int(exponents.argmin())].head
                row |= _columns(f"side_by_side{end}", side_by_side.exponent, side_by_side.interval)
                if shared.projected is not None:
                    fit = shared.projected
                    row |= _columns(f"projected{end}", fit.exponent, fit.interval)
            magnitudes = together["magnitudes"]
            common = np.asarray(magnitudes.correlation)
            row["magnitude_correlation"] = float(common[~np.eye(len(common), dtype=bool)].mean())
            effective = magnitudes.effective_heads[-1]
            rows.append(row | _columns("effective_magnitudes", effective.value, effective.interval))
        return pd.DataFrame(rows)

    def shown(self) -> list[pd.DataFrame]:
        """Return the heads, those that need most tokens first."""
        table = self.table()
        if table.empty:
            return []
        names = ["layer", "head", "H", "psi", "paper_bound"]
        names += [self.exponent_column(metric) for metric in METRICS]
        names += ["khat", "at_context", "tokens_10", "extrapolated", "flags"]
        return [table.sort_values("tokens_10", ascending=False, na_position="first")[names]]


def _row(head: ProbeHead, dim: int) -> dict[str, Any]:
    """A row of the table of heads."""
    row: dict[str, Any] = {
        "layer": head.layer,
        "head": head.head,
        "H": head.horizon,
        "psi": head.psi,
        "psi_one_sided": head.psi_one_sided,
        "H_unscaled": head.horizon * dim**0.5,
        "F": head.frobenius,
        "tau": head.tau,
        **_columns("khat", head.khat.k, head.khat.interval),
    }
    for metric in METRICS:
        measured = (None, (None, None)) if head.fit is None else head.exponent(metric)
        row |= _columns(metric, *measured)
        row |= _columns(f"predicted_{metric}", *head.predicted_exponent(metric))
    tokens = head.tokens_for["0.1"]
    proxy: tuple[float | None, Ends] = (None, (None, None))
    if head.tails is not None:
        proxy = head.tails.proxy.value, head.tails.proxy.interval
    return row | {
        "sharp": head.sharp.mean,
        "paper_reference": head.paper_reference,
        "paper_bound": head.paper_bound,
        "paper_reference_one_sided": head.paper_reference_one_sided,
        "paper_bound_one_sided": head.paper_bound_one_sided,
        "bound": head.bound,
        "ess": head.ess["median"],
        "sinks": head.sink_share,
        "delimiters": head.delimiter_share,
        "tokens_5": head.tokens_for["0.05"],
        **_columns("tokens_10", tokens, head.tokens_for_interval["0.1"]),
        "tokens_20": head.tokens_for["0.2"],
        "extrapolated": tokens is None or tokens > head.keys,
        **_columns("at_context", head.at_context, head.at_context_interval),
        "context": head.context,
        "reference_share": head.reference_share,
        **_columns("proxy", *proxy),
        "flags": ", ".join(head.flags),
    }


def _columns(name: str, value: float | None, interval: Ends) -> dict[str, Any]:
    """A number with its interval, as columns of a table."""
    return {name: value, f"{name}_low": interval[0], f"{name}_high": interval[1]}


def subject(probe: Probe) -> str:
    """Return what was measured: model, text, mode, tokens and sizes."""
    study = probe.study
    return (
        f"{study.model_record.name} on {study.text_record.source}, {study.mode}, "
        f"{study.tokens:,} tokens, n = {study.sizes[0]:,} to {study.sizes[-1]:,}"
    )


def by_need(probe: Probe) -> list[ProbeHead]:
    """Return the heads, those that need most tokens first."""
    return sorted(probe.heads, key=lambda head: -(head.tokens_for["0.1"] or math.inf))


def enough_for(probe: Probe, share: float) -> float | None:
    """Return the tokens for 10% error that are enough for a share of the heads; None: none are."""
    at = math.ceil(share * len(probe.heads))
    return by_need(probe)[-at].tokens_for["0.1"]


def percent(share: float) -> str:
    """Return a share in percent, in two digits below 10%."""
    return f"{100 * share:.2g}%" if share < 0.1 else f"{share:.0%}"
