"""The result: errors at every scale and size, how fast they fall, and what theory says."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any, Self

import numpy as np
from msgspec import structs

from esscher.core.codec import Count, Record
from esscher.core.errors import InputError
from esscher.core.shown import between, two_digits
from esscher.core.validation import Array, as_sizes
from esscher.math.statistics import LEVEL, Rate, fit_rate, joint_law
from esscher.math.statistics.joint import SharedLaw, untested_law
from esscher.math.statistics.records import ByMetric, Numbers, finite_numbers
from esscher.math.theory import exponents
from esscher.runs.provenance import versions
from esscher.runs.result import NOT_STORED, Result
from esscher.studies.sweep.measure import METRICS, replicate_errors, stored_notes
from esscher.studies.sweep.predictions import ScalePrediction, stored_predictions
from esscher.studies.sweep.schedule import Schedule

if TYPE_CHECKING:
    import pandas as pd
    import xarray

    from esscher.runs.folder import Cell, CellRun
    from esscher.studies.sweep.study import SweepStudy


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
        Fitted rates; None if they are not stored. :meth:`Sweep.fit` fits them if need be.
    joint
        The law of all three errors together; None if it is not stored. See
        :meth:`Sweep.joint_law`.
    """

    alpha: float
    horizon: float
    mean: Summary
    cov: Summary
    map: Summary
    fit: ByMetric[Rate] | None = None
    joint: SharedLaw | None = None


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
    _joint: dict[int, SharedLaw] = field(default_factory=dict, metadata=NOT_STORED)

    @property
    def alphas(self) -> Array:
        """Multipliers of the head's tilts."""
        return np.array([scale.alpha for scale in self.scales])

    @property
    def horizons(self) -> Array:
        """Attention horizon at each scale."""
        return np.array([scale.horizon for scale in self.scales])

    @property
    def errors(self) -> dict[str, Array]:
        """Raw errors by metric: see :meth:`raw`."""
        return {metric: self.raw(metric) for metric in METRICS}

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
        errors = self.raw(metric)
        place = self._place(scale)
        key = metric, place, summary, level
        if key not in self._fitted:
            known = self.predictions[place] if self.predictions else None
            self._fitted[key] = compared_rate(
                errors[place],
                self.sizes,
                metric,
                self.scales[place].horizon,
                known,
                summary=summary,
                level=level,
                seed=self.seed,
            )
        return self._fitted[key]

    def fit(self, metric: str = "mean", scale: int | None = None) -> Rate:
        """Return the record of a fitted rate: the stored one, or that of :meth:`rate`."""
        _check(metric)
        stored = self.scales[self._place(scale)].fit
        return self.rate(metric, scale) if stored is None else stored[metric]

    def joint_law(self, scale: int | None = None) -> SharedLaw:
        """Return what the three errors of a scale, tested together, say about their law."""
        place = self._place(scale)
        stored = self.scales[place].joint
        if stored is not None:
            return stored
        if self._raw is None:  # a file of an earlier version
            return untested_law(METRICS, "this result was read from a file without raw errors")
        if place not in self._joint:
            known = self.predictions[place] if self.predictions else None
            errors = {metric: self.raw(metric)[place] for metric in METRICS}
            self._joint[place] = shared_law(errors, self.sizes, known, self.seed)
        return self._joint[place]

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
                fit=ByMetric(**{metric: self.fit(metric, s) for metric in METRICS}),
                joint=self.joint_law(s),
            )
            for s, scale in enumerate(self.scales)
        )
        return super(Sweep, replace(self, scales=scales)).to_dict()

    def answer(self) -> str:
        """Say how fast the error of the mean output falls, at the smallest and largest scale."""
        if not self.has_fits:
            return self.headline
        order = sorted(range(len(self.scales)), key=lambda s: self.scales[s].horizon)
        return " ".join(self._falls(s) for s in dict.fromkeys((order[0], order[-1])))

    def _falls(self, s: int) -> str:
        fit, scale = self.fit("mean", s), self.scales[s]
        last = scale.mean.mean[-1]
        predicted = "" if fit.predicted is None else f", predicted {two_digits(fit.predicted)}"
        return (
            f"At H = {scale.horizon:.3g} the error of the mean output falls with exponent "
            f"{between(fit.exponent, fit.interval)}{predicted}"
            + ("" if last is None else f"; it is {two_digits(last)} at n = {self.sizes[-1]:,}")
            + f".{'' if fit.trusted else self._doubt(s)}"
        )

    def _doubt(self, s: int) -> str:
        """Why an exponent is not to be trusted, if it can be said in a few words."""
        burn_in = self.predictions[s].log_burn_in if self.predictions else -math.inf
        if burn_in > math.log(self.sizes[-1]):
            needed = two_digits(math.exp(burn_in)) if burn_in < 34 else f"e^{burn_in:.0f}"
            return f" n is too small to see the asymptotic rate: that takes about {needed} tokens."
        return " The exponent is not to be trusted: see *."

    def with_cells(self, cells: Mapping[str, Cell], run: CellRun) -> Self:
        """Return the result with the raw errors."""
        found = replicate_errors(cells, self.study, run)
        return replace(self, numbers=tuple(found), _raw=_stacked(found, self.study))

    def __repr__(self) -> str:
        return "\n".join([super().__repr__(), *(f"Note: {note}." for note in self.notes)])


