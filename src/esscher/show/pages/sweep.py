"""The page of a sweep: errors against n, exponents against the horizon, what theory says."""

from __future__ import annotations

from typing import Any

import numpy as np

from esscher.core.errors import EsscherError
from esscher.math.heads import law_head
from esscher.math.laws import standard_law
from esscher.show.content import Axis, Card, Chart, Column, Line, Part, Plot, Prose, Series, Table
from esscher.show.frames import ends_of
from esscher.show.numbers import between, counted, shown
from esscher.show.provenance import options
from esscher.show.stored import StoredRun
from esscher.studies.sweep.provenance import describe_head

NAME = "Sweep of a synthetic head"
METRICS = {"map": "map", "mean": "mean output", "cov": "covariance"}
#: Lines that are drawn beside measured exponents: field of a fit, name, colour, line.
THEORY = (
    ("predicted", "predicted on these sizes", "orange", "dash"),
    ("sharp", "sharp, as n grows", "green", "solid"),
    ("paper_reference", "published reference", "grey", "dot"),
    ("paper_bound", "published bound", "purple", "dot"),
)
#: A measured exponent agrees with a predicted one inside its interval or within this.
CLOSE = 0.03


def subject(run: StoredRun) -> str:
    """Law, dimension, horizons, sizes."""
    c = run.configuration
    scales = run.results["scales"]
    low, high = scales[0]["horizon"], scales[-1]["horizon"]
    horizon = f"H = {low:.3g}" if len(scales) == 1 else f"H = {low:.3g} to {high:.3g}"
    return (
        f"{law(run)} tokens, d = {c['head']['key_dim']}, {horizon}, "
        f"n = {c['sizes'][0]:,} to {c['sizes'][-1]:,}"
    )


def law(run: StoredRun) -> str:
    """Name of the law."""
    head = run.configuration["head"]
    return str(head["law"] or head["kind"])


def answer(run: StoredRun) -> str:
    """How fast errors fall, and whether theory says so."""
    scales, sizes = run.results["scales"], run.results["sizes"]
    fits = fits_of(run)
    if not fits:
        return (
            f"{counted(run.results['replicates'], 'replicate')} at {counted(len(sizes), 'size')}: "
            "it takes two sizes to see how fast errors fall."
        )
    first = fits[0]["mean"]
    if len(scales) == 1:
        text = (
            f"With {law(run)} tokens at horizon H = {scales[0]['horizon']:.3g} the error of the "
            f"mean output falls like n^-{between(first['exponent'], first['interval'], 'd3')}"
        )
        if first["predicted"] is not None:
            text += f"; theory{_for_whom(run)} predicts {first['predicted']:.3f} on these sizes"
    else:
        last = fits[-1]["mean"]
        text = (
            f"Over {len(scales)} horizons, from H = {scales[0]['horizon']:.3g} to "
            f"{scales[-1]['horizon']:.3g}, the exponent of the mean output goes from "
            f"{between(first['exponent'], first['interval'], 'd2')} to "
            f"{between(last['exponent'], last['interval'], 'd2')}"
        )
    agreeing, known = agreement(fits)
    if known:
        text += (
            f". Measured and predicted exponents agree in {agreeing} of {known} cases (inside the "
            f"95% interval or within {CLOSE:g})"
        )
        if len(scales) > 1 and _for_whom(run):
            text += f"; predictions are those{_for_whom(run)}"
    return text + "."


def _for_whom(run: StoredRun) -> str:
    """What predictions are for, where that is not the law itself."""
    notes = [note for known in run.found.predictions or () for note in known.notes]
    gaussian = any(note.startswith("curves are predicted for Gaussian") for note in notes)
    return " for Gaussian tokens with the same second moments" if gaussian else ""


def fits_of(run: StoredRun) -> list[dict[str, Any]]:
    """Fits by metric, one entry per scale; empty with one size."""
    return [scale["fit"] for scale in run.results["scales"] if "fit" in scale]


def agreement(fits: list[dict[str, Any]]) -> tuple[int, int]:
    """How many predicted exponents are confirmed, of how many."""
    known = [f for fit in fits for f in fit.values() if f["predicted"] is not None]
    return sum(agrees(f) for f in known), len(known)


def agrees(fit: dict[str, Any]) -> bool:
    """Whether a fit confirms what was predicted."""
    low, high = fit["interval"]
    inside = low is not None and high is not None and low <= fit["predicted"] <= high
    return bool(inside or abs(fit["exponent"] - fit["predicted"]) <= CLOSE)


