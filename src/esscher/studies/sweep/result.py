"""The result: errors at every scale and size, how fast they fall, and what theory says."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any, Self

import numpy as np
from msgspec import structs

from esscher.core.codec import Count, Record
from esscher.core.errors import InputError
from esscher.core.shown import between, two_digits
from esscher.core.validation import Array, as_sizes
from esscher.math.statistics import LEVEL, Rate, fit_rate
from esscher.math.statistics.records import ByMetric, Numbers, finite_numbers
from esscher.math.theory import exponents
from esscher.runs.old_result import NOT_STORED, Result
from esscher.studies.sweep.measure import LIMIT, METRICS, Limit, replicate_errors
from esscher.studies.sweep.predictions import ScalePrediction, stored_predictions
from esscher.studies.sweep.schedule import Schedule

if TYPE_CHECKING:
    import pandas as pd
    import xarray

    from esscher.runs.folder import Cell, CellRun
    from esscher.studies.sweep.study import SweepStudy


#: Names of the errors.
TITLES = {"mean": "mean output", "cov": "covariance", "map": "map (rms)"}
#: Numbers of a fitted rate that the table of exponents has.
FITTED = (
    *("exponent", "constant", "predicted", "sharp", "paper_reference", "paper_bound"),
    *("law", "trusted"),
)


class Summary(Record, frozen=True, kw_only=True):
    """Errors over the replicates, one number per size; None where there are too few."""

    mean: Numbers
    median: Numbers
    standard_error: Numbers


class SweepScale(Record, frozen=True, kw_only=True, omit_defaults=True):
    """Errors at one scale.

    Attributes
    ----------
    alpha, horizon
        The scale, and the horizon there.
    mean, cov, map
        Errors of the mean output, of its covariance (Frobenius norm) and of the map (root mean
        square over queries).
    fit
        Fitted rates; None if they are not stored. :meth:`Sweep.rate` fits them if need be.
    """

    alpha: float
    horizon: float
    mean: Summary
    cov: Summary
    map: Summary
    fit: ByMetric[Rate] | None = None


@dataclass(frozen=True, eq=False, repr=False, kw_only=True)
class Sweep(Result["SweepStudy"]):
    """Errors of attention over n tokens, measured on independent replicates.

    Attributes
    ----------
    law
        Law of the tokens, if there is one.
    sizes
        Numbers of tokens.
    replicates, replicates_at_size
        How many there are, in all and at each size.
    seed, queries
        Seed of the random streams; ``"tokens"`` or ``"population"``.
    scales
        Errors and fits, one entry per scale.
    notes
        What a reader must know.
    predictions
        What theory says about these sizes, one entry per scale; None unless asked for.
    numbers
        Numbers of the replicates, in increasing order; 0, 1, 2, ... once a sweep is complete.
    """

    law: str | None
    sizes: tuple[Count, ...]
    replicates: Count
    replicates_at_size: tuple[Count, ...]
    seed: Count
    queries: str
    scales: tuple[SweepScale, ...]
    notes: tuple[str, ...]
    predictions: tuple[ScalePrediction, ...] | None
    numbers: tuple[int, ...] = field(default=(), metadata=NOT_STORED)
    _raw: Array | None = field(default=None, metadata=NOT_STORED)
    _fitted: dict[tuple[Any, ...], Rate] = field(default_factory=dict, metadata=NOT_STORED)

    @property
    def alphas(self) -> Array:
        """Multipliers of the head's tilts."""
        return np.array([scale.alpha for scale in self.scales])

    @property
    def horizons(self) -> Array:
        """Attention horizon at each scale."""
        return np.array([scale.horizon for scale in self.scales])

    def raw(self, metric: str) -> Array:
        """Return the raw errors of a metric, axes [scale, replicate, size].

        They are ``nan`` at the sizes above the last of a replicate that a precision made end early.

        Raises
        ------
        InputError
            For another metric, or a result from a file: raw errors are in the run alone.
        """
        _check(metric)
        if self._raw is None:
            raise InputError(
                "this result was read from a file, without its raw errors; load the directory of "
                "the run"
            )
        return np.asarray(self._raw[METRICS.index(metric)])

    def mean(self, metric: str) -> Array:
        """Return the mean over the replicates, axes [scale, size]; ``nan`` without replicates."""
        return self._summaries(metric, "mean")

    def median(self, metric: str) -> Array:
        """Return the median: worth more than the mean where tails are heavy (H > 1)."""
        return self._summaries(metric, "median")

    def standard_error(self, metric: str) -> Array:
        """Return the standard error of the mean; ``nan`` for fewer than 2 replicates."""
        return self._summaries(metric, "standard_error")

    def _summaries(self, metric: str, name: str) -> Array:
        _check(metric)
        rows = [getattr(getattr(scale, metric), name) for scale in self.scales]
        return np.array(rows, dtype=np.float64)

    def rate(
        self,
        metric: str = "mean",
        scale: int | None = None,
        *,
        level: float = LEVEL,
    ) -> Rate:
        """Fit error ~ C n^-beta to one metric at one scale.

        Parameters
        ----------
        metric
            ``"mean"``, ``"cov"`` or ``"map"``.
        scale
            Place of the scale in ``scales``; may be left out if there is only one.
        level
            Level of the intervals, which come from resampling replicates.

        Returns
        -------
        Rate
            With the published exponents beside it and, if the sweep was made with
            ``predict=True``, the one predicted on the same sizes.
        """
        _check(metric)
        place = self._place(scale)
        stored, key = self.scales[place].fit, (metric, place, level)
        if stored is not None and level == LEVEL:
            return stored[metric]
        if key in self._fitted:
            return self._fitted[key]
        errors = self.raw(metric)[place]
        options: dict[str, Any] = {"level": level, "seed": self.seed}
        if not self.predictions:
            published = exponents(self.scales[place].horizon)
            rate = structs.replace(
                fit_rate(errors, self.sizes, **options),
                paper_reference=published.paper_reference,
                paper_bound=published.paper_bound,
            )
        else:
            known = self.predictions[place]
            curve = known.errors.get(metric)
            options["predicted"] = curve
            options["burn_in"] = float(np.exp(min(known.log_burn_in, 700.0)))
            rate = fit_rate(errors, self.sizes, **options)
            used = np.isin(self.sizes, rate.sizes)
            rate = structs.replace(
                rate,
                predicted_curve=known.curve(metric, self.sizes),
                predicted=None if curve is None else rate.slope_of(np.asarray(curve)[used]),
                sharp=known.sharp[metric],
                paper_reference=known.paper_reference,
                paper_bound=known.paper_bound,
            )
        self._fitted[key] = rate
        return rate

    @property
    def has_fits(self) -> bool:
        """Whether there is a rate to fit: it takes a replicate and two sizes."""
        return self.replicates > 0 and len(self.sizes) > 1

    def _place(self, scale: int | None) -> int:
        last = len(self.scales) - 1
        if scale is None and last > 0:
            raise InputError(f"there are {last + 1} scales; say which one with scale=0 to {last}")
        place = 0 if scale is None else int(scale)
        if not 0 <= place <= last:
            raise InputError(f"scale is {scale!r}; it must be 0 to {last}")
        return place

    def table(self, raw: bool = False) -> pd.DataFrame:
        """Return a data frame, one row per scale and size, or per replicate too (``raw=True``)."""
        import pandas as pd

        scales, sizes, count = len(self.scales), len(self.sizes), len(self.numbers)
        n = np.asarray(self.sizes, dtype=np.float64)
        if raw:
            columns: dict[str, Any] = {
                "alpha": np.repeat(self.alphas, count * sizes),
                "horizon": np.repeat(self.horizons, count * sizes),
                "replicate": np.tile(np.repeat(self.numbers, sizes), scales),
                "n": np.tile(n, scales * count),
            }
            rows = pd.DataFrame(columns | {m: self.raw(m).ravel() for m in METRICS})
            return rows.dropna(ignore_index=True)
        columns = {
            "alpha": np.repeat(self.alphas, sizes),
            "horizon": np.repeat(self.horizons, sizes),
            "n": np.tile(n, scales),
            "replicates": np.tile(self.replicates_at_size, scales),
        }
        for metric in METRICS:
            columns[metric] = self.mean(metric).ravel()
            columns[f"{metric}_median"] = self.median(metric).ravel()
            columns[f"{metric}_standard_error"] = self.standard_error(metric).ravel()
        return pd.DataFrame(columns)

    def exponents_table(self) -> pd.DataFrame:
        """Return a data frame of fitted rates, one row per scale and metric; none with one size.

        ``floor_share`` is the largest floor that is not excluded (95%), as a share of the error at
        the largest size, and ``floor_power`` how often the test finds a floor of half of that
        error: against the predicted curve where that decides. ``settled`` says whether the exponent
        may be taken beyond the sizes: trusted, and a power law is decided.
        """
        import pandas as pd

        rows = []
        for s, scale in enumerate(self.scales if self.has_fits else ()):
            for metric in METRICS:
                fit = self.rate(metric, s)
                law = fit.selection
                floor_share, floor_power = law.floor_share, law.power.get("floor")
                if law.verdict == "as predicted" and law.predicted is not None:
                    floor_share, floor_power = law.predicted.floor_share, law.predicted.floor_power
                row = {"alpha": scale.alpha, "horizon": scale.horizon, "metric": metric}
                row |= {name: getattr(fit, name) for name in FITTED}
                row["low"], row["high"] = fit.interval
                row["constant_low"], row["constant_high"] = fit.constant_interval
                row |= {"floor_share": floor_share, "floor_power": floor_power}
                row |= {"verdict": law.verdict, "reasons": "; ".join(fit.reasons)}
                rows.append(row | {"settled": fit.trusted and law.verdict == "power"})
        return pd.DataFrame(rows)

    def shown(self) -> list[pd.DataFrame]:
        """Return the mean errors."""
        return [self.table()[["alpha", "horizon", "n", *METRICS]]]

    def to_xarray(self) -> xarray.Dataset:
        """Return the raw errors as a labelled dataset along ``alpha``, ``replicate`` and ``n``."""
        import xarray

        axes = "alpha", "replicate", "n"
        return xarray.Dataset(
            {metric: (axes, self.raw(metric)) for metric in METRICS},
            coords={
                "alpha": self.alphas,
                "horizon": ("alpha", self.horizons),
                "replicate": list(self.numbers),
                "n": list(self.sizes),
            },
            attrs={"headline": self.headline, "seed": self.seed, "queries": self.queries},
        )

    def to_dict(self) -> dict[str, Any]:
        """Return all but raw errors as plain numbers, lists and strings; rates are fitted."""
        if not self.has_fits or self._raw is None:
            return super().to_dict()
        scales = tuple(
            structs.replace(
                scale,
                fit=ByMetric(**{metric: self.rate(metric, s) for metric in METRICS}),
            )
            for s, scale in enumerate(self.scales)
        )
        return super(Sweep, replace(self, scales=scales)).to_dict()

    def answer(self) -> str:
        """Say how fast the error of the mean output falls, at the smallest and largest scale."""
        if not self.has_fits:
            return self.headline
        order = sorted(range(len(self.scales)), key=lambda s: self.scales[s].horizon)
        sentences = []
        for s in dict.fromkeys((order[0], order[-1])):
            fit, scale, largest = self.rate("mean", s), self.scales[s], self.sizes[-1]
            text = (
                f"At H = {scale.horizon:.3g} the error of the mean output falls with exponent "
                f"{between(fit.exponent, fit.interval)}"
            )
            if fit.predicted is not None:
                text += f", predicted {two_digits(fit.predicted)}"
            if scale.mean.mean[-1] is not None:
                text += f"; it is {two_digits(scale.mean.mean[-1])} at n = {largest:,}"
            sentences.append(f"{text}.")
            burn_in = self.predictions[s].log_burn_in if self.predictions else -math.inf
            if not fit.trusted and burn_in > math.log(largest):
                needed = two_digits(math.exp(burn_in)) if burn_in < 34 else f"e^{burn_in:.0f}"
                sentences.append(
                    f"n is too small to see the asymptotic rate: that takes about {needed} tokens."
                )
            elif not fit.trusted:
                sentences.append("The exponent is not to be trusted: see *.")
        return " ".join(sentences)

    def with_cells(self, cells: Mapping[str, Cell], run: CellRun) -> Self:
        """Return the result with the raw errors."""
        errors = replicate_errors(cells, self.study, run)
        return replace(self, numbers=tuple(errors), _raw=_stacked(errors, self.study))

    def __repr__(self) -> str:
        return "\n".join([super().__repr__(), *(f"Note: {note}." for note in self.notes)])


