"""From cells to the result: passages as one, fitted rates, flags, the headline."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any, TypeAlias

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
from esscher.math.statistics.intervals import ByMetric, class_counts, family_wise
from esscher.math.theory.cloud import EFFORT
from esscher.runs.folder import Cell, CellRun
from esscher.studies.probe.result import (
    LARGE,
    HeadStatistics,
    LayerPart,
    Probe,
    ProbeCell,
    ProbeHead,
    ProbeLayer,
    percent,
)
from esscher.studies.probe.study import ProbeStudy
from esscher.studies.probe.together import heads_together

#: Errors of a layer, and what one pass says about its heads.
MeasuredLayer: TypeAlias = tuple[LayerMeasurement, tuple[HeadStatistics, ...]]


def assemble(study: ProbeStudy, cells: Mapping[str, Cell], run: CellRun) -> Probe:
    """Fit every head and layer."""
    by_layer: dict[int, list[MeasuredLayer]] = {}
    for name, cell in cells.items():
        for measured, stats in read_cell(run, name, cell):
            by_layer.setdefault(measured.layer, []).append((measured, stats))
    heads: list[ProbeHead] = []
    layers: list[ProbeLayer] = []
    for layer in sorted(by_layer):
        measured, stats = combine(by_layer[layer])
        for unit, head in enumerate(measured.heads):
            made = ProbeHead(
                layer=layer,
                head=head,
                fit=fit_unit(measured, unit, stats[unit], study.seed),
                reference_share=reference_share(measured, unit),
                flags={},
                **structs.asdict(stats[unit]),
            )
            heads.append(made)
        layers.append(
            ProbeLayer(
                layer=layer,
                heads=measured.heads,
                fit=fit_unit(measured, len(measured.heads), None, study.seed),
                heads_together=None if study.predict else heads_together(measured, study.seed),
            )
        )
    heads = with_flags(heads)
    return Probe.of(
        run,
        study,
        len(cells),
        headline(heads),
        sizes=study.sizes if heads else (),
        heads=tuple(heads),
        layers=tuple(layers),
    )


def combine(parts: Sequence[MeasuredLayer]) -> MeasuredLayer:
    """One measurement of a layer from its passages: replicates side by side, statistics averaged.

    Predictions from different passages are independent: their mean has a smaller standard error.
    """
    if len(parts) == 1:
        return parts[0]
    each = [measured for measured, _ in parts]
    products = [m.products for m in each if m.products is not None]
    measured = LayerMeasurement(
        layer=each[0].layer,
        heads=each[0].heads,
        sizes=each[0].sizes,
        errors=np.concatenate([m.errors for m in each], axis=2),
        relative=np.sqrt(np.mean([m.relative**2 for m in each], axis=0)),
        reference_error=np.sqrt(np.mean([m.reference_error**2 for m in each], axis=0)),
        products=np.concatenate(products, axis=1) if len(products) == len(each) else None,
    )
    factor, stats = len(parts) ** -0.5, []
    for same in zip(*(stats for _, stats in parts), strict=True):
        mean: HeadStatistics = average(same)
        errors = {}
        for metric in METRICS:
            predicted = mean.predicted_error[metric]
            noise = predicted.exponent_error
            errors[metric] = structs.replace(
                predicted,
                standard_error=tuple(factor * x for x in predicted.standard_error),
                exponent_error=None if noise is None else factor * noise,
            )
        stats.append(structs.replace(mean, predicted_error=ByMetric(**errors)))
    return measured, tuple(stats)


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
    if isinstance(first, tuple):
        nested = any(isinstance(entry, Record | tuple) for entry in first)
        if nested or len({len(value) for value in values}) == 1:
            # as far as all of them go: passages may differ in the number of thresholds
            return tuple(average(entries) for entries in zip(*values, strict=False))
    return first


def fit_unit(
    measured: LayerMeasurement, unit: int, stats: HeadStatistics | None, seed: int
) -> ByMetric[Rate] | None:
    """Fitted rates of a head or of the whole layer, with what was predicted for them.

    None if nothing was sampled.
    """
    if not measured.errors.shape[2]:
        return None
    sizes, rates = np.asarray(measured.sizes, dtype=np.float64), {}
    for metric, errors in zip(METRICS, measured.errors[:, unit], strict=True):
        rate = fit_rate(errors, sizes, seed=seed)
        if stats is not None:
            # curves bend: the exponent of the predicted one takes the weights of the fit
            predicted = stats.predicted_error[metric]
            curve = np.asarray(predicted.error)[np.isin(sizes, rate.sizes)]
            rate = structs.replace(
                rate,
                predicted=rate.slope_of(curve) if np.all(curve > 0) else predicted.exponent,
                sharp=stats.sharp[metric],
                paper_reference=stats.paper_reference,
                paper_bound=stats.paper_bound,
            )
        rates[metric] = rate
    return ByMetric(**rates)


def reference_share(measured: LayerMeasurement, unit: int) -> float:
    """Standard error of the reference over the error at the largest size: the larger of two.

    They are those of the mean output and, where it is known, of the covariance.
    """
    shares = [0.0]
    noise = {"mean": measured.reference_error[unit]}
    if measured.reference is not None:
        noise["cov"] = measured.reference.cov_error[unit]
    for metric, error in noise.items():
        errors = measured.errors[METRICS.index(metric), unit, :, -1]
        smallest = float(errors.mean()) if errors.size else 0.0
        if smallest > 0:
            shares.append(float(error) / smallest)
    return max(shares)


# Cells. The table of a cell holds the raw errors (layer, unit, metric, replicate, n, error); then,
# as metrics "mean product" and "map product" of units such as "0 x 3", the inner products of the
# heads' errors behind the output projection, of each pair of heads once.


def make_cell(layers: Sequence[MeasuredLayer]) -> Cell:
    """Return what is stored of layers."""
    about, tables = [], []
    for m, stats in layers:
        about.append(
            LayerPart(
                layer=m.layer,
                heads=m.heads,
                sizes=m.sizes,
                shape=m.errors.shape,
                relative=tuple(m.relative.tolist()),
                reference_error=tuple(m.reference_error.tolist()),
                reference=m.reference,
                stats=stats,
                products=m.products is not None,
            )
        )
        blocks = [(list(METRICS), [*(str(head) for head in m.heads), "layer"], m.errors)]
        if m.products is not None:
            rows, columns = np.triu_indices(len(m.heads))
            pairs = [f"{m.heads[i]} x {m.heads[j]}" for i, j in zip(rows, columns, strict=True)]
            names = [f"{name} product" for name in PRODUCTS]
            blocks.append((names, pairs, np.moveaxis(m.products[..., rows, columns], -1, 1)))
        for metrics, units, values in blocks:
            metric, unit, replicate, size = (axis.ravel() for axis in np.indices(values.shape))
            tables.append(
                pd.DataFrame(
                    {
                        "layer": np.full(values.size, m.layer, dtype=np.int64),
                        "unit": np.array(units)[unit],
                        "metric": np.array(metrics)[metric],
                        "replicate": replicate.astype(np.int64),
                        "n": np.asarray(m.sizes, dtype=np.int64)[size],
                        "error": values.ravel(),
                    }
                )
            )
    return Cell(ProbeCell(layers=tuple(about)), pd.concat(tables, ignore_index=True))


def read_cell(run: CellRun, name: str, cell: Cell) -> list[MeasuredLayer]:
    """Return the layers of a cell.

    Raises
    ------
    InputError
        If its table is not that of its layers.
    """
    about: ProbeCell = cell.about
    layers: list[MeasuredLayer] = []
    try:
        errors = np.asarray(cell.column("error"), dtype=np.float64)
        start = 0
        for part in about.layers:
            _, units, replicates, sizes = part.shape
            end = start + math.prod(part.shape)
            raw, products = errors[start:end].reshape(part.shape), None
            if part.products:
                rows, columns = np.triu_indices(units - 1)
                shape = len(PRODUCTS), len(rows), replicates, sizes
                start, end = end, end + math.prod(shape)
                folded = np.moveaxis(errors[start:end].reshape(shape), 1, -1)
                products = np.empty((*folded.shape[:3], units - 1, units - 1))
                products[..., rows, columns] = products[..., columns, rows] = folded
            measured = LayerMeasurement(
                layer=part.layer,
                heads=part.heads,
                sizes=part.sizes,
                errors=raw,
                relative=np.asarray(part.relative),
                reference_error=np.asarray(part.reference_error),
                products=products,
                reference=part.reference,
            )
            layers.append((measured, part.stats))
            start = end
        if start != len(errors):
            raise ValueError(f"its table has {len(errors)} rows, not {start}")
    except (ValueError, TypeError) as error:
        raise run.damaged(name, error) from error
    return layers


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
    if not heads:
        return []
    flags: list[dict[str, str]] = [{} for _ in heads]
    for metric, word in WORDS.items():
        measured, predicted = measured_exponents(heads, metric), predicted_exponents(heads, metric)
        for i in significant(measured, 0.5, below=True):
            flags[i][f"slow {word}"] = _evidence("measured", measured[i])
        if metric in PREDICTED:
            for i in significant(predicted, PREDICTED_SLOW, below=True):
                evidence = _evidence("predicted on these sizes", predicted[i])
                flags[i][f"slow {word} (predicted)"] = evidence
        # with the weights of the fit: curves bend
        weighted = [head.predicted_exponent(metric)[0] for head in heads]
        predicted[:, 0] = np.array(weighted, dtype=np.float64)
        noise = np.hypot(measured[:, 1], predicted[:, 1])
        freedom = np.minimum(measured[:, 2], predicted[:, 2])
        difference = np.stack([measured[:, 0] - predicted[:, 0], noise, freedom], axis=1)
        for i in significant(difference, 0.0):
            flags[i][f"prediction off ({word})"] = (
                f"{_evidence('measured', measured[i])}, {_evidence('predicted', predicted[i])}"
            )
    measured = measured_exponents(heads, "mean")
    sharp = np.array([head.sharp.mean for head in heads])
    for i in significant(measured - np.outer(sharp, [1, 0, 0]), 0.0):
        flags[i]["not Gaussian"] = (
            f"{_evidence('measured', measured[i])}, Gaussian tokens of H = "
            f"{heads[i].horizon:.2f} would tend to {sharp[i]:.3f} (conjectured)"
        )
    for head, raised in zip(heads, flags, strict=True):
        if head.reference_share > REFERENCE:
            raised["reference"] = (
                f"the reference's own error is {head.reference_share:.0%} of the smallest error "
                "measured"
            )
        if head.fit is not None and not head.fit.mean.trusted:
            raised["fit"] = f"exponent of the mean: {'; '.join(head.fit.mean.reasons)}"
    return [structs.replace(head, flags=raised) for head, raised in zip(heads, flags, strict=True)]


def measured_exponents(heads: Sequence[ProbeHead], metric: str) -> Array:
    """Measured exponents, standard errors and degrees of freedom, [head, 3]; nan without any."""
    rows = np.full((len(heads), 3), np.nan)
    for row, head in zip(rows, heads, strict=True):
        fit = None if head.fit is None else head.fit[metric]
        if fit is not None and fit.standard_error is not None:
            row[:] = fit.exponent, fit.standard_error, fit.n_replicates - 1.0
    return rows


def predicted_exponents(heads: Sequence[ProbeHead], metric: str) -> Array:
    """Exponents that one pass predicts, standard errors and degrees of freedom, [head, 3]."""
    rows = np.full((len(heads), 3), np.nan)
    for row, head in zip(rows, heads, strict=True):
        predicted = head.predicted_error[metric]
        if predicted.exponent is not None and predicted.exponent_error is not None:
            row[:] = predicted.exponent, predicted.exponent_error, EFFORT.groups - 1.0
    return rows


def significant(values: Array, bar: float, *, below: bool = False) -> list[int]:
    """Which numbers [number, (value, error, freedom)] are not ``bar``, or are below it.

    All of them are tested together (Holm); nan is not significant.
    """
    value, noise, freedom = values.T
    t = (value - bar) / (np.where(noise > 0, noise, 1e-12) + 0 * noise)  # nan stays
    p = scipy.special.stdtr(freedom, t if below else -np.abs(t)) * (1 if below else 2)
    return np.flatnonzero(family_wise(p) <= ALPHA).tolist()


def _evidence(kind: str, exponent: Array) -> str:
    return f"exponent {kind}: {exponent[0]:.3f} ± {exponent[1]:.3f}"


#: Heads that the headline names.
NAMED = 5


def headline(heads: Sequence[ProbeHead]) -> str:
    """The answer in a few sentences: how many tokens it takes, and how far off heads are."""
    if not heads:
        return "Nothing has been measured yet."
    needs = [head.tokens_for["0.1"] for head in heads]
    tokens = np.array([math.inf if need is None else need for need in needs])
    keys = np.array([head.keys for head in heads])
    most = int(np.argmax(tokens))
    typical = _tokens(float(np.median(tokens)), float(np.median(keys)))
    neediest = f"{heads[most].layer}.{heads[most].head}"
    errors = np.array([head.at_context for head in heads])
    worst = heads[int(np.argmax(errors))]
    beyond = any(head.context > head.keys for head in heads)
    large = [head for head in heads if head.at_context_interval[0] > LARGE]
    large.sort(key=lambda head: -head.at_context)
    keep_all = f"No head is certainly more than {LARGE:.0%} off."
    if large:
        names = ", ".join(f"{head.layer}.{head.head}" for head in large[:NAMED])
        more = f" and {len(large) - NAMED} more" if len(large) > NAMED else ""
        verb = "is" if len(large) == 1 else "are"
        keep_all = (
            f"{counted(len(large), 'head')} ({names}{more}) {verb} more than {LARGE:.0%} off: keep "
            "all tokens there."
        )
    counts = class_counts(head.exponent("mean")[1] for head in heads)
    how = "measured" if heads[0].fit is not None else "predicted"
    return (
        f"For 10% output error a typical head needs {typical}, the neediest ({neediest}) "
        f"{_tokens(float(tokens[most]), float(keys[most]))}. "
        f"At {worst.context:,.0f} tokens, the model's own context length, a typical head is "
        f"{percent(float(np.median(errors)))} off its limit, the worst "
        f"({worst.layer}.{worst.head}) {percent(worst.at_context)}"
        f"{' (extrapolated)' if beyond else ''}. {keep_all} "
        f"The error of the mean output falls {rates_said(counts, 'head')} ({how})."
    )


def _tokens(tokens: float, read: float) -> str:
    """A number of tokens; beyond those that were read it is extrapolated, and says so."""
    if not math.isfinite(tokens):
        return "more tokens than can be predicted"
    shown = two_digits(max(tokens, 1.0)) if tokens >= 10 else f"{tokens:.0f}"
    return f"~{shown} tokens (extrapolated)" if tokens > read else f"{shown} tokens"
