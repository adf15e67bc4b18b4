"""The result on a page of a report: how fast errors fall, whether theory says so, all numbers."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import numpy as np

from esscher.core.shown import plain_count, with_error
from esscher.math.statistics import Rate
from esscher.math.statistics.records import Agreement, agreement
from esscher.show.content import Card, Column, Summary, Table
from esscher.show.frames import data_of, ends_of
from esscher.show.numbers import between, counted, shown
from esscher.show.tables import PlainConsole, PlainTable
from esscher.studies.sweep.measure import METRICS
from esscher.studies.sweep.result import Sweep

#: Standard errors to each side of a 95% interval.
NORMAL = 1.96
#: Errors in the order in which tables have them, and their names.
ERRORS = {
    "map": "map",
    "mean": "mean output",
    "cov": "covariance",
}
#: When a measured exponent agrees with a predicted one.
RULE = "agrees: the whole 95% interval within 0.05 of the prediction; differs: all of it farther"


def summary(found: Sweep, name: str) -> Summary:
    """Say what was measured and what matters of it; ``name`` is that of the run."""
    head, sizes = found.study.head_record, found.sizes
    subject = (
        f"{head.tokens} tokens, d = {head.key_dim}, {_horizons(found)}, "
        f"n = {sizes[0]:,} to {sizes[-1]:,}"
    )
    tables = [_exponents(found, name)] if found.has_fits else []
    return Summary(
        "Sweep of a synthetic head",
        subject,
        _cards(found),
        [*tables, _errors(found, name)],
        answer=" ".join([_answer(found), *(f"Note: {note}." for note in _notes(found))]),
    )


def _answer(found: Sweep) -> str:
    """How fast errors fall, and whether theory says so."""
    if not found.has_fits:
        return (
            f"{counted(found.replicates, 'replicate')} at {counted(len(found.sizes), 'size')}: "
            "how fast errors fall takes at least two sizes."
        )
    first, last = (found.fit("mean", s) for s in (0, len(found.scales) - 1))
    if len(found.scales) == 1:
        text = (
            f"With {found.study.head_record.tokens} tokens at horizon {_horizons(found)} the error "
            f"of the mean output falls like n^-{between(first.exponent, first.interval, 'd3')}"
        )
        if first.predicted is not None:
            text += f"; theory predicts {first.predicted:.3f} on these sizes"
    else:
        ends = (found.scales[0].horizon, first), (found.scales[-1].horizon, last)
        at = [
            f"{between(fit.exponent, fit.interval, 'd2')} at H = {horizon:.3g}"
            for horizon, fit in ends
        ]
        text = (
            f"Over {len(found.scales)} horizons the exponent of the mean output goes from {at[0]} "
            f"to {at[1]}"
        )
    fits = [fit for *_, fit in _fits(found)]
    counts = agreement_counts(fits)
    if counts:
        text += f". Exponents against theory on these sizes: {count_words(counts)}"
    text += f". {_beyond(fits)}"
    laws = law_counts(found.joint_law(s).verdict for s in range(len(found.scales)))
    text += f". Shape of the curves, by horizon: {count_words(laws)}"
    return f"{text}."


def _beyond(fits: Sequence[Rate]) -> str:
    """How many exponents may be taken beyond the sizes, in words."""
    known = sum(map(extrapolates, fits))
    if known == len(fits):
        return f"All {len(fits)} have settled and may be used for larger n"
    why = "n is too small, or the data too few, to see the asymptotic rate"
    if not known:
        return f"None of the {len(fits)} has settled: {why}"
    return f"{known} of {len(fits)} have settled; for the others {why}"


def _notes(found: Sweep) -> list[str]:
    """What else a reader must know, each once."""
    of_predictions = (note for known in found.predictions or () for note in known.notes)
    return list(dict.fromkeys([*found.notes, *of_predictions]))


def _cards(found: Sweep) -> list[Card]:
    counts = found.replicates_at_size
    few = f", {min(counts):,} to {max(counts):,} by size" if min(counts) != max(counts) else ""
    out = [Card(shown(found.replicates, "n0"), "replicates", f"independent samples{few}")]
    fits = _fits(found)
    if len(found.scales) == 1:
        for _, metric, fit in fits:
            low, high = (shown(end, "d3") for end in fit.interval)
            note = f"95% interval {low} to {high}"
            out.append(Card(shown(fit.exponent, "d3"), f"exponent of the {ERRORS[metric]}", note))
    against = agreement_counts(fit for *_, fit in fits)
    if against:
        known = sum(against.values())
        label = "exponents agree with theory on these sizes"
        note = f"{count_words(against)}; {RULE}"
        out.append(Card(f"{against['agrees']} of {known}", label, note))
    if fits:
        laws = law_counts(fit.selection.verdict for *_, fit in fits)
        trusted = sum(fit.trusted for *_, fit in fits)
        settled = sum(extrapolates(fit) for *_, fit in fits)
        out.append(
            Card(
                f"{settled} of {len(fits)}",
                "exponents have settled: they hold for larger n too",
                f"trusted fits of a power law; trusted: {trusted}; laws: {count_words(laws)}",
            )
        )
    return out


def _exponents(found: Sweep, name: str) -> Table:
    """Fitted exponents of all scales and metrics."""
    fits = _fits(found)
    low, high = ends_of(fit.interval for *_, fit in fits)
    constant_low, constant_high = ends_of(fit.constant_interval for *_, fit in fits)
    plain = (
        "exponent",
        "constant",
        "predicted",
        "sharp",
        "paper_reference",
        "paper_bound",
        "law",
        "trusted",
    )
    return Table(
        title="Exponents",
        name=f"{name}-exponents",
        columns=[
            Column("horizon", "H", "s3"),
            Column("metric", "error of the"),
            Column("exponent", "exponent β", "d3", "low", "high"),
            Column("constant", "constant C", "s3", "constant_low", "constant_high"),
            Column("predicted", "predicted", "d3", help="by theory, on these sizes"),
            Column("sharp", "conjectured", "d3", help="as n grows"),
            Column("paper_reference", "reference", "d3", help="published reference"),
            Column("paper_bound", "bound", "d3", help="published bound"),
            Column("verdict", "law", help="undecided if another law is not excluded"),
            Column(
                "floor_share",
                "floor, at most",
                "p0",
                help="95% limit, as a share of the error at the largest size",
            ),
            Column(
                "floor_power",
                "power",
                "p0",
                help="how often this test finds a floor of half of that error",
            ),
            Column("trusted", "trusted", help="as a rate on these sizes"),
            Column("reasons", "why not"),
        ],
        data={
            "horizon": [found.scales[s].horizon for s, *_ in fits],
            "alpha": [found.scales[s].alpha for s, *_ in fits],
            "metric": [ERRORS[metric] for _, metric, _ in fits],
            "low": low,
            "high": high,
            "constant_low": constant_low,
            "constant_high": constant_high,
            **{field: [getattr(fit, field) for *_, fit in fits] for field in plain},
            "verdict": [fit.selection.verdict for *_, fit in fits],
            "floor_share": [floor_seen(fit)[0] for *_, fit in fits],
            "floor_power": [floor_seen(fit)[1] for *_, fit in fits],
            "reasons": ["; ".join(fit.reasons) for *_, fit in fits],
        },
        caption="β and C of error ~ C n^-β, with 95% intervals. Law: as predicted if the errors "
        "follow the predicted curve within noise; undecided if the errors may still level off (at "
        "half the last error), fall like a power of ln n, or be the sum of two powers, n^-1/2 and "
        "n^-1.",
    )


def _errors(found: Sweep, name: str) -> Table:
    frame = found.table()
    columns = [
        Column("horizon", "H", "s3"),
        Column("n", "n", "n0"),
        Column("replicates", "replicates", "n0"),
    ]
    for metric, title in ERRORS.items():
        half = NORMAL * frame[f"{metric}_standard_error"]
        # a lower end that would not be positive is cut just above 0
        frame[f"{metric}_low"] = (frame[metric] - half).clip(lower=0.05 * frame[metric])
        frame[f"{metric}_high"] = frame[metric] + half
        columns += [
            Column(metric, f"error of the {title}", "s3", f"{metric}_low", f"{metric}_high"),
            Column(f"{metric}_median", f"median, {title}", "s3", shown=False),
        ]
    data: dict[str, list[Any]] = data_of(frame)
    return Table(
        title="Errors",
        name=f"{name}-errors",
        columns=columns,
        data=data,
        caption="Mean over replicates with 95% intervals; medians are in the CSV file.",
    )


def _fits(found: Sweep) -> list[tuple[int, str, Rate]]:
    """Scale, metric and fit; none with one size."""
    scales = range(len(found.scales)) if found.has_fits else ()
    return [(s, metric, found.fit(metric, s)) for s in scales for metric in ERRORS]


def _horizons(found: Sweep) -> str:
    low, high = found.horizons.min(), found.horizons.max()
    return f"H = {low:.3g}" + ("" if low == high else f" to {high:.3g}")


def print_result(found: Sweep, console: PlainConsole) -> None:
    """Print the errors at every scale and size, and how fast they fall."""
    head = found.study.head_record
    state = "" if found.complete else " (not complete)"
    console.say(
        f"{counted(found.replicates, 'replicate')}{state} of {head.tokens} tokens, "
        f"d = {head.key_dim}, queries: {found.queries}, seed {found.seed}",
    )
    for note in found.notes:
        console.say(f"Note: {note}.")
    for s, scale in enumerate(found.scales):
        table = PlainTable(
            f"Errors at horizon H = {scale.horizon:.4g} (alpha = {scale.alpha:.4g})",
            least=("median",),
        )
        for name in ("n", "mean", "median", "cov", "median", "map", "median"):
            table.add_column(name, justify="right")
        for place, n in enumerate(found.sizes):
            table.add_row(plain_count(n), *_cells(found, s, place))
        console.print(table)
    if found.has_fits:
        _print_rates(console, found)
    console.explain(
        "Errors of the mean output, of its covariance (Frobenius norm) and of the map (rms): "
        "mean and median over replicates, in brackets the standard error of the last digit.",
    )


def _print_rates(console: PlainConsole, found: Sweep) -> None:
    table = PlainTable(
        "Exponents beta of error ~ C n^-beta, 95% intervals",
        least=("bound", "ref.", "conj.", "floor <", "predicted"),
    )
    for name in ("H", "of", "beta", "interval", "predicted", "conj.", "ref.", "bound"):
        table.add_column(name, justify="left" if name == "of" else "right")
    table.add_column("floor <", justify="right")
    table.add_column("law")
    warnings: list[str] = []
    for s, scale in enumerate(found.scales):
        for metric in METRICS:
            fit = found.fit(metric, s)
            limit, _ = floor_seen(fit)
            lines = (fit.predicted, fit.sharp, fit.paper_reference, fit.paper_bound)
            table.add_row(
                f"{scale.horizon:.4g}",
                metric,
                f"{fit.exponent:.3f}",
                "-".join("nan" if end is None else f"{end:.3f}" for end in fit.interval),
                *("" if line is None else f"{line:.3f}" for line in lines),
                "" if limit is None else f"{limit:.0%}",
                fit.selection.verdict + ("" if fit.trusted else " *"),
            )
            if not fit.trusted:
                reasons = "; ".join(fit.reasons)
                warnings.append(f"* H = {scale.horizon:.4g}, {metric}: {reasons}.")
    console.print(table)
    console.explain(
        "conj.: asymptotic exponent, conjectured for Gaussian tokens; ref., bound: published; "
        "floor <: 95% limit of a floor, as a share of the error at the largest size. Law: as "
        "predicted if the ratio to the predicted curve does not change beyond noise, and a floor "
        "of half the last error would have been seen; undecided if such a floor, a power of ln n "
        "or a sum of two powers (n^-1/2 and n^-1) is not excluded: the exponent then describes "
        "these sizes, and nothing says that it goes on. *: exponent not to be trusted even there."
    )
    _print_laws(console, found)
    for warning in warnings:
        console.say(warning)


def _print_laws(console: PlainConsole, found: Sweep) -> None:
    """Say what is decided, and what all errors of a scale say together."""
    fits = [found.fit(metric, s) for s in range(len(found.scales)) for metric in METRICS]
    counts = agreement_counts(fits)
    if counts:
        console.say(f"Measured against predicted exponents: {count_words(counts)}.")
    laws = law_counts(fit.selection.verdict for fit in fits)
    console.say(f"Laws, each error alone: {count_words(laws)}.")
    for s, scale in enumerate(found.scales):
        joint = found.joint_law(s)
        console.say(
            f"H = {scale.horizon:.4g}, all errors together: {joint.verdict}; {joint.evidence}."
        )


def _cells(found: Sweep, scale: int, size: int) -> list[str]:
    """Errors at one scale and size."""
    cells = []
    for metric in METRICS:
        mean, median, noise = (
            float(numbers(metric)[scale, size])
            for numbers in (found.mean, found.median, found.standard_error)
        )
        cells.append(with_error(mean, noise if np.isfinite(noise) else 0.0))
        cells.append(f"{median:.4g}")
    return cells


#: Classes of agreement with a prediction in the order in which they are told.
AGREEMENTS: tuple[Agreement, ...] = ("agrees", "differs", "undecided")


#: Verdicts on laws by the class in which they are counted.
VERDICTS = {
    "power": "straight or as predicted",
    "as predicted": "straight or as predicted",
    "floor": "bent",
    "logarithmic": "bent",
    "two powers": "bent",
    "bent": "bent",
    "undecided": "undecided",
}


def agreement_counts(fits: Iterable[Rate]) -> dict[str, int]:
    """How many predicted exponents agree with the measured ones, differ, or are undecided."""
    known = [fit for fit in fits if fit.predicted is not None]
    found = Counter(agreement(fit.interval, fit.predicted or 0.0) for fit in known)
    return {str(name): found[name] for name in AGREEMENTS} if known else {}


def floor_seen(fit: Rate) -> tuple[float | None, float | None]:
    """Limit of the floor and power of the test: against the prediction where that decides."""
    law = fit.selection
    if law.verdict == "as predicted" and law.predicted is not None:
        return law.predicted.floor_share, law.predicted.floor_power
    return law.floor_share, law.power.get("floor")


def law_counts(verdicts: Iterable[str]) -> dict[str, int]:
    """How many laws are decided, bent, and undecided."""
    found = Counter(VERDICTS[verdict] for verdict in verdicts)
    return {name: found[name] for name in dict.fromkeys(VERDICTS.values())}


def extrapolates(fit: Rate) -> bool:
    """Whether an exponent may be taken beyond the sizes: trusted, and a power law is decided."""
    return fit.trusted and fit.selection.verdict == "power"


def count_words(counts: Mapping[str, int]) -> str:
    """The counts as words, such as ``4 agree, 1 differs, 7 undecided``."""
    plural = {"agrees": "agree", "differs": "differ"}
    return ", ".join(
        f"{count} {name if count == 1 else plural.get(name, name)}"
        for name, count in counts.items()
    )
