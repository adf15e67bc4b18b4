"""The page of a probe: every head, what one pass predicts, what layers do with them."""

from __future__ import annotations

import numpy as np

from esscher.show.content import (
    Axis,
    Card,
    Chart,
    Column,
    Line,
    Part,
    Plot,
    Series,
    Table,
)
from esscher.show.frames import ends_of, values
from esscher.show.numbers import counted, shown
from esscher.show.pages.probe_heads import METRICS, head_explorer, head_table
from esscher.show.provenance import model_options, options
from esscher.show.stored import StoredRun
from esscher.studies.probe import Probe
from esscher.studies.probe.result import CLOSE, PARAMETRIC

NAME = "Probe of a model"
#: Predictors of the exponent by metric: column of the table and name.
PREDICTORS = {
    "mean": (
        ("predicted_khat", "one-pass k-hat", "blue"),
        ("sharp", "sharp, Gaussian", "orange"),
        ("paper_reference", "published reference", "grey"),
    ),
    "cov": (("predicted_khat", "one-pass k-hat", "blue"), ("sharp", "sharp, Gaussian", "orange")),
    "map": (
        ("predicted_map", "exact on these sizes", "green"),
        ("predicted_khat", "one-pass k-hat", "blue"),
        ("paper_reference", "published reference", "grey"),
    ),
}


def subject(run: StoredRun) -> str:
    """Model, text and sizes."""
    c = run.configuration
    return (
        f"{c['model']['name']} on {c['text']['source']}, {c['mode']}, {c['tokens']:,} tokens, "
        f"n = {c['sizes'][0]:,} to {c['sizes'][-1]:,}"
    )


def answer(run: StoredRun) -> str:
    """The headline."""
    return str(run.found.headline)


def cards(run: StoredRun) -> list[Card]:
    """Heads, rates, tokens, the best predictor."""
    found: Probe = run.found
    table, count = found.table(), len(found.heads)
    near = (table["mean"] - PARAMETRIC).abs() <= CLOSE
    inside = (table["mean_low"] <= PARAMETRIC) & (table["mean_high"] >= PARAMETRIC)
    needed = table["tokens_10"].astype(float).fillna(np.inf)
    low, high = (float(needed.quantile(q, "nearest")) for q in (0.1, 0.9))
    middle = float(table["tokens_10"].median())
    best = found.predictors()
    first = best[best["metric"] == "mean"].iloc[0]
    flagged = int((table["flags"] != "").sum())
    return [
        Card(
            f"{int((near | inside).sum())} of {count}",
            "heads converge like 1/\u2060√n",
            f"mean output: 95% interval holds 1/2, or within {CLOSE:g} of it",
        ),
        Card(
            shown(middle, "n0"),
            "tokens for 10% output error",
            f"median head; 10% and 90% of the heads: {shown(low, 'n3')} and {shown(high, 'n3')}",
        ),
        Card(f"{int((needed > 10_000).sum())} of {count}", "heads need more than 10,000 tokens"),
        Card(
            f"{first['mean absolute error']:.3f}",
            "error of the best predictor",
            f"mean absolute error of the exponent of the mean, {first['predictor']}",
        ),
        Card(f"{flagged} of {count}", "heads carry flags", "reasons to doubt their numbers"),
    ]


def parts(run: StoredRun) -> list[Part]:
    """Explorer, predictions, flags, layers, table of heads."""
    found: Probe = run.found
    table = head_table(found, run.name)
    out: list[Part] = [head_explorer(found, table), _predictions(found), _predictor_table(found)]
    if flags := _flags(found):
        out.append(flags)
    out += _layers(found)
    return [*out, table]


def command_words(run: StoredRun) -> list[str]:
    """``probe MODEL ...``."""
    c = run.configuration
    return [
        "probe", c["model"]["name"],
        *options(
            text=c["text"]["source"], mode=c["mode"], tokens=c["tokens"], context=c["context"],
            sizes=c["sizes"], replicates=c["replicates"], seed=c["seed"], sampling=c["sampling"],
            **model_options(c), out=run.name,
        ),
    ]  # fmt: skip


def _predictions(found: Probe) -> Chart:
    frame = found.table()
    views = []
    for metric, name in METRICS.items():
        series = []
        for column, words, colour in PREDICTORS[metric]:
            known = frame[frame[column].notna()]
            series.append(
                Series(
                    words,
                    x=values(known[column]),
                    y=values(known[metric]),
                    low=values(known[f"{metric}_low"]),
                    high=values(known[f"{metric}_high"]),
                    colour=colour,
                    hollow=[not found.heads[i].fit[metric].trusted for i in known.index],
                    text=[f"layer {r.layer}, head {r.head}" for r in known.itertuples()],
                    rows=[int(i) for i in known.index],
                )
            )
        views.append(
            Plot(
                name,
                Axis("predicted exponent"),
                Axis("measured exponent"),
                series,
                [Line("diagonal")],
            )
        )
    return Chart(
        "Predicted against measured",
        views,
        caption="One point per head and predictor, with the 95% interval of the measured exponent; "
        "on the dotted line both agree. Hollow: a fit that is not to be trusted. Click a point to "
        "see the head.",
        selector="Exponent of the",
        height=430,
    )