def assemble(study: SweepStudy, cells: Mapping[str, Cell], run: CellRun) -> Sweep:
    """Sum up the replicates that are there."""
    as_sizes(study.sizes, f"{run.folder}: sizes", smallest=1)
    replicates = replicate_errors(cells, study, run)
    schedule, complete = Schedule(study, run.folder), True
    while complete and (batch := schedule.next_batch(replicates)) is not None:
        complete = all(number in replicates for number in range(batch.start, batch.stop))
    limit = run.read(LIMIT)
    notes = limit.about.notes if limit is not None and isinstance(limit.about, Limit) else ()
    notes += schedule.notes if complete else ()
    if len({repr(cell.about.versions) for cell in cells.values()}) > 1:
        notes += ("replicates were measured by different versions of the software",)
    errors = _stacked(replicates, study)
    head, state = study.head_record, "" if complete else ", not complete"
    headline = (
        f"Mean errors over {len(replicates)} replicates{state}: {head.tokens}, d = {head.key_dim}, "
        f"queries: {study.queries}, seed {study.seed}"
    )
    counts = np.isfinite(errors[0, 0]).sum(axis=0)
    return Sweep.of(
        run,
        study,
        len(cells),
        headline,
        complete,
        law=head.law,
        sizes=study.sizes,
        replicates=len(replicates),
        replicates_at_size=tuple(counts.tolist()),
        seed=study.seed,
        queries=study.queries,
        scales=tuple(
            SweepScale(
                alpha=alpha,
                horizon=alpha * head.horizon,
                mean=_summary(errors[0, s], counts),
                cov=_summary(errors[1, s], counts),
                map=_summary(errors[2, s], counts),
            )
            for s, alpha in enumerate(study.alpha)
        ),
        notes=notes,
        predictions=stored_predictions(run, study),
        numbers=tuple(replicates),
        _raw=errors,
    )


def _stacked(replicates: Mapping[int, Array], study: SweepStudy) -> Array:
    """Errors with axes [metric, scale, replicate, size]."""
    if replicates:
        return np.stack(list(replicates.values()), axis=2)
    return np.empty((len(METRICS), len(study.alpha), 0, len(study.sizes)))


def _summary(errors: Array, counts: Array) -> Summary:
    """Sum up errors with axes [replicate, size]."""
    blank = np.full(errors.shape[1], np.nan)
    count = len(errors)
    spread = np.nanstd(errors, axis=0, ddof=1) / np.sqrt(counts) if count > 1 else blank
    return Summary(
        mean=finite_numbers(np.nanmean(errors, axis=0) if count else blank),
        median=finite_numbers(np.nanmedian(errors, axis=0) if count else blank),
        standard_error=finite_numbers(spread),
    )


def _check(metric: str) -> None:
    if metric not in METRICS:
        raise InputError(f"metric is {metric!r}; it must be one of {', '.join(METRICS)}")
