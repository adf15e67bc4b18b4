"""The result in a terminal."""

from __future__ import annotations

import numpy as np

from esscher.core.shown import counted, plain_count, with_error
from esscher.show.tables import PlainConsole, PlainTable
from esscher.studies.sweep.laws import agreement_counts, count_words, floor_seen, law_counts
from esscher.studies.sweep.measure import METRICS
from esscher.studies.sweep.result import Sweep


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
