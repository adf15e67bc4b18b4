"""Several runs side by side: what each says, sweeps in one chart, probes of the same heads."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from typing import Any

import numpy as np
import pandas as pd
from scipy.stats import binom, spearmanr

from esscher.show.content import (
    COLOURS,
    Axis,
    Card,
    Chart,
    Column,
    Line,
    Page,
    Part,
    Plot,
    Series,
    Table,
)
from esscher.show.frames import ends_of, values
from esscher.show.numbers import between, counted
from esscher.show.same import of_same_heads
from esscher.show.stored import StoredRun
from esscher.studies.sweep.page import METRICS

#: Quantities of heads that are compared between probes: column, name, whether as a ratio.
COMPARED = (
    ("tokens_10", "tokens for 10% error", True),
    ("mean", "exponent of the mean", False),
    ("map", "exponent of the map", False),
    ("H", "horizon H", True),
    ("khat", "k-hat", False),
    ("ess", "effective tokens of a query", True),
)
SYMBOLS = ("circle", "square", "diamond", "triangle-up", "triangle-down", "cross")
#: Sweeps of more scales are compared by their exponents alone.
MOST_SCALES = 12


def compare(runs: Sequence[StoredRun], pages: Sequence[Page]) -> Page:
    """The page before all others.

    Parameters
    ----------
    runs
        At least two runs.
    pages
        Their pages, in the same order.
    """
    kinds = Counter(page.kind for page in pages)
    said = [f"This report holds {counted(len(runs), 'run')}: " + _listing(kinds) + "."]
    parts: list[Part] = [_overview(runs, pages)]
    cards: list[Card] = []
    sweeps = [run for run in runs if run.kind == "sweep" and fits_of(run)]
    if len(sweeps) > 1:
        parts += _sweeps(sweeps)
    groups = of_same_heads([run for run in runs if run.kind == "probe"])
    for group in groups:
        if len(group) > 1:
            table, sentence = _agreement(group)
            said.append(sentence)
            parts += [_probes(group), table]
    if len(groups) > 1:
        said.append("Probes of other weights or other heads are not compared head by head.")
    return Page(
        title="Side by side",
        kind=counted(len(runs), "run"),
        subject="",
        answer=" ".join(said),
        complete=True,
        cards=cards,
        parts=parts,
    )


def _overview(runs: Sequence[StoredRun], pages: Sequence[Page]) -> Table:
    return Table(
        title="Runs",
        name="runs",
        columns=[
            Column("run", "run"),
            Column("kind", "kind"),
            Column("of", "of"),
            Column("state", "state"),
            Column("answer", "answer"),
        ],
        data={
            "run": [page.title for page in pages],
            "kind": [page.kind for page in pages],
            "of": [page.subject for page in pages],
            "state": ["complete" if run.complete else "not complete" for run in runs],
            "answer": [page.answer for page in pages],
        },
    )


def _listing(kinds: Counter[str]) -> str:
    return ", ".join(
        f"{count} × {kind[:1].lower()}{kind[1:]}" for kind, count in kinds.most_common()
    )


def _labels(runs: Sequence[StoredRun]) -> list[str]:
    """Names of runs, with a number where two have the same."""
    count = Counter(run.name for run in runs)
    return [
        run.name if count[run.name] == 1 else f"{run.name} ({i})"
        for i, run in enumerate(runs, start=1)
    ]


def fits_of(run: StoredRun) -> list[dict[str, Any]]:
    """Fits by metric, one entry per scale; empty with one size."""
    return [scale["fit"] for scale in run.results["scales"] if "fit" in scale]


def _sweeps(runs: Sequence[StoredRun]) -> list[Part]:
    """Exponents of all sweeps against the horizon, and their errors against n."""
    labels = _labels(runs)
    views = []
    for metric, name in METRICS.items():
        series = []
        for i, (run, label) in enumerate(zip(runs, labels, strict=True)):
            horizons = [scale["horizon"] for scale in run.results["scales"]]
            fits = [fit[metric] for fit in fits_of(run)]
            low, high = ends_of(fit["interval"] for fit in fits)
            colour, symbol = COLOURS[i % len(COLOURS)], SYMBOLS[i % len(SYMBOLS)]
            series.append(
                Series(label, horizons, [fit["exponent"] for fit in fits], low, high,
                       colour=colour, symbol=symbol, hollow=[not fit["trusted"] for fit in fits])
            )  # fmt: skip
            predicted = [fit["predicted"] for fit in fits]
            if any(value is not None for value in predicted):
                series.append(
                    Series(f"{label}, predicted", horizons, predicted,
                           mode="line" if len(fits) > 1 else "points", colour=colour, dash="dash",
                           symbol="line-ew", joined=True)
                )  # fmt: skip
        every = [h for run in runs for h in (s["horizon"] for s in run.results["scales"])]
        wide = max(every) > 5 * min(every)
        views.append(
            Plot(name, Axis("horizon H", log=wide), Axis("exponent β"), series,
                 [Line("h", 0.5, "1/2")])
        )  # fmt: skip
    out: list[Part] = [
        Chart(
            "Exponents of all sweeps",
            views,
            caption="With 95% intervals; hollow: not to be trusted. Dashed: what theory predicts "
            "on the sizes of the sweep.",
            selector="Exponent of the",
            height=430,
        )
    ]
    if sum(len(run.results["scales"]) for run in runs) <= MOST_SCALES:
        out.append(_sweep_errors(runs, labels))
    return out


def _sweep_errors(runs: Sequence[StoredRun], labels: Sequence[str]) -> Chart:
    views = []
    for metric, name in METRICS.items():
        series, k = [], 0
        for run, label in zip(runs, labels, strict=True):
            for scale in run.results["scales"]:
                mean, noise = scale[metric]["mean"], scale[metric]["standard_error"]
                pairs = [
                    None if m is None or s is None else (max(m - 1.96 * s, 0.05 * m), m + 1.96 * s)
                    for m, s in zip(mean, noise, strict=True)
                ]
                low, high = ends_of(pairs)
                series.append(
                    Series(f"{label}, H = {scale['horizon']:.3g}", run.results["sizes"], mean,
                           low, high, mode="both", colour=COLOURS[k % len(COLOURS)],
                           symbol=SYMBOLS[k % len(SYMBOLS)])
                )  # fmt: skip
                k += 1
        views.append(Plot(name, Axis("tokens n", True), Axis(f"error of the {name}", True), series))
    return Chart(
        "Errors of all sweeps",
        views,
        caption="Mean over replicates with 95% intervals (1.96 standard errors).",
        selector="Error of the",
        height=430,
    )


def _probes(runs: Sequence[StoredRun]) -> Chart:
    """Every head in the first probe against the others."""
    labels, frames = _labels(runs), [run.found.table() for run in runs]
    first, views = frames[0], []
    heads = [f"layer {row.layer}, head {row.head}" for row in first.itertuples()]
    for column, name, ratio in COMPARED:
        series = []
        for i, (label, frame) in enumerate(zip(labels[1:], frames[1:], strict=True)):
            (x_low, x_high), (low, high) = (_ends(f, column) for f in (first, frame))
            series.append(
                Series(label, values(first[column]), values(frame[column]), low, high, x_low,
                       x_high, colour=COLOURS[i % len(COLOURS)],
                       symbol=SYMBOLS[i % len(SYMBOLS)], text=heads)
            )  # fmt: skip
        others = labels[1] if len(labels) == 2 else "the other probes"
        views.append(
            Plot(name, Axis(f"{name}, {labels[0]}", ratio), Axis(f"{name}, {others}", ratio),
                 series, [Line("diagonal")])
        )  # fmt: skip
    return Chart(
        f"The same heads: {', '.join(labels)}",
        views,
        caption="One point per head, with 95% intervals where there are any; on the dotted line "
        "the probes agree. Heads without a number in one of them are left out.",
        selector="Quantity",
        height=460,
    )


def _ends(frame: pd.DataFrame, column: str) -> tuple[list[Any] | None, list[Any] | None]:
    if f"{column}_low" not in frame:
        return None, None
    return values(frame[f"{column}_low"]), values(frame[f"{column}_high"])


def _agreement(runs: Sequence[StoredRun]) -> tuple[Table, str]:
    """Rank correlations and typical differences of every probe to the first one."""
    labels, frames = _labels(runs), [run.found.table() for run in runs]
    rows: list[dict[str, Any]] = []
    for label, frame in zip(labels[1:], frames[1:], strict=True):
        for column, name, ratio in COMPARED:
            a, b = (f[column].astype(float).to_numpy() for f in (frames[0], frame))
            known = np.isfinite(a) & np.isfinite(b) & (not ratio or (a > 0) & (b > 0))
            a, b = a[known], b[known]
            row: dict[str, Any] = {
                "run": label, "quantity": name, "heads": len(a), "ratio": ratio, "rank": None,
                "rank_low": None, "rank_high": None, "change": None, "low": None, "high": None,
            }  # fmt: skip
            if len(a) > 3:
                row |= _ranks(a, b) | _typical(b / a if ratio else b - a)
            rows.append(row)
    names = list(rows[0])
    table = Table(
        title=f"How far they agree with {labels[0]}",
        name="agreement",
        columns=[
            Column("run", "probe"),
            Column("quantity", "quantity"),
            Column("heads", "heads", "n0"),
            Column("rank", "rank correlation", "d2", "rank_low", "rank_high", help="Spearman"),
            Column("change", "median change", "s3", "low", "high",
                   help="ratio to the first probe, or difference from it"),
            Column("kind", "as"),
        ],
        data={name: [row[name] for row in rows] for name in names if name != "ratio"}
        | {"kind": ["ratio" if row["ratio"] else "difference" for row in rows]},
        caption="Over heads, with 95% intervals: of the rank correlation by Fisher's transform, of "
        "the median by order statistics.",
    )  # fmt: skip
    return table, _sentence(labels, rows[0])


def _sentence(labels: Sequence[str], row: dict[str, Any]) -> str:
    """The first row of the table of agreement in words."""
    if row["rank"] is None:
        return f"{labels[0]} and {labels[1]} have too few heads in common to compare."
    rank = between(row["rank"], (row["rank_low"], row["rank_high"]), "d2")
    change = between(row["change"], (row["low"], row["high"]), "s3")
    return (
        f"Between {labels[0]} and {labels[1]}, heads rank by the tokens they need with a "
        f"correlation of {rank}; the median head needs {change} times as many in {labels[1]}."
    )


def _ranks(a: Any, b: Any) -> dict[str, float | None]:
    """Spearman's correlation; the interval by Fisher's transform, variance 1.06 / (n - 3)."""
    if np.ptp(a) == 0 or np.ptp(b) == 0:
        return {}
    rank = float(spearmanr(a, b).statistic)
    middle, half = (
        np.arctanh(np.clip(rank, -0.999999, 0.999999)),
        1.96 * np.sqrt(1.06 / (len(a) - 3)),
    )
    return {
        "rank": rank,
        "rank_low": float(np.tanh(middle - half)),
        "rank_high": float(np.tanh(middle + half)),
    }


def _typical(change: Any) -> dict[str, float | None]:
    """The median; its interval between order statistics, which assumes no law."""
    ordered, count = np.sort(change), len(change)
    k = int(binom.ppf(0.025, count, 0.5))
    ends = (None, None) if k < 1 else (float(ordered[k - 1]), float(ordered[count - k]))
    return {"change": float(np.median(ordered)), "low": ends[0], "high": ends[1]}
