"""From cells to the result: passages as one, fitted rates, flags, the headline."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import pandas as pd
import scipy
from msgspec import structs

from esscher.core.codec import Record
from esscher.core.shown import counted, rates_said, two_digits
from esscher.core.validation import Array
from esscher.engine.sampled.layer import PRODUCTS, LayerMeasurement
from esscher.engine.sampled.sizes import METRICS
from esscher.math.statistics import Rate, fit_rate
from esscher.math.statistics.intervals import family_wise
from esscher.math.statistics.records import ByMetric, class_counts
from esscher.math.theory.cloud import EFFORT
from esscher.runs.folder import Cell, CellRun
from esscher.studies.probe.result import (
    LARGE,
    Curves,
    ErrorSummary,
    Flag,
    HeadStatistics,
    LayerPart,
    MeanAndCovariance,
    PredictedError,
    Probe,
    ProbeCell,
    ProbeHead,
    ProbeLayer,
    ReferenceQuality,
)
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
        run,
        study,
        len(cells),
        headline(heads),
        sizes=sizes,
        heads=tuple(heads),
        layers=tuple(layers),
    )


def _layer(measured: LayerMeasurement, heads: list[ProbeHead], study: ProbeStudy) -> ProbeLayer:
    """Heads side by side, and together; nothing if nothing was sampled."""
    if study.predict:
        return ProbeLayer(layer=measured.layer, fit=None, curve=None, heads_together=None)
    rates = fit_unit(measured, len(measured.heads), None, study.seed)
    return ProbeLayer(
        layer=measured.layer,
        fit=ByMetric(**rates),
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
        fit=ByMetric(**fit_unit(measured, h, stats, seed)) if sampled else None,
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
            rate = structs.replace(
                rate,
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


# Cells. The table of a cell holds the raw errors (layer, unit, metric, replicate, n, error); then,
# as metrics "mean product" and "map product" of units such as "0 x 3", the inner products of the
# heads' errors behind the output projection.


@dataclass(frozen=True, eq=False)
class LayerFound:
    """Errors of a layer, and what one pass says about its heads."""

    measured: LayerMeasurement
    stats: tuple[HeadStatistics, ...]


def make_cell(layers: Sequence[LayerFound]) -> Cell:
    """Return what is stored of layers."""
    about = tuple(
        LayerPart(
            layer=m.layer,
            heads=m.heads,
            sizes=m.sizes,
            shape=m.errors.shape,
            relative=tuple(m.relative.tolist()),
            reference_error=tuple(m.reference_error.tolist()),
            reference=m.reference,
            stats=found.stats,
            products=m.products is not None,
        )
        for found in layers
        for m in [found.measured]
    )
    return Cell(ProbeCell(layers=about), _errors_table([found.measured for found in layers]))


def read_cell(run: CellRun, name: str, cell: Cell) -> list[LayerFound]:
    """Return the layers of a cell.

    Raises
    ------
    InputError
        If its table is not that of its layers.
    """
    about: ProbeCell = cell.about
    try:
        errors = cell.table["error"].to_numpy(dtype=np.float64)
        layers, start = [], 0
        for part in about.layers:
            found, start = _read_layer(part, errors, start)
            layers.append(found)
        if start != len(errors):
            raise ValueError(f"its table has {len(errors)} rows, not {start}")
    except (ValueError, LookupError, TypeError) as error:
        raise run.damaged(name, error) from error
    return layers


def _read_layer(part: LayerPart, errors: Array, start: int) -> tuple[LayerFound, int]:
    """A layer from the rows of a table that begin at ``start``, and where they end."""
    _, units, replicates, sizes = part.shape
    middle = end = start + math.prod(part.shape)
    products = None
    if part.products:
        products, end = _unfolded(errors, middle, units - 1, replicates, sizes)
    measured = LayerMeasurement(
        layer=part.layer,
        heads=part.heads,
        sizes=part.sizes,
        errors=errors[start:middle].reshape(part.shape),
        relative=np.asarray(part.relative),
        reference_error=np.asarray(part.reference_error),
        products=products,
        reference=part.reference,
    )
    return LayerFound(measured, part.stats), end


def _errors_table(layers: Sequence[LayerMeasurement]) -> pd.DataFrame:
    tables = []
    for m in layers:
        metric, unit, replicate, size = (axis.ravel() for axis in np.indices(m.errors.shape))
        names = np.array([*(str(head) for head in m.heads), "layer"])
        columns: dict[str, Any] = {
            "layer": np.full(m.errors.size, m.layer, dtype=np.int64),
            "unit": names[unit],
            "metric": np.array(METRICS)[metric],
            "replicate": replicate.astype(np.int64),
            "n": np.asarray(m.sizes, dtype=np.int64)[size],
            "error": m.errors.ravel(),
        }
        tables.append(pd.DataFrame(columns))
        if m.products is not None:
            tables.append(_products_table(m, m.products))
    return pd.concat(tables, ignore_index=True)


def _products_table(m: LayerMeasurement, products: Array) -> pd.DataFrame:
    """One row per pair of heads: the matrices are symmetric."""
    first, second = np.triu_indices(len(m.heads))
    folded = products[..., first, second]
    kind, replicate, size, pair = (axis.ravel() for axis in np.indices(folded.shape))
    names = np.array([f"{m.heads[i]} x {m.heads[j]}" for i, j in zip(first, second, strict=True)])
    return pd.DataFrame(
        {
            "layer": np.full(folded.size, m.layer, dtype=np.int64),
            "unit": names[pair],
            "metric": np.array([f"{name} product" for name in PRODUCTS])[kind],
            "replicate": replicate.astype(np.int64),
            "n": np.asarray(m.sizes, dtype=np.int64)[size],
            "error": folded.ravel(),
        }
    )


def _unfolded(
    values: Array, start: int, heads: int, replicates: int, sizes: int
) -> tuple[Array, int]:
    """Products [error, replicate, size, head, head] from the table, and where they end in it."""
    first, second = np.triu_indices(heads)
    shape = (len(PRODUCTS), replicates, sizes, len(first))
    end = start + math.prod(shape)
    folded = values[start:end].reshape(shape)
    products = np.empty((*shape[:3], heads, heads))
    products[..., first, second] = folded
    products[..., second, first] = folded
    return products, end


# Flags: what stands out at a head, for mean, covariance and map apart, with the evidence.
#
# A flag about an exponent is a statement about its interval, and there are as many statements as
# heads: p-values (Student's, so that few replicates decide little) are adjusted over all of them
# (Holm), so that with 95% probability not one flag of a kind is false. How often those that one
# pass gives are right has been measured (documentation, "Flags against measurements").

#: Names of the errors in flags.
WORDS = {"mean": "mean", "cov": "covariance", "map": "map"}
#: Level of the flags.
ALPHA = 0.05
#: Errors whose predicted exponents are flagged. That of the covariance was not worth it: it was
#: raised at 10 of 75 heads that were measured to be slow.
PREDICTED = ("mean", "map")
#: Predicted exponents below this are slow: 1/2 less twice the error of predicted exponents.
PREDICTED_SLOW = 0.48
#: Share of reference error in the smallest measured error from which it is worth a flag.
REFERENCE = 0.2


def with_flags(heads: Sequence[ProbeHead]) -> list[ProbeHead]:
    """Return the heads with their flags."""
    found: list[list[Flag]] = [[] for _ in heads]
    for metric in METRICS:
        for i, flag in (
            *_measured_slow(heads, metric),
            *(predicted_slow(heads, metric) if metric in PREDICTED else ()),
            *_disagreeing(heads, metric),
        ):
            found[i].append(flag)
    for i, flag in _against_gaussian(heads):
        found[i].append(flag)
    for head, flags in zip(heads, found, strict=True):
        flags += _of_one(head)
    return [
        structs.replace(head, flags=tuple(flags)) for head, flags in zip(heads, found, strict=True)
    ]


def _measured_slow(heads: Sequence[ProbeHead], metric: str) -> list[tuple[int, Flag]]:
    """Measured exponents below 1/2."""
    values = np.array([_exponent(head, metric) for head in heads])
    slow = _below(values, 0.5)
    return [
        (i, Flag(flag=f"slow {WORDS[metric]}", evidence=_evidence("measured", *values[i][:2])))
        for i in slow
    ]


def predicted_slow(heads: Sequence[ProbeHead], metric: str) -> list[tuple[int, Flag]]:
    """Exponents that one pass predicts below 1/2, beyond what the prediction may be off."""
    values = np.array([_predicted(head, metric) for head in heads])
    slow = _below(values, PREDICTED_SLOW)
    return [
        (
            i,
            Flag(
                flag=f"slow {WORDS[metric]} (predicted)",
                evidence=_evidence("predicted on these sizes", *values[i][:2]),
            ),
        )
        for i in slow
    ]


def _disagreeing(heads: Sequence[ProbeHead], metric: str) -> list[tuple[int, Flag]]:
    """Exponents that were measured other than predicted on the same sizes."""
    measured = np.array([_exponent(head, metric) for head in heads])
    predicted = np.array([_predicted(head, metric) for head in heads])
    predicted[:, 0] = [_number(head.predicted_exponent(metric)) for head in heads]
    noise = np.hypot(measured[:, 1], predicted[:, 1])
    freedom = np.minimum(measured[:, 2], predicted[:, 2])
    apart = _apart(measured[:, 0] - predicted[:, 0], noise, freedom)
    return [
        (
            i,
            Flag(
                flag=f"prediction off ({WORDS[metric]})",
                evidence=f"{_evidence('measured', *measured[i][:2])}, "
                f"{_evidence('predicted', *predicted[i][:2])}",
            ),
        )
        for i in apart
    ]


def _against_gaussian(heads: Sequence[ProbeHead]) -> list[tuple[int, Flag]]:
    """Measured exponents of the mean other than those of Gaussian tokens of the same horizon."""
    values = np.array([_exponent(head, "mean") for head in heads])
    sharp = np.array([head.predicted.sharp.mean for head in heads])
    apart = _apart(values[:, 0] - sharp, values[:, 1], values[:, 2])
    return [
        (
            i,
            Flag(
                flag="not Gaussian",
                evidence=f"{_evidence('measured', *values[i][:2])}, Gaussian tokens of H = "
                f"{heads[i].horizon:.2f} would tend to {sharp[i]:.3f} (conjectured)",
            ),
        )
        for i in apart
    ]


def _of_one(head: ProbeHead) -> list[Flag]:
    """Flags that depend on the head alone."""
    flags = []
    if head.reference.largest_share > REFERENCE:
        share = head.reference.largest_share
        flags.append(
            Flag(
                flag="reference",
                evidence=f"the reference's own error is {share:.0%} of the smallest error measured",
            )
        )
    if head.fit is not None and not head.fit.mean.trusted:
        reasons = "; ".join(head.fit.mean.reasons)
        flags.append(Flag(flag="fit", evidence=f"exponent of the mean: {reasons}"))
    return flags


def _exponent(head: ProbeHead, metric: str) -> tuple[float, float, float]:
    """Measured exponent, standard error and degrees of freedom; nan where there is none."""
    if head.fit is None or head.fit[metric].standard_error is None:
        return np.nan, np.nan, np.nan
    fit = head.fit[metric]
    return fit.exponent, float(fit.standard_error or 0.0), fit.n_replicates - 1.0


def _predicted(head: ProbeHead, metric: str) -> tuple[float, float, float]:
    """Exponent that one pass predicts, its standard error and degrees of freedom."""
    found = head.predicted_error[metric]
    if found.exponent is None or found.exponent_error is None:
        return np.nan, np.nan, np.nan
    return found.exponent, found.exponent_error, EFFORT.groups - 1.0


def _number(value: float | None) -> float:
    return np.nan if value is None else value


def _below(found: Array, bar: float) -> list[int]:
    """Which exponents [head, (value, error, freedom)] are below a bar, over all of them."""
    values, noise, freedom = found.T
    return _adjusted(scipy.special.stdtr(freedom, (values - bar) / _positive(noise)))


def _apart(differences: Array, noise: Array, freedom: Array) -> list[int]:
    """Which differences are not 0, over all of them."""
    return _adjusted(2 * scipy.special.stdtr(freedom, -np.abs(differences) / _positive(noise)))


def _positive(noise: Array) -> Array:
    return np.where(noise > 0, noise, 1e-12) + 0 * noise  # nan stays


def _adjusted(p: Array) -> list[int]:
    """Tests that are significant, all of them taken together."""
    return [i for i, value in enumerate(family_wise(p).tolist()) if value <= ALPHA]


def _evidence(what: str, value: float, noise: float) -> str:
    return f"exponent {what}: {value:.3f} ± {noise:.3f}"


# The first sentences of a probe: how far off heads are at the model's own context length.

#: Output error whose tokens are told first.
WANTED = 0.1
#: Heads that are named.
NAMED = 5


def headline(heads: Sequence[ProbeHead]) -> str:
    """The answer in a few sentences."""
    if not heads:
        return "Nothing has been measured yet."
    return " ".join([_needed(heads), _at_context(heads), _keep_all(heads), _rates(heads)])


def _needed(heads: Sequence[ProbeHead]) -> str:
    """Tokens for 10% output error, of the typical head and of the one that needs most."""
    tokens = np.array([_tokens(head) for head in heads])
    keys = np.array([head.keys for head in heads])
    most = int(np.argmax(tokens))
    worst = f"{heads[most].layer}.{heads[most].head}"
    typical = float(np.median(tokens))
    return (
        f"For {WANTED:.0%} output error a typical head needs "
        f"{_count(typical, float(np.median(keys)))}, the neediest ({worst}) "
        f"{_count(float(tokens[most]), float(keys[most]))}."
    )


def _tokens(head: ProbeHead) -> float:
    found = head.tokens_for.percent_10
    return math.inf if found is None else found


def _count(tokens: float, read: float) -> str:
    """A number of tokens; beyond those that were read it is extrapolated, and says so."""
    if not math.isfinite(tokens):
        return "more tokens than can be predicted"
    shown = two_digits(max(tokens, 1.0)) if tokens >= 10 else f"{tokens:.0f}"
    return f"~{shown} tokens (extrapolated)" if tokens > read else f"{shown} tokens"


def _at_context(heads: Sequence[ProbeHead]) -> str:
    errors = np.array([head.at_context.error for head in heads])
    worst = heads[int(np.argmax(errors))]
    n = worst.at_context.n
    beyond = any(head.at_context.extrapolated for head in heads)
    return (
        f"At {n:,.0f} tokens, the model's own context length, a typical head is "
        f"{_percent(np.median(errors))} off its limit, the worst ({worst.layer}.{worst.head}) "
        f"{_percent(worst.at_context.error)}" + (" (extrapolated)." if beyond else ".")
    )


def _keep_all(heads: Sequence[ProbeHead]) -> str:
    """Heads whose output is not estimated by a sample of that many tokens."""
    large = sorted(
        (head for head in heads if head.at_context.interval[0] > LARGE),
        key=lambda head: -head.at_context.error,
    )
    if not large:
        return f"No head is certainly more than {LARGE:.0%} off."
    names = ", ".join(f"{head.layer}.{head.head}" for head in large[:NAMED])
    more = f" and {len(large) - NAMED} more" if len(large) > NAMED else ""
    return (
        f"{counted(len(large), 'head')} ({names}{more}) "
        f"{'is' if len(large) == 1 else 'are'} more than {LARGE:.0%} off: keep all tokens there."
    )


def _rates(heads: Sequence[ProbeHead]) -> str:
    counts = class_counts(head.exponent("mean")[1] for head in heads)
    how = "measured" if heads[0].fit is not None else "predicted"
    return f"The error of the mean output falls {rates_said(counts, 'head')} ({how})."


def _percent(share: float) -> str:
    return f"{100 * share:.2g}%" if share < 0.1 else f"{share:.0%}"
