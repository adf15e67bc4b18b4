"""From cells to the result: passages as one, fitted rates, flags, the headline."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import numpy as np
from msgspec import structs

from esscher.core.codec import Record
from esscher.core.validation import Array
from esscher.engine.sampled.layer import LayerMeasurement
from esscher.engine.sampled.sizes import METRICS
from esscher.math.statistics import Rate, fit_rate
from esscher.math.statistics.records import ByMetric, FittedRate
from esscher.runs.folder import Cell, CellRun
from esscher.studies.probe.cells import LayerFound, read_cell
from esscher.studies.probe.flags import with_flags
from esscher.studies.probe.headline import headline
from esscher.studies.probe.records import (
    Curves,
    ErrorSummary,
    HeadStatistics,
    MeanAndCovariance,
    PredictedError,
    ProbeHead,
    ProbeLayer,
    ReferenceQuality,
)
from esscher.studies.probe.result import Probe
from esscher.studies.probe.study import ProbeStudy
from esscher.studies.probe.together import heads_together


def assemble(study: ProbeStudy, cells: Mapping[str, Cell], run: CellRun) -> Probe:
    """Fit every head and layer."""
    by_layer: dict[int, list[LayerFound]] = {}
    for name, cell in cells.items():
        for part in read_cell(run, name, cell):
            by_layer.setdefault(part.measured.layer, []).append(part)
    heads: list[ProbeHead] = []
    layers: list[ProbeLayer] = []
    for layer in sorted(by_layer):
        found = combine(by_layer[layer])
        measured, units = found.measured, len(found.measured.heads)
        own = [_head(found, h, study.seed) for h in range(units)]
        layers.append(_layer(measured, own, study))
        heads += own
    heads = with_flags(heads)
    sizes = study.sizes if heads else ()
    return Probe.of(
        run, study, len(cells), headline(heads),
        sizes=sizes, heads=tuple(heads), layers=tuple(layers),
    )  # fmt: skip


def _layer(measured: LayerMeasurement, heads: list[ProbeHead], study: ProbeStudy) -> ProbeLayer:
    """Heads side by side, and together; nothing if nothing was sampled."""
    if study.predict:
        return ProbeLayer(layer=measured.layer, fit=None, curve=None, heads_together=None)
    rates = fit_unit(measured, len(measured.heads), None, study.seed)
    return ProbeLayer(
        layer=measured.layer,
        fit=_records(rates),
        curve=_curves(measured, len(measured.heads)),
        heads_together=heads_together(measured, heads, rates, study.seed),
    )


def combine(parts: Sequence[LayerFound]) -> LayerFound:
    """One measurement of a layer: replicates side by side, statistics averaged."""
    if len(parts) == 1:
        return parts[0]
    each = [part.measured for part in parts]
    first = each[0]
    measured = LayerMeasurement(
        layer=first.layer,
        heads=first.heads,
        sizes=first.sizes,
        errors=np.concatenate([m.errors for m in each], axis=2),
        relative=np.sqrt(np.mean([m.relative**2 for m in each], axis=0)),
        reference_error=np.sqrt(np.mean([m.reference_error**2 for m in each], axis=0)),
        products=_joined([m.products for m in each]),
    )
    stats = zip(*(part.stats for part in parts), strict=True)
    return LayerFound(measured, tuple(_averaged(same) for same in stats))


def _averaged(same: Sequence[HeadStatistics]) -> HeadStatistics:
    """The mean over passages; that of independent predictions has a smaller standard error."""
    mean: HeadStatistics = average(same)
    factor = len(same) ** -0.5

    def scaled(error: PredictedError) -> PredictedError:
        noise = error.exponent_error
        return structs.replace(
            error,
            standard_error=tuple(factor * x for x in error.standard_error),
            exponent_error=None if noise is None else factor * noise,
        )

    errors = {metric: scaled(mean.predicted_error[metric]) for metric in METRICS}
    return structs.replace(mean, predicted_error=ByMetric(**errors))


def _joined(products: Sequence[Array | None]) -> Array | None:
    present = [product for product in products if product is not None]
    return np.concatenate(present, axis=1) if len(present) == len(products) else None


def average(values: Sequence[Any]) -> Any:
    """Mean of numbers, entry by entry of records, dictionaries and tuples; else the first value.

    A number that is missing somewhere is missing, a truth value is that of the majority.
    """
    first = values[0]
    if any(value is None for value in values):
        return None
    if isinstance(first, Record):
        names = first.__struct_fields__
        return type(first)(**{name: average([getattr(v, name) for v in values]) for name in names})
    if isinstance(first, dict):
        return {key: average([value[key] for value in values]) for key in first}
    if isinstance(first, bool):
        return sum(values) * 2 > len(values)
    if isinstance(first, int | float):
        return float(np.mean(values))
    if isinstance(first, tuple) and first and all(isinstance(x, Record | tuple) for x in first):
        # as far as all of them go: passages may differ in the number of thresholds
        return tuple(average(entries) for entries in zip(*values, strict=False))
    numeric = isinstance(first, tuple) and all(isinstance(x, int | float) for x in first)
    if numeric and all(len(value) == len(first) for value in values):
        return tuple(average(entries) for entries in zip(*values, strict=True))
    return first


def _head(found: LayerFound, h: int, seed: int) -> ProbeHead:
    """A head, as yet without flags: those depend on all heads."""
    measured, stats = found.measured, found.stats[h]
    sampled = measured.errors.shape[2] > 0
    return ProbeHead(
        layer=measured.layer,
        head=measured.heads[h],
        fit=_records(fit_unit(measured, h, stats, seed)) if sampled else None,
        curve=_curves(measured, h) if sampled else None,
        reference=_reference(measured, h),
        flags=(),
        **structs.asdict(stats),
    )


def fit_unit(
    measured: LayerMeasurement, unit: int, stats: HeadStatistics | None, seed: int
) -> dict[str, Rate]:
    """Fitted rates of a head or of the whole layer, with what was predicted for them."""
    rates = {}
    for m, metric in enumerate(METRICS):
        errors = measured.errors[m, unit]
        rate = fit_rate(errors, np.asarray(measured.sizes, dtype=np.float64), seed=seed)
        if stats is not None:
            predicted = stats.predicted
            rate = rate.with_predictions(
                predicted=_slope(rate, measured, stats.predicted_error[metric]),
                sharp=predicted.sharp[metric],
                paper_reference=predicted.paper_reference,
                paper_bound=predicted.paper_bound,
            )
        rates[metric] = rate
    return rates


def _slope(rate: Rate, measured: LayerMeasurement, predicted: PredictedError) -> float | None:
    """Exponent of the predicted curve with the weights of the fit: curves bend."""
    used = np.isin(np.asarray(measured.sizes, dtype=np.float64), rate.sizes)
    errors = np.asarray(predicted.error)[used]
    return rate.slope_of(errors) if np.all(errors > 0) else predicted.exponent


def _records(rates: Mapping[str, Rate]) -> ByMetric[FittedRate]:
    return ByMetric(**{metric: rate.record() for metric, rate in rates.items()})


def _reference(measured: LayerMeasurement, unit: int) -> ReferenceQuality:
    used = measured.reference
    mean, cov = float(measured.reference_error[unit]), None if used is None else used.cov_error

    def share(metric: str, error: float) -> float:
        errors = measured.errors[METRICS.index(metric), unit, :, -1]
        smallest = float(errors.mean()) if errors.size else 0.0
        return error / smallest if smallest > 0 else 0.0

    return ReferenceQuality(
        queries=None if used is None else used.queries,
        coarse_keys=None if used is None else used.coarse_keys,
        standard_error=MeanAndCovariance(mean=mean, cov=None if cov is None else cov[unit]),
        share=MeanAndCovariance(
            mean=share("mean", mean), cov=None if cov is None else share("cov", cov[unit])
        ),
    )


def _curves(measured: LayerMeasurement, unit: int) -> Curves:
    def summary(errors: Array) -> ErrorSummary:
        count = len(errors)
        spread = errors.std(axis=0, ddof=1) / np.sqrt(count) if count > 1 else None
        return ErrorSummary(
            mean=_numbers(errors.mean(axis=0)),
            median=_numbers(np.median(errors, axis=0)),
            standard_error=None if spread is None else _numbers(spread),
        )

    each = {metric: summary(measured.errors[m, unit]) for m, metric in enumerate(METRICS)}
    return Curves(norm=float(measured.relative[unit]), **each)


def _numbers(values: Iterable[float]) -> tuple[float, ...]:
    return tuple(float(value) for value in values)
