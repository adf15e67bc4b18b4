"""Measured error curves: what a sweep returns."""

from __future__ import annotations

import html
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from esscher.core.errors import InputError
from esscher.core.validation import Array
from esscher.math.statistics import LEVEL, Rate, fit_rate
from esscher.math.theory import exponents
from esscher.studies.sweep.measure import METRICS
from esscher.studies.sweep.predictions import ScalePrediction

if TYPE_CHECKING:
    import pandas as pd


@dataclass(frozen=True, eq=False, repr=False)
class ErrorCurve:
    """Errors of attention over n tokens, measured on independent replicates.

    Attributes
    ----------
    errors
        Raw errors by metric, axes [scale, replicate, size], ``nan`` at the sizes above the last of
        a replicate that a precision made end early: ``"mean"`` (norm of the error of the
        mean output), ``"cov"`` (Frobenius norm of the error of its covariance), ``"map"`` (root of
        the mean over queries of the squared error of the map).
    replicates
        Numbers of the replicates, in increasing order; 0, 1, 2, ... once a sweep is complete.
    configuration
        All that the errors are a function of: head, sizes, scales, seed, queries, precision of the
        arithmetic, engine.
    versions
        Versions of the software that measured them.
    complete
        Whether every replicate that was asked for is there.
    notes
        What a reader must know.
    predictions
        What theory says about these sizes, one entry per scale; None unless asked for.
    """

    errors: dict[str, Array]
    replicates: NDArray[np.int64]
    configuration: dict[str, Any]
    versions: dict[str, str | None]
    complete: bool = True
    notes: tuple[str, ...] = ()
    predictions: tuple[ScalePrediction, ...] | None = None
    _fitted: dict[tuple[Any, ...], Rate] = field(default_factory=dict, init=False)

    @property
    def sizes(self) -> Array:
        """Numbers of tokens."""
        return np.asarray(self.configuration["sizes"], dtype=np.float64)

    @property
    def scales(self) -> Array:
        """Multipliers alpha of the head's tilts."""
        return np.asarray(self.configuration["scales"], dtype=np.float64)

    @property
    def horizons(self) -> Array:
        """Attention horizon at each scale."""
        return self.scales * float(self.configuration["head"]["horizon"])

    @property
    def seed(self) -> int:
        """Seed of the random streams."""
        return int(self.configuration["seed"])

    @property
    def queries(self) -> str:
        """``"tokens"`` or ``"population"``."""
        return str(self.configuration["queries"])

    def raw(self, metric: str) -> Array:
        """Raw errors of a metric, axes [scale, replicate, size]."""
        if metric not in self.errors:
            raise InputError(f"metric is {metric!r}; it must be one of {', '.join(METRICS)}")
        return self.errors[metric]

    def mean(self, metric: str) -> Array:
        """Mean over the replicates, axes [scale, size]; ``nan`` without replicates."""
        raw = self.raw(metric)
        if not raw.shape[1]:
            return np.full((len(self.scales), len(self.sizes)), np.nan)
        return np.asarray(np.nanmean(raw, axis=1))

    def median(self, metric: str) -> Array:
        """Median over the replicates: worth more than the mean where tails are heavy (H > 1)."""
        raw = self.raw(metric)
        return np.asarray(np.nanmedian(raw, axis=1)) if raw.shape[1] else self.mean(metric)

    def standard_error(self, metric: str) -> Array:
        """Standard error of the mean; ``nan`` for fewer than 2 replicates."""
        raw = self.raw(metric)
        if raw.shape[1] < 2:
            return np.full_like(self.mean(metric), np.nan)
        return np.asarray(np.nanstd(raw, axis=1, ddof=1) / np.sqrt(self.counts))

    @property
    def counts(self) -> NDArray[np.int64]:
        """Number of replicates at each size."""
        return np.asarray(np.isfinite(self.errors[METRICS[0]][0]).sum(axis=0), dtype=np.int64)

    def rate(
        self,
        metric: str = "mean",
        scale: int | None = None,
        *,
        summary: str = "mean",
        level: float = LEVEL,
    ) -> Rate:
        """Fit error ~ C n^-beta to one metric at one scale.

        Parameters
        ----------
        metric
            ``"mean"``, ``"cov"`` or ``"map"``.
        scale
            Place of the scale in ``scales``; may be left out if there is only one.
        summary
            ``"mean"`` of the replicates, or ``"median"``, for heavy tails (H > 1).
        level
            Level of the intervals, which come from resampling replicates.

        Returns
        -------
        Rate
            With the published exponents beside it and, if the sweep was made with
            ``predict=True``, the one predicted on the same sizes.
        """
        self.raw(metric)  # says what is wrong with the name
        if scale is None and len(self.scales) > 1:
            raise InputError(
                f"there are {len(self.scales)} scales; say which one with scale=0 to "
                f"{len(self.scales) - 1}"
            )
        place = 0 if scale is None else int(scale)
        if not 0 <= place < len(self.scales):
            raise InputError(f"scale is {scale!r}; it must be 0 to {len(self.scales) - 1}")
        key = metric, place, summary, level
        if key not in self._fitted:
            self._fitted[key] = self._fit(metric, place, summary, level)
        return self._fitted[key]

    def _fit(self, metric: str, place: int, summary: str, level: float) -> Rate:
        known = self.predictions[place] if self.predictions else None
        found = fit_rate(
            self.errors[metric][place],
            self.sizes,
            summary=summary,
            level=level,
            seed=self.seed,
            burn_in=None if known is None else float(np.exp(min(known.log_burn_in, 700.0))),
        )
        if known is None:
            published = exponents(float(self.horizons[place]))
            return found.with_predictions(
                paper_reference=published.paper_reference, paper_bound=published.paper_bound
            )
        errors = known.errors.get(metric)
        used = np.isin(self.sizes, found.sizes)
        return found.with_predictions(
            predicted=None if errors is None else found.slope_of(np.asarray(errors)[used]),
            sharp=known.sharp[metric],
            paper_reference=known.paper_reference,
            paper_bound=known.paper_bound,
        )

    def to_frame(self, raw: bool = False) -> pd.DataFrame:
        """Return a data frame, one row per scale and size, or per replicate too (``raw=True``)."""
        import pandas as pd

        scales, sizes, count = len(self.scales), len(self.sizes), len(self.replicates)
        if raw:
            columns: dict[str, Any] = {
                "alpha": np.repeat(self.scales, count * sizes),
                "horizon": np.repeat(self.horizons, count * sizes),
                "replicate": np.tile(np.repeat(self.replicates, sizes), scales),
                "n": np.tile(self.sizes, scales * count),
            }
            rows = pd.DataFrame(columns | {m: self.errors[m].ravel() for m in METRICS})
            return rows.dropna(ignore_index=True)
        columns = {
            "alpha": np.repeat(self.scales, sizes),
            "horizon": np.repeat(self.horizons, sizes),
            "n": np.tile(self.sizes, scales),
            "replicates": np.tile(self.counts, scales),
        }
        for metric in METRICS:
            columns[metric] = self.mean(metric).ravel()
            columns[f"{metric}_median"] = self.median(metric).ravel()
            columns[f"{metric}_standard_error"] = self.standard_error(metric).ravel()
        return pd.DataFrame(columns)

    def to_dict(self, fits: bool = True) -> dict[str, Any]:
        """Return configuration and summaries as plain numbers, lists and strings (JSON-safe).

        Parameters
        ----------
        fits
            Whether to fit exponents, which may take seconds.
        """
        scales = []
        for s, (alpha, horizon) in enumerate(zip(self.scales, self.horizons, strict=True)):
            entry: dict[str, Any] = {"alpha": float(alpha), "horizon": float(horizon)}
            for metric in METRICS:
                entry[metric] = {
                    "mean": _plain(self.mean(metric)[s]),
                    "median": _plain(self.median(metric)[s]),
                    "standard_error": _plain(self.standard_error(metric)[s]),
                }
            if fits and len(self.sizes) > 1 and len(self.replicates):
                entry["fit"] = {metric: self.rate(metric, s).to_dict() for metric in METRICS}
            scales.append(entry)
        return {
            "sizes": list(self.configuration["sizes"]),
            "replicates": len(self.replicates),
            "replicates_at_size": self.counts.tolist(),
            "complete": self.complete,
            "seed": self.seed,
            "queries": self.queries,
            "scales": scales,
            "configuration": self.configuration,
            "versions": self.versions,
            "notes": list(self.notes),
        }

    def __repr__(self) -> str:
        table = self.to_frame()[["alpha", "horizon", "n", *METRICS]]
        rows = [self._headline(), table.to_string(index=False, float_format="{:.4g}".format)]
        return "\n".join(rows + [f"Note: {note}." for note in self.notes])

    def _repr_html_(self) -> str:
        table = self.to_frame().to_html(index=False, float_format="{:.4g}".format)
        return f"<p>{html.escape(self._headline())}</p>{table}"

    def _headline(self) -> str:
        head = self.configuration["head"]
        law = head["law"] or head["kind"]
        state = "" if self.complete else ", not complete"
        return (
            f"Mean errors over {len(self.replicates)} replicates{state}: {law}, "
            f"d = {head['key_dim']}, queries: {self.queries}, seed {self.seed}"
        )


def _plain(row: Array) -> list[float | None]:
    return [float(value) if np.isfinite(value) else None for value in row]
