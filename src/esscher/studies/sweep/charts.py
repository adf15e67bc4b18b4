"""Charts of a sweep: errors with fitted laws and predicted curves, exponents by horizon."""

from __future__ import annotations

import numpy as np
from altair.typing import ChartType

from esscher.core.variables import table
from esscher.show.chart import Axis, Series, figure, guides, lines, panel, points
from esscher.show.content import Drawing
from esscher.show.frames import records
from esscher.show.theme import BLUE, GREEN, GREY, VERMILION, limits
from esscher.studies.sweep.study import Sweep, SweepData
from esscher.studies.sweep.view import TITLES, subject

MEASURED, PREDICTED = "measured", "predicted on the same sizes"
SHARPEST, REFERENCE, BOUND = "asymptotic, conjectured", "published reference", "published bound"
#: Exponents over the horizon: column of the table, colour, shape and dashes.
STYLES: dict[str, tuple[str, str, str, tuple[int, ...]]] = {
    MEASURED: ("exponent", BLUE, "circle", (1, 0)),
    PREDICTED: ("predicted", VERMILION, "cross", (4, 2)),
    SHARPEST: ("asymptotic", GREEN, "diamond", (1, 0)),
    REFERENCE: ("paper_reference", GREY, "square", (6, 2, 1, 2)),
    BOUND: ("paper_bound", GREY, "triangle-down", (1, 2)),
}
#: Lines over n: columns and names.
LINES = {"fitted": "fitted law", "expected": "predicted"}
SURE = "bars: 95% intervals; hollow: not to be trusted"


def curve(result: Sweep) -> ChartType:
    """Draw errors against n, fitted laws and predicted curves; the darkest horizon is smallest."""
    data, sizes = result.data, result.data["size"].values
    horizons, alphas = data["horizon"].values, data["alpha"].values.tolist()
    names = [f"{horizon:.3g}" for horizon in horizons]
    if len(set(names)) < len(names):
        names = [f"{name} (α = {alpha!r})" for name, alpha in zip(names, alphas, strict=True)]
    order = [names[place] for place in np.argsort(horizons, kind="stable")]
    series = Series("horizon", order, "horizon H", shapes=("circle",) * len(names), ordered=True)
    expected = data["predicted_error"].sel(tokens=sizes).rename(tokens="size")
    columns = ["error", "exponent", "constant", "trusted", "expected"]
    frame = table(data.assign(expected=expected), ("metric", "alpha", "size"), columns)
    frame = frame.rename(columns={"size": "n"})
    frame["horizon"] = frame["alpha"].map(dict(zip(alphas, names, strict=True)))
    frame["hollow"] = frame["exponent"].notna() & ~frame["trusted"]
    frame["fitted"] = frame["constant"] * frame["n"] ** -frame["exponent"]
    # between the ends a power law is straight
    frame["fitted"] = frame["fitted"].where(frame["n"].isin(sizes[[0, -1]]))
    shown = {line: name for line, name in LINES.items() if frame[line].notna().any()}
    x = Axis("n", "tokens n", log=True, limits=limits(sizes, log=True))
    panels = []
    for metric, title in TITLES.items():
        here = frame[frame["metric"] == metric]
        measured = here[here["error"] > 0]
        measured = measured[["horizon", "n", "error", "error_low", "error_high", "hollow"]]
        rows = records(measured, interval="error")
        drawn = [
            row | {"line": name}
            for line, name in shown.items()
            for row in records(
                here[["horizon", "n", line]].dropna().rename(columns={line: "error"})
            )
        ]
        y = Axis.of(SweepData.error, rows, [row["error"] for row in drawn], log=True)
        dashes = Series("line", list(shown.values()))
        below = [lines(drawn, x, y, series, dashes=dashes)] if drawn else []
        panels.append(panel(*below, points(rows, x, y, series), title=title))
    return figure(panels, subject(result), note=SURE)


def exponents(result: Sweep) -> ChartType:
    """Draw fitted exponents beside predicted, asymptotic and published ones."""
    frame = result.table("exponents")
    frame = frame[frame["exponent"].notna()]
    # of tokens without a limit nothing is known but what was measured and predicted
    limitless = result.setup.settings.reference_tokens is not None
    styles = {
        kind: style
        for kind, style in STYLES.items()
        if style[0] in frame and not (limitless and kind not in (MEASURED, PREDICTED))
    }
    _, colours, shapes, dashes = zip(*styles.values(), strict=True)
    kinds = Series("kind", list(styles), colours=colours, shapes=shapes, dashes=dashes)
    log = bool(frame["horizon"].min() > 0)
    x = Axis("horizon", "horizon H", log=log, limits=limits(frame["horizon"], log=log))
    panels = []
    for metric, title in TITLES.items():
        here = frame[frame["metric"] == metric]
        measured = here[["horizon", "exponent", "exponent_low", "exponent_high"]]
        measured = measured.assign(kind=MEASURED, hollow=~here["trusted"])
        rows = records(measured, interval="exponent")
        others = [
            {"kind": kind, "horizon": horizon, "exponent": exponent}
            for kind, (column, *_) in styles.items()
            if kind != MEASURED
            for horizon, exponent in here[["horizon", column]].dropna().to_numpy().tolist()
        ]
        # a prediction may be anything before the burn-in; it shall not press the rest together
        ends = [0.0, 0.6, *(min(row["exponent"], 1.0) for row in others)]
        ends += [row[end] for row in rows for end in ("exponent", "low", "high")]
        y = Axis("exponent", "exponent β", limits=limits(ends))
        panels.append(
            panel(
                guides([{"at": 0.0}], x, y),
                lines(others, x, y, kinds),
                points([*others, *rows], x, y, kinds),
                title=title,
            )
        )
    return figure(panels, subject(result), note=SURE)


DRAWINGS = (
    Drawing(
        "curve",
        "errors against n with fitted law and prediction",
        curve,
        missing=lambda result: None if result.cells else "no replicate is complete",
        heading="Errors against the number of tokens",
        caption="Mean over replicates. Both axes are logarithmic: a power law is a straight line.",
    ),
    Drawing(
        "exponents",
        "exponents against the horizon",
        exponents,
        missing=lambda result: (
            None if result.has_fits else "how fast errors fall takes at least 2 sizes"
        ),
        heading="Exponents against the horizon",
        caption="Exponents β of error ~ C n^-β; intervals from resampled replicates. The CSV file "
        "of the table says why a fit is not to be trusted.",
    ),
)
