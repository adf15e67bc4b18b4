"""The result: every head's numbers, and what the heads of each layer have in common."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from esscher.core.codec import Count, Estimate
from esscher.engine.sampled.sizes import METRICS
from esscher.runs.result import Result, WithHeads
from esscher.studies.probe.records import ProbeHead, ProbeLayer

if TYPE_CHECKING:
    import pandas as pd
    import xarray

    from esscher.studies.probe.study import ProbeStudy  # noqa: F401 - below, in a string


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

        See :mod:`esscher.studies.probe.predictors`. Empty if nothing was measured.
        """
        import pandas as pd

        from esscher.studies.probe.predictors import predictor_table

        return pd.DataFrame() if self.study.predict else predictor_table(self.table())

    def shown(self) -> list[pd.DataFrame]:
        """Return the heads, those that need most tokens first."""
        table = self.table()
        if table.empty:
            return []
        exponents = [self.exponent_column(metric) for metric in METRICS]
        names = ["layer", "head", "H", "psi", "paper_bound", *exponents, "khat", "at_context",
                 "tokens_10", "extrapolated", "flags"]  # fmt: skip
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
