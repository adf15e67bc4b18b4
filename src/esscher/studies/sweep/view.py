"""The result on a page of a report and in a terminal: exponents, theory, all numbers."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping
from typing import Any

import numpy as np
import pandas as pd

from esscher.core.shown import between, counted, plain_count, shown, with_error
from esscher.math.statistics.records import agreement
from esscher.show.content import Card, Column, Summary, Table
from esscher.show.frames import data_of
from esscher.show.tables import PlainConsole, PlainTable
from esscher.studies.sweep.result import TITLES, Sweep

#: Standard errors to each side of a 95% interval.
NORMAL = 1.96
#: When a measured exponent agrees with a predicted one.
RULE = "agrees: the whole 95% interval within 0.05 of the prediction; differs: all of it farther"
#: Verdicts on laws by the class in which they are counted.
VERDICTS = {
    "power": "straight or as predicted",
    "as predicted": "straight or as predicted",
    "floor": "bent",
    "logarithmic": "bent",
    "two powers": "bent",
    "undecided": "undecided",
}


def summary(result: Sweep, name: str) -> Summary:
    """Say what was measured and what matters of it; ``name`` is that of the run."""
    head, sizes, fits = result.study.head_record, result.sizes, result.exponents_table()
    of_predictions = (note for scale in result.predictions or () for note in scale.notes)
    notes = dict.fromkeys([*result.notes, *of_predictions])
    return Summary(
        "Sweep of a synthetic head",
        f"{head.tokens} tokens, d = {head.key_dim}, {horizon_range(result)}, "
        f"n = {sizes[0]:,} to {sizes[-1]:,}",
        _cards(result, fits),
        [*([] if fits.empty else [_exponents(fits, name)]), _errors(result, name)],
        answer=" ".join([_answer(result, fits), *(f"Note: {note}." for note in notes)]),
    )


def _answer(result: Sweep, fits: pd.DataFrame) -> str:
    """How fast errors fall, and whether theory says so."""
    if fits.empty:
        return (
            f"{counted(result.replicates, 'replicate')} at {counted(len(result.sizes), 'size')}: "
            "how fast errors fall takes at least two sizes."
        )
    first, last = (result.rate("mean", s) for s in (0, len(result.scales) - 1))
    if len(result.scales) == 1:
        text = (
            f"With {result.study.head_record.tokens} tokens at horizon {horizon_range(result)} the "
            f"error of the mean output falls like "
            f"n^-{between(first.exponent, first.interval, 'd3')}"
        )
        if first.predicted is not None:
            text += f"; theory predicts {first.predicted:.3f} on these sizes"
    else:
        low, high = (
            f"{between(fit.exponent, fit.interval, 'd2')} at H = {scale.horizon:.3g}"
            for fit, scale in ((first, result.scales[0]), (last, result.scales[-1]))
        )
        text = (
            f"Over {len(result.scales)} horizons the exponent of the mean output goes from {low} "
            f"to {high}"
        )
    counts = agreement_counts(fits)
    if counts:
        text += f". Exponents against theory on these sizes: {count_words(counts)}"
    settled, why = int(fits["settled"].sum()), "n is too small, or the data too few"
    if settled == len(fits):
        text += f". All {settled} have settled and may be used for larger n"
    elif settled:
        text += f". {settled} of {len(fits)} have settled; for the others {why}, to see the "
        text += "asymptotic rate"
    else:
        text += f". None of the {len(fits)} has settled: {why}, to see the asymptotic rate"
    return f"{text}. Shape of the curves: {count_words(law_counts(fits['verdict']))}."


def _cards(result: Sweep, fits: pd.DataFrame) -> list[Card]:
    counts = result.replicates_at_size
    few = f", {min(counts):,} to {max(counts):,} by size" if min(counts) != max(counts) else ""
    cards = [Card(shown(result.replicates, "n0"), "replicates", f"independent samples{few}")]
    if fits.empty:
        return cards
    if len(result.scales) == 1:
        for fit in fits.itertuples():
            note = f"95% interval {shown(fit.low, 'd3')} to {shown(fit.high, 'd3')}"
            title = f"exponent of the {TITLES[str(fit.metric)]}"
            cards.append(Card(shown(fit.exponent, "d3"), title, note))
    against = agreement_counts(fits)
    if against:
        value = f"{against['agrees']} of {sum(against.values())}"
        note = f"{count_words(against)}; {RULE}"
        cards.append(Card(value, "exponents agree with theory on these sizes", note))
    cards.append(
        Card(
            f"{int(fits['settled'].sum())} of {len(fits)}",
            "exponents have settled: they hold for larger n too",
            f"trusted fits of a power law; trusted: {int(fits['trusted'].sum())}; laws: "
            f"{count_words(law_counts(fits['verdict']))}",
        )
    )
    return cards


def _exponents(fits: pd.DataFrame, name: str) -> Table:
    """Fitted exponents of all scales and metrics."""
    floor = "95% limit, as a share of the error at the largest size"
    power = "how often this test finds a floor of half of that error"
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
            Column("floor_share", "floor, at most", "p0", help=floor),
            Column("floor_power", "power", "p0", help=power),
            Column("trusted", "trusted", help="as a rate on these sizes"),
            Column("reasons", "why not"),
        ],
        data=data_of(fits.assign(metric=[TITLES[metric] for metric in fits["metric"]])),
        caption="β and C of error ~ C n^-β, with 95% intervals. Law: as predicted if the errors "
        "follow the predicted curve within noise; undecided if the errors may still level off (at "
        "half the last error), fall like a power of ln n, or be the sum of two powers, n^-1/2 and "
        "n^-1.",
    )


def _errors(result: Sweep, name: str) -> Table:
    frame = result.table()
    columns = [
        Column("horizon", "H", "s3"),
        Column("n", "n", "n0"),
        Column("replicates", "replicates", "n0"),
    ]
    for metric, title in TITLES.items():
        half, low, high = (
            NORMAL * frame[f"{metric}_standard_error"],
            f"{metric}_low",
            f"{metric}_high",
        )
        # a lower end that would not be positive is cut just above 0
        frame[low] = (frame[metric] - half).clip(lower=0.05 * frame[metric])
        frame[high] = frame[metric] + half
        columns.append(Column(metric, f"error of the {title}", "s3", low, high))
        columns.append(Column(f"{metric}_median", f"median, {title}", "s3", shown=False))
    return Table(
        title="Errors",
        name=f"{name}-errors",
        columns=columns,
        data=data_of(frame),
        caption="Mean over replicates with 95% intervals; medians are in the CSV file.",
    )


def horizon_range(result: Sweep) -> str:
    """Return the horizons in words, such as ``H = 0.5 to 2``."""
    low, high = result.horizons.min(), result.horizons.max()
    return f"H = {low:.3g}" + ("" if low == high else f" to {high:.3g}")


def print_result(result: Sweep, console: PlainConsole) -> None:
    """Print the errors at every scale and size, and how fast they fall."""
    head = result.study.head_record
    state = "" if result.complete else " (not complete)"
    console.say(
        f"{counted(result.replicates, 'replicate')}{state} of {head.tokens} tokens, "
        f"d = {head.key_dim}, queries: {result.queries}, seed {result.seed}",
    )
    for note in result.notes:
        console.say(f"Note: {note}.")
    for scale in result.scales:
        table = PlainTable(
            f"Errors at horizon H = {scale.horizon:.4g} (alpha = {scale.alpha:.4g})",
            least=("median",),
        )
        for heading in ("n", "mean", "median", "cov", "median", "map", "median"):
            table.add_column(heading, justify="right")
        for i, n in enumerate(result.sizes):
            cells = []
            for errors in (scale.mean, scale.cov, scale.map):
                mean, median, noise = errors.mean[i], errors.median[i], errors.standard_error[i]
                cells.append(with_error(np.nan if mean is None else mean, noise))
                cells.append(f"{np.nan if median is None else median:.4g}")
            table.add_row(plain_count(n), *cells)
        console.print(table)
    fits = result.exponents_table()
    if not fits.empty:
        _print_exponents(result, fits, console)
    console.explain(
        "Errors of the mean output, of its covariance (Frobenius norm) and of the map (rms): "
        "mean and median over replicates, in brackets the standard error of the last digit.",
    )


def _print_exponents(result: Sweep, fits: pd.DataFrame, console: PlainConsole) -> None:
    """The exponents, what is decided, and what all errors of a scale say together."""
    table = PlainTable(
        "Exponents beta of error ~ C n^-beta, 95% intervals",
        least=("bound", "ref.", "conj.", "floor <", "predicted"),
    )
    left = ("of", "law")
    numbers = ("beta", "interval", "predicted", "conj.", "ref.", "bound", "floor <")
    for heading in ("H", "of", *numbers, "law"):
        table.add_column(heading, justify="left" if heading in left else "right")
    for fit in fits.to_dict("records"):
        lines = (fit[name] for name in ("predicted", "sharp", "paper_reference", "paper_bound"))
        table.add_row(
            f"{fit['horizon']:.4g}",
            fit["metric"],
            f"{fit['exponent']:.3f}",
            "-".join(shown(fit[end], "d3", "nan") for end in ("low", "high")),
            *(shown(line, "d3", "") for line in lines),
            shown(fit["floor_share"], "p0", ""),
            fit["verdict"] + ("" if fit["trusted"] else " *"),
        )
    console.print(table)
    console.explain(
        "conj.: asymptotic exponent, conjectured for Gaussian tokens; ref., bound: published; "
        "floor <: 95% limit of a floor, as a share of the error at the largest size. Law: as "
        "predicted if the ratio to the predicted curve does not change beyond noise, and a floor "
        "of half the last error would have been seen; undecided if such a floor, a power of ln n "
        "or a sum of two powers (n^-1/2 and n^-1) is not excluded: the exponent then describes "
        "these sizes, and nothing says that it goes on. *: exponent not to be trusted even there."
    )
    counts = agreement_counts(fits)
    if counts:
        console.say(f"Measured against predicted exponents: {count_words(counts)}.")
    console.say(f"Laws: {count_words(law_counts(fits['verdict']))}.")
    for fit in fits[~fits["trusted"]].to_dict("records"):
        console.say(f"* H = {fit['horizon']:.4g}, {fit['metric']}: {fit['reasons']}.")


def agreement_counts(fits: pd.DataFrame) -> dict[str, int]:
    """How many predicted exponents agree with the measured ones, differ, or are undecided."""
    counts: Counter[str] = Counter()
    known = fits[fits["predicted"].notna()].astype({"low": float, "high": float})
    for fit in known.to_dict("records"):
        ends: Any = tuple(None if np.isnan(fit[end]) else fit[end] for end in ("low", "high"))
        counts[agreement(ends, fit["predicted"])] += 1
    return {name: counts[name] for name in ("agrees", "differs", "undecided")} if counts else {}


def law_counts(verdicts: Iterable[str]) -> dict[str, int]:
    """How many laws are decided, bent, and undecided."""
    counts = Counter(VERDICTS[verdict] for verdict in verdicts)
    return {name: counts[name] for name in dict.fromkeys(VERDICTS.values())}


def count_words(counts: Mapping[str, int]) -> str:
    """The counts as words, such as ``4 agree, 1 differs, 7 undecided``."""
    plural = {"agrees": "agree", "differs": "differ"}
    return ", ".join(
        f"{count} {name if count == 1 else plural.get(name, name)}"
        for name, count in counts.items()
    )