def _predictor_table(found: Probe) -> Table:
    table = found.predictors()
    frame = found.table()
    columns = {"one-pass k-hat": "predicted_khat", "sharp Gaussian": "sharp",
               "published reference": "paper_reference", "published bound": "paper_bound",
               "predicted on the range": "predicted_map"}  # fmt: skip
    ends: list[tuple[float, float] | None] = []
    for row in table.to_dict("records"):
        error = (frame[columns[row["predictor"]]] - frame[row["metric"]]).abs().dropna()
        mean, count = float(error.mean()), len(error)
        half = 1.96 * float(error.std(ddof=1)) / np.sqrt(count) if count > 1 else np.nan
        ends.append((max(0.0, mean - half), mean + half) if np.isfinite(half) else None)
    low, high = ends_of(ends)
    return Table(
        title="How good the predictors are",
        name="predictors",
        columns=[
            Column("metric", "exponent of the"),
            Column("predictor", "predictor"),
            Column("error", "mean absolute error", "d3", "error_low", "error_high"),
        ],
        data={
            "metric": [METRICS[m] for m in table["metric"]],
            "predictor": list(table["predictor"]),
            "error": values(table["mean absolute error"]),
            "error_low": low,
            "error_high": high,
        },
        caption="Mean over heads of |predicted - measured|, best first; 95% intervals over heads.",
    )  # fmt: skip


def _flags(found: Probe) -> Table | None:
    seen: dict[str, list[tuple[str, str]]] = {}
    for h in found.heads:
        name = f"{h.layer}.{h.head}"
        for flag in h.flags:
            seen.setdefault(flag.flag, []).append((name, flag.evidence))
    if not seen:
        return None
    order = sorted(seen, key=lambda name: -len(seen[name]))
    return Table(
        title="Flags: why numbers may not be what they seem",
        name="flags",
        columns=[
            Column("flag", "flag"),
            Column("heads", "heads", "n0"),
            Column("example", "for example, head"),
            Column("evidence", "evidence there"),
            Column("which", "all heads", shown=False),
        ],
        data={
            "flag": order,
            "heads": [len(seen[name]) for name in order],
            "example": [seen[name][0][0] for name in order],
            "evidence": [seen[name][0][1] for name in order],
            "which": [" ".join(head for head, _ in seen[name]) for name in order],
        },
        caption=f"{counted(len(found.heads), 'head')} in all. The CSV file lists the heads of each "
        "flag.",
    )


def _layers(found: Probe) -> list[Part]:
    frame = found.layers_table()
    if frame.empty:
        return []
    layers = [float(v) for v in frame["layer"]]

    def series(column: str, words: str, colour: str, ends: bool = True) -> Series:
        return Series(
            words, layers, values(frame[column]),
            values(frame[f"{column}_low"]) if ends else None,
            values(frame[f"{column}_high"]) if ends else None,
            mode="both" if ends else "line", colour=colour, dash="solid" if ends else "dot",
        )  # fmt: skip

    axis = Axis("layer")
    chart = Chart(
        "Heads together",
        [
            Plot("exponents", axis, Axis("exponent of the mean output"), [
                series("projected", "behind the output projection", "blue"),
                series("side_by_side", "heads side by side", "green"),
                series("heads_mean", "mean of the heads", "ink", False),
                series("heads_worst", "worst head", "orange", False),
            ], apart=True),
            Plot("effective heads", axis, Axis("effective number of heads"), [
                series("effective_heads", "errors of the mean output", "blue"),
                series("effective_heads_map", "errors of single queries", "orange"),
                series("effective_magnitudes", "magnitudes of errors", "grey"),
            ], [Line("h", float(frame["heads"].max()), "all heads")]),
            Plot("amplification", axis, Axis("squared error of the sum / sum of squared errors"), [
                series("amplification", "mean output", "blue"),
                series("amplification_map", "single queries", "orange"),
            ], [Line("h", 1.0, "independent errors")]),
        ],
        caption="Errors of the heads of a layer meet behind the output projection. Effective "
        "heads: (tr R)² / tr R² of the correlations R of their errors. Bars are 95% intervals.",
        selector="By layer:",
    )  # fmt: skip
    return [chart]
