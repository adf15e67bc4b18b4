"""From cells to the result: passages as one, fitted rates, failure signatures, the headline."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import numpy as np
from msgspec import structs

from esscher.core.codec import Record
from esscher.core.shown import counted
from esscher.core.validation import Array
from esscher.engine.sampled.layer import METRICS, LayerMeasurement
from esscher.math.statistics import Rate, fit_rate
from esscher.math.statistics.records import ByMetric, FittedRate
from esscher.math.tails.records import Cloud
from esscher.math.tails.verdict import HEAVY, judge
from esscher.runs.cells import Cell, CellRun
from esscher.studies.probe.cells import LayerFound, read_cell
from esscher.studies.probe.records import (
    Curves,
    ErrorSummary,
    Flag,
    HeadStatistics,
    KeyTails,
    MeanAndCovariance,
    ProbeHead,
    ProbeLayer,
    ReferenceQuality,
)
from esscher.studies.probe.result import CLOSE, PARAMETRIC, Probe
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
        rates = fit_unit(measured, units, None, study.seed)
        layers.append(
            ProbeLayer(
                layer=layer,
                fit=_records(rates),
                curve=_curves(measured, units),
                heads_together=heads_together(measured, own, rates, study.seed),
            )
        )
        heads += own
    sizes = study.sizes if heads else ()
    return Probe.of(
        run, study, len(cells), headline(heads),
        sizes=sizes, heads=tuple(heads), layers=tuple(layers),
    )  # fmt: skip


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
    return LayerFound(measured, tuple(average(same) for same in stats))


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
    measured, stats = found.measured, found.stats[h]
    fits = _records(fit_unit(measured, h, stats, seed))
    tails = None if stats.tails is None else _judged(stats.tails)
    reference = _reference(measured, h)
    fields = structs.asdict(stats) | {"tails": tails}
    return ProbeHead(
        layer=measured.layer,
        head=measured.heads[h],
        fit=fits,
        curve=_curves(measured, h),
        reference=reference,
        flags=find_flags(stats, tails, fits.mean, measured.sizes[-1], reference.largest_share),
        **fields,
    )


def _judged(cloud: Cloud) -> KeyTails:
    return KeyTails(**structs.asdict(cloud), **structs.asdict(judge(cloud)))


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
                predicted=predicted.range.map if metric == "map" else predicted.khat,
                sharp=predicted.sharp[metric],
                paper_reference=predicted.paper_reference,
                paper_bound=predicted.paper_bound,
            )
        rates[metric] = rate
    return rates


def _records(rates: Mapping[str, Rate]) -> ByMetric[FittedRate]:
    return ByMetric(**{metric: rate.record() for metric, rate in rates.items()})


def _reference(measured: LayerMeasurement, unit: int) -> ReferenceQuality:
    used = measured.reference
    mean, cov = float(measured.reference_error[unit]), None if used is None else used.cov_error

    def share(metric: str, error: float) -> float:
        smallest = float(measured.errors[METRICS.index(metric), unit, :, -1].mean())
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


def headline(heads: Sequence[ProbeHead]) -> str:
    """The answer in one sentence or two."""
    if not heads:
        return "Nothing has been measured yet."
    count = len(heads)
    others = [head for head in heads if not _parametric(head.fit.mean)]
    explained = sum(bool(head.flags) for head in others)
    needed = [head.tokens_for.percent_10 for head in heads]
    most = sum(n is None or n > 10_000 for n in needed)
    known = [n for n in needed if n is not None]
    typical = f"{np.median(known):,.0f}" if known else "more than 100,000,000"
    many = count - len(others)
    output, verb = ("output", "converges") if many == 1 else ("outputs", "converge")
    sentence = f"The mean {output} of {many} of {counted(count, 'head')} {verb} like 1/sqrt(n)"
    if others:
        sentence += f"; of the other {len(others)}, flags explain {explained}"
    return (
        f"{sentence}. A typical head needs {typical} tokens for 10% output error; "
        f"{most} of {count} {'needs' if most == 1 else 'need'} more than 10,000."
    )


def _parametric(fit: FittedRate) -> bool:
    low, high = fit.interval
    inside = low is not None and high is not None and low <= PARAMETRIC <= high
    return inside or abs(fit.exponent - PARAMETRIC) <= CLOSE


#: Effective tokens of the median query below which a head is called hardmax-like.
HARD = 4.0
#: Share of queries past freezing, of attention in sinks, and of reference error in the smallest
#: measured error, from which each is worth a flag.
FROZEN, SINKS, REFERENCE = 0.1, 0.3, 0.2


def find_flags(
    stats: HeadStatistics,
    tails: KeyTails | None,
    mean: FittedRate,
    largest: int,
    reference_share: float,
) -> tuple[Flag, ...]:
    """Flags of a head.

    Parameters
    ----------
    stats, tails
        What one pass says about the head, and the tails of its keys.
    mean
        Fitted rate of the mean output.
    largest
        Largest size n.
    reference_share
        Standard error of the reference over the error measured at the largest size.
    """
    flags = []

    def add(flag: str, evidence: str) -> None:
        flags.append(Flag(flag=flag, evidence=evidence))

    if stats.horizon > 1:
        add("horizon", f"H = {stats.horizon:.2f} > 1: stable regime, exponent below 1/2")
    if stats.log_burn_in > np.log(largest):
        add(
            "burn-in",
            f"F^2 + tau^2 = {stats.log_burn_in:.1f} exceeds ln n_max = {np.log(largest):.1f}: "
            "no asymptotic exponent shows on this range",
        )
    if stats.ess.median < HARD:
        add("hardmax", f"the median query attends {stats.ess.median:.1f} tokens")
    if stats.frozen_share > FROZEN:
        add("frozen", f"{stats.frozen_share:.0%} of the queries are past freezing at n = {largest}")
    if tails is not None and tails.verdict in HEAVY:
        add("heavy tails", f"{tails.verdict}: {tails.evidence}")
    mass = stats.sinks.share + stats.delimiter_share
    if mass > SINKS:
        add("sinks", f"{mass:.0%} of the attention goes to sinks and delimiters")
    k = stats.khat.k
    if k >= 1:
        add("k-hat", f"k-hat = {k:.2f} >= 1 without sinks: no useful limit")
    elif k > 0.5:
        low, high = stats.khat.interval
        add(
            "slow tail",
            f"k-hat = {k:.2f} ({low:.2f} to {high:.2f}) > 1/2: a few tokens "
            "receive so much attention that the exponent of the mean is below 1/2",
        )
    if reference_share > REFERENCE:
        add(
            "reference",
            f"the reference's own error is {reference_share:.0%} of the smallest error measured",
        )
    if mean.law != "power":
        add("law", f"the error of the mean follows a {mean.law} law, not a power law")
    elif not mean.trusted:
        add("fit", f"exponent of the mean: {'; '.join(mean.reasons)}")
    return tuple(flags)