def cards(run: StoredRun) -> list[Card]:
    """Replicates, exponents, agreement."""
    fits, counts = fits_of(run), run.results["replicates_at_size"]
    few = f", {min(counts):,} to {max(counts):,} by size" if min(counts) != max(counts) else ""
    out = [Card(shown(run.results["replicates"], "n0"), "replicates", f"independent samples{few}")]
    if fits and len(fits) == 1:
        for metric, name in METRICS.items():
            fit = fits[0][metric]
            low, high = (shown(end, "d3") for end in fit["interval"])
            note = f"95% interval {low} to {high}"
            out.append(Card(shown(fit["exponent"], "d3"), f"exponent of the {name}", note))
    agreeing, known = agreement(fits)
    if known:
        out.append(
            Card(f"{agreeing} of {known}", "predicted exponents confirmed",
                 f"inside the interval or within {CLOSE:g}")
        )  # fmt: skip
    trusted = [f["trusted"] for fit in fits for f in fit.values()]
    if trusted:
        out.append(Card(f"{sum(trusted)} of {len(trusted)}", "fits that can be trusted"))
    return out


def parts(run: StoredRun) -> list[Part]:
    """Errors, exponents, predictions, tables, notes."""
    out: list[Part] = [_errors(run)]
    fits = fits_of(run)
    if len(fits) > 1:
        out.append(_exponents(run, fits))
    if agreement(fits)[1] > 1:
        out.append(_predictions(run, fits))
    if fits:
        out.append(rate_table(run))
    out.append(_error_table(run))
    notes = [*run.results["notes"], *(n for p in run.found.predictions or () for n in p.notes)]
    if notes:
        out.append(Prose("Notes", [f"{n[:1].upper()}{n[1:]}." for n in dict.fromkeys(notes)]))
    return out


def command_words(run: StoredRun) -> list[str] | None:
    """``sweep LAW ...``, if the head is one that the command can make."""
    c = run.configuration
    head = c["head"]
    try:
        rebuilt = law_head(standard_law(head["law"], head["key_dim"]), horizon=head["horizon"])
    except (EsscherError, ValueError, TypeError, KeyError):
        return None
    if describe_head(rebuilt).sha256 != head["sha256"]:
        return None
    usual_count = 1024 if c["queries"] == "population" else None
    return [
        "sweep", head["law"],
        *options(
            horizon=head["horizon"], dim=head["key_dim"], sizes=c["sizes"],
            alpha=c["scales"] if c["scales"] != [1.0] else None,
            replicates=c["replicates"], seed=c["seed"], precision=c["precision"],
            max_replicates=c["max_replicates"],
            queries=c["queries"],
            query_count=c["query_count"] if c["query_count"] != usual_count else None,
            dtype=c["dtype"], device=c["device"], reference_tokens=c["reference_tokens"],
            no_predict=run.found.predictions is None,
            out=run.name,
        ),
    ]  # fmt: skip


def _errors(run: StoredRun) -> Chart:
    sizes, scales = run.results["sizes"], run.results["scales"]
    known = run.found.predictions
    views = []
    for metric, name in METRICS.items():
        series = []
        for s, scale in enumerate(scales):
            mean, noise = scale[metric]["mean"], scale[metric]["standard_error"]
            low, high = _bars(mean, noise)
            label = f"H = {scale['horizon']:.3g}" if len(scales) > 1 else "measured"
            shade = s / (len(scales) - 1) if len(scales) > 1 else None
            series.append(Series(label, sizes, mean, low, high, mode="points", shade=shade))
            predicted = known[s].errors.get(metric) if known else None
            if predicted is not None:
                series.append(
                    Series(
                        "predicted"
                        if len(scales) == 1
                        else f"predicted, H = {scale['horizon']:.3g}",
                        sizes,
                        predicted,
                        mode="line",
                        dash="dash",
                        colour="orange",
                        shade=shade,
                        joined=len(scales) > 1,
                    )
                )
            fit = scale.get("fit", {}).get(metric)
            if fit and len(scales) == 1 and fit["exponent"] is not None:
                n = np.asarray(sizes, dtype=np.float64)
                series.append(
                    Series("fitted C n^-β", sizes, list(fit["constant"] * n ** -fit["exponent"]),
                           mode="line", colour="ink")
                )  # fmt: skip
        views.append(
            Plot(name, Axis("tokens n", True, sizes if len(sizes) <= 8 else None),
                 Axis(f"error of the {name}", True), series)
        )  # fmt: skip
    dashed = " Dashed: predicted by theory." if known else ""
    return Chart(
        "Errors against the number of tokens",
        views,
        caption="Mean over replicates with 95% intervals (1.96 standard errors). Both axes are "
        f"logarithmic: a power law is a straight line.{dashed}",
        selector="Error of the",
        height=440,
    )


def _bars(mean: list[Any], noise: list[Any]) -> tuple[list[Any], list[Any]]:
    """Ends of 95% intervals; a lower end that would not be positive is cut just above 0."""
    pairs = [
        (None, None) if m is None or s is None else (max(m - 1.96 * s, 0.05 * m), m + 1.96 * s)
        for m, s in zip(mean, noise, strict=True)
    ]
    return [low for low, _ in pairs], [high for _, high in pairs]