def assemble(study: SweepStudy, cells: Mapping[str, Cell], run: CellRun) -> Sweep:
    """Sum up the replicates that are there."""
    as_sizes(study.sizes, f"{run.folder}: sizes", smallest=1)
    found = replicate_errors(cells, study, run)
    schedule = Schedule(study, run.folder)
    complete = True
    while complete and (batch := schedule.next_batch(found)) is not None:
        complete = all(replicate in found for replicate in range(batch.start, batch.stop))
    notes = stored_notes(run) + (schedule.notes if complete else ())
    made_by = [cell.about.versions for cell in cells.values()] or [versions()]
    if any(other != made_by[0] for other in made_by):
        notes += ("replicates were measured by different versions of the software",)
    errors = _stacked(found, study)
    head, state = study.head_record, "" if complete else ", not complete"
    headline = (
        f"Mean errors over {len(found)} replicates{state}: {head.tokens}, d = {head.key_dim}, "
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
        replicates=len(found),
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
        numbers=tuple(found),
        _raw=errors,
    )


def _stacked(found: Mapping[int, Array], study: SweepStudy) -> Array:
    """Errors with axes [metric, scale, replicate, size]."""
    if found:
        return np.stack(list(found.values()), axis=2)
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


def compared_rate(
    errors: Array,
    sizes: Sequence[int],
    metric: str,
    horizon: float,
    known: ScalePrediction | None,
    *,
    summary: str,
    level: float,
    seed: int,
) -> Rate:
    """Fit a rate and put it beside what theory says.

    Predicted curves are those of the mean error: a median is compared with their slope alone.
    """
    if known is None:
        found = fit_rate(errors, sizes, summary=summary, level=level, seed=seed)
        published = exponents(horizon)
        return structs.replace(
            found, paper_reference=published.paper_reference, paper_bound=published.paper_bound
        )
    curve = known.errors.get(metric)
    found = fit_rate(
        errors,
        sizes,
        summary=summary,
        level=level,
        seed=seed,
        burn_in=float(np.exp(min(known.log_burn_in, 700.0))),
        predicted=curve if summary == "mean" else None,
    )
    used = np.isin(sizes, found.sizes)
    return structs.replace(
        found,
        predicted_curve=known.curve(metric, sizes),
        predicted=None if curve is None else found.slope_of(np.asarray(curve)[used]),
        sharp=known.sharp[metric],
        paper_reference=known.paper_reference,
        paper_bound=known.paper_bound,
    )


def shared_law(
    errors: Mapping[str, Array], sizes: Sequence[int], known: ScalePrediction | None, seed: int
) -> SharedLaw:
    """Test the errors of one scale together, against their predictions too if there are any."""
    return joint_law(errors, sizes, seed=seed, predicted=None if known is None else known.errors)