def _exponents(run: StoredRun, fits: list[dict[str, Any]]) -> Chart:
    horizons = [scale["horizon"] for scale in run.results["scales"]]
    views = []
    for metric, name in METRICS.items():
        own = [fit[metric] for fit in fits]
        low, high = ends_of(f["interval"] for f in own)
        series = [
            Series("measured", horizons, [f["exponent"] for f in own], low, high,
                   hollow=[not f["trusted"] for f in own])
        ]  # fmt: skip
        for key, words, colour, dash in THEORY:
            line = [f[key] for f in own]
            if any(value is not None for value in line):
                series.append(Series(words, horizons, line, mode="line", colour=colour, dash=dash))
        views.append(
            Plot(name, Axis("horizon H", log=horizons[-1] > 5 * horizons[0]),
                 Axis("exponent β"), series, [Line("h", 0.5, "1/2"), Line("v", 1.0, "H = 1")])
        )  # fmt: skip
    return Chart(
        "Exponents against the horizon",
        views,
        caption="Measured exponents with 95% intervals from resampled replicates; hollow: not to "
        "be trusted (the table says why).",
        selector="Exponent of the",
    )


def _predictions(run: StoredRun, fits: list[dict[str, Any]]) -> Chart:
    series = []
    for (metric, name), colour in zip(METRICS.items(), ("blue", "orange", "green"), strict=True):
        rows = [
            (scale["horizon"], fit[metric])
            for scale, fit in zip(run.results["scales"], fits, strict=True)
            if fit[metric]["predicted"] is not None
        ]
        low, high = ends_of(f["interval"] for _, f in rows)
        series.append(
            Series(name, [f["predicted"] for _, f in rows], [f["exponent"] for _, f in rows],
                   low, high, colour=colour, hollow=[not f["trusted"] for _, f in rows],
                   text=[f"H = {h:.3g}" for h, _ in rows])
        )  # fmt: skip
    return Chart(
        "Predicted against measured",
        [Plot("exponents", Axis("predicted exponent"), Axis("measured exponent"), series,
              [Line("diagonal")])],
        caption="Exponents on the same sizes; bars are 95% intervals, on the dotted line both "
        "agree.",
    )  # fmt: skip


def rate_table(run: StoredRun) -> Table:
    """Fitted exponents of all scales and metrics."""
    rows = [
        (scale, metric, scale["fit"][metric])
        for scale in run.results["scales"]
        for metric in METRICS
    ]
    fits = [fit for _, _, fit in rows]
    low, high = ends_of(fit["interval"] for fit in fits)
    clow, chigh = ends_of(fit["constant_interval"] for fit in fits)
    return Table(
        title="Exponents",
        name=f"{run.name}-exponents",
        columns=[
            Column("horizon", "H", "s3"),
            Column("metric", "error of the"),
            Column("exponent", "exponent β", "d3", "low", "high"),
            Column("constant", "constant C", "s3", "constant_low", "constant_high"),
            Column("predicted", "predicted", "d3", help="by theory, on these sizes"),
            Column("sharp", "sharp", "d3", help="as n grows"),
            Column("paper_reference", "reference", "d3", help="published reference"),
            Column("paper_bound", "bound", "d3", help="published bound"),
            Column("law", "law"),
            Column("trusted", "trusted"),
            Column("reasons", "why not"),
        ],
        data={
            "horizon": [scale["horizon"] for scale, _, _ in rows],
            "alpha": [scale["alpha"] for scale, _, _ in rows],
            "metric": [METRICS[metric] for _, metric, _ in rows],
            "exponent": [fit["exponent"] for fit in fits],
            "low": low,
            "high": high,
            "constant": [fit["constant"] for fit in fits],
            "constant_low": clow,
            "constant_high": chigh,
            **{key: [fit[key] for fit in fits] for key, *_ in THEORY},
            "law": [fit["law"] for fit in fits],
            "trusted": [fit["trusted"] for fit in fits],
            "reasons": ["; ".join(fit["reasons"]) for fit in fits],
        },
        caption="β and C of error ~ C n^-β, with 95% intervals.",
    )


def _error_table(run: StoredRun) -> Table:
    frame = run.found.table()
    data: dict[str, list[Any]] = {
        name: frame[name].tolist() for name in ("horizon", "n", "replicates")
    }
    columns = [Column("horizon", "H", "s3"), Column("n", "n", "n0"),
               Column("replicates", "replicates", "n0")]  # fmt: skip
    for metric, name in METRICS.items():
        mean, noise = frame[metric].tolist(), frame[f"{metric}_standard_error"].tolist()
        data[metric] = mean
        data[f"{metric}_low"], data[f"{metric}_high"] = _bars(mean, noise)
        data[f"{metric}_median"] = frame[f"{metric}_median"].tolist()
        columns.append(
            Column(metric, f"error of the {name}", "s3", f"{metric}_low", f"{metric}_high")
        )
        columns.append(Column(f"{metric}_median", f"median, {name}", "s3", shown=False))
    return Table(
        title="Errors",
        name=f"{run.name}-errors",
        columns=columns,
        data=data,
        caption="Mean over replicates with 95% intervals; medians are in the CSV file.",
    )
