"""The figure of every claim."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import xarray as xr
from altair.typing import ChartType

from esscher.core.variables import table
from esscher.runs.result import Result
from esscher.show.chart import Axis, Series, bands, figure, guides, lines, panel, points
from esscher.show.content import Drawing
from esscher.show.frames import records
from esscher.show.theme import BLUE, GREEN, GREY, LINE, VERMILION, limits
from esscher.studies.paper.claims import (
    CLAIMS,
    bound_points,
    domain_verdicts,
    layer_of,
    median_head,
    published,
)
from esscher.studies.paper.models import TASKS, WITH, WITHOUT
from esscher.studies.paper.study import NAMES, PaperData, PaperSettings
from esscher.studies.paper.synthetic import LAWS, METRICS, SUPPORT_LAWS

Rows = list[dict[str, Any]]
#: Kinds of lines and points beside each other.
MEASURED, REFERENCE, BOUND = "measured", "1/(2(1+Ψ))", "1/(2(1+32Ψ))"
PREDICTED = "predicted on these sizes"
EACH, MIDDLE = "each head", "median, 95% interval"
SQUARE_ROOT, LOGARITHM = "1/√n", "1/√(ln n)"
TWO_ERRORS, INTERVALS = "bars: 2 standard errors", "bars: 95% intervals"


def rows_of(data: xr.Dataset, axes: Sequence[str], y: str, error: str = "", *more: str) -> Rows:
    """Return rows for a chart: a variable with its interval, or 2 standard errors on both sides."""
    names = [name for name in (y, error, *more) if name]
    frame = table(data, axes, names).rename(columns={f"{y}_low": "low", f"{y}_high": "high"})
    if error:
        frame["low"], frame["high"] = (frame[y] + sign * 2 * frame[error] for sign in (-1, 1))
    return records(frame)


def ends_of(rows: Rows, *fields: str) -> list[Any]:
    """Return the values of some fields, for the limits of an axis."""
    return [row.get(field) for row in rows for field in fields]


def log_axis(field: str, title: str, values: Any) -> Axis:
    """Return a logarithmic axis that has room for values."""
    return Axis(field, title, log=True, limits=limits(values, log=True))


def exponent_axis(rows: Rows) -> Axis:
    """Return an axis of exponents; wide intervals end outside of it."""
    lows = [max(low, -0.2) for low in ends_of(rows, "low") if low is not None]
    highs = [min(high, 1.2) for high in ends_of(rows, "high") if high is not None]
    return Axis("exponent", "exponent β", limits=limits([0.0, 0.6, *lows, *highs]))


def draw_limit(data: PaperData) -> ChartType:
    """Draw errors against n, with the predicted ones."""
    limit, laws = data.limit.dataset, Series("law", LAWS)
    rows = rows_of(limit, ("law", "size"), "error", "standard_error", "expected")
    expected = [row | {"error": row["expected"], "low": None, "high": None} for row in rows]
    n = log_axis("size", "tokens n", limit["size"].values)
    error = log_axis("error", "distance from the limit", ends_of(rows, "error", "expected"))
    return figure(
        [panel(lines(expected, n, error, laws), points(rows, n, error, laws))],
        "Softmax over n tokens against its infinite-token limit",
        note=f"lines: predicted root-mean-square errors; {TWO_ERRORS}",
        least=300,
    )


def draw_ball(data: PaperData) -> ChartType:
    """Draw the supremum against n, and the constants against R."""
    ball = data.ball.dataset
    rows = [
        row | {"R": f"{row['radius']:g}"}
        for row in rows_of(ball, ("radius", "size"), "error", "standard_error")
    ]
    n = log_axis("size", "tokens n", ball["size"].values)
    error = log_axis("error", "supremum of the map's error", ends_of(rows, "error"))
    series = Series("R", list(dict.fromkeys(ends_of(rows, "R"))), "radius R", ordered=True)
    largest = ball["size"].values[-1]
    bound = (ball["expected"][:, -1] * largest**0.5).rename("constant").to_dataset()
    constants = [
        *(row | {"kind": MEASURED} for row in rows_of(ball, ("radius",), "constant")),
        *(row | {"kind": "bound"} for row in rows_of(bound, ("radius",), "constant")),
    ]
    at = log_axis("radius", "radius R of the ball", ball["radius"].values)
    constant = log_axis("constant", "constant C(R)", ends_of(constants, "constant"))
    kinds = Series(
        "kind", (MEASURED, "bound"), colours=(BLUE, VERMILION), shapes=("circle", "square")
    )
    return figure(
        [
            panel(lines(rows, n, error, series), points(rows, n, error, series)),
            panel(lines(constants, at, constant, kinds), points(constants, at, constant, kinds)),
        ],
        "Uniform error on a ball of tilts, unit sphere of R^3",
        note=TWO_ERRORS,
        apart=True,
    )


def draw_moments(data: PaperData) -> ChartType:
    """Draw constants against R, a panel per metric."""
    support, laws = data.moments.dataset, Series("law", SUPPORT_LAWS)
    radius = log_axis("radius", "size R of the support", support["radius"].values)
    panels = []
    for metric, title in METRICS.items():
        rows = rows_of(support.sel(metric=metric), ("law", "radius"), "constant")
        constant = log_axis("constant", "sqrt(n) × error", ends_of(rows, "constant"))
        panels.append(
            panel(
                lines(rows, radius, constant, laws),
                points(rows, radius, constant, laws),
                title=title,
            )
        )
    return figure(
        panels,
        "Constants of the error against the size of the support",
        note=f"a power of R is a straight line; {TWO_ERRORS}",
    )


def draw_exponents(fits: xr.Dataset, field: str, title: str) -> list[ChartType]:
    """Draw exponents of Gaussian tokens, a panel per metric, with the published lines."""
    psi = fits["horizon"] ** 2
    looks = {
        MEASURED: ("exponent", BLUE, "circle", (1, 0)),
        REFERENCE: ("reference", VERMILION, LINE, (6, 2, 1, 2)),
        BOUND: ("paper_bound", GREY, LINE, (1, 2)),
    }
    if fits["predicted"].notnull().any():
        looks[PREDICTED] = ("predicted", GREEN, LINE, (4, 2))
    columns, colours, shapes, dashes = zip(*looks.values(), strict=True)
    series = Series("kind", tuple(looks), colours=colours, shapes=shapes, dashes=dashes)
    fits = fits.assign({"reference": published(psi), "paper_bound": published(psi, 32)})
    fits = fits.assign({field: fits["horizon"] if field == "H" else fits["scaling"] ** 2})
    x = log_axis(field, title, fits[field].values)
    y = exponent_axis(rows_of(fits, ("setting", "metric"), "exponent"))
    panels = []
    for metric, name in METRICS.items():
        rows = rows_of(fits.sel(metric=metric), ("setting",), "exponent", "", field, *columns[1:])
        curves = [
            {field: row[field], "kind": kind, "exponent": row[column]}
            for kind, column in zip(tuple(looks)[1:], columns[1:], strict=True)
            for row in rows
            if row[column] is not None
        ]
        measured = [row | {"kind": MEASURED} for row in rows]
        blocks = lines(curves, x, y, series), points(measured, x, y, series)
        panels.append(panel(guides([{"at": 0.5}], x, y), *blocks, title=name))
    return panels


def draw_reference(data: PaperData) -> ChartType:
    """Draw the authors' setting."""
    fits = data.gaussian.dataset
    panels = draw_exponents(fits.isel(setting=fits["tokens"].values == "authors"), "H", "horizon H")
    title = "Exponents in the authors' setting: Gaussian tokens, d = 50"
    return figure(panels, title, note=INTERVALS)


def draw_ablation(data: PaperData) -> ChartType:
    """Draw exponents against alpha^2; the last panel has real heads."""
    fits = data.alpha.exponent.sel(metric="mean")
    kinds = Series("kind", (EACH, MIDDLE), colours=(GREY, VERMILION), shapes=(LINE, "circle"))
    x = log_axis("alpha", "factor α of the tilts", fits["alpha"].values)
    curves: dict[int, Rows] = {}
    middle = []
    for alpha, values in zip(fits["alpha"].values.tolist(), fits.values[..., 0], strict=True):
        known = ~np.isnan(values.ravel())
        value, low, high = median_head(layer_of(fits)[known], values.ravel()[known], "mean")
        middle.append({"kind": MIDDLE, "alpha": alpha, "beta": value, "low": low, "high": high})
        for i, beta in enumerate(values.ravel().tolist()):
            curves.setdefault(i, []).append({"kind": EACH, "alpha": alpha, "beta": beta})
    values = fits.values[..., 0]
    y = Axis("beta", "exponent β, mean output", limits=limits([0.0, 0.6, *values.ravel()]))
    real = panel(
        guides([{"at": 0.5, "name": "1/2"}], x, y),
        *(lines(rows, x, y, kinds) for rows in curves.values()),
        points(middle, x, y, kinds),
        title=f"real heads, layer {', '.join(map(str, fits['layer'].values))}",
    )
    return figure(
        [*draw_exponents(data.ablation.dataset, "square", "α²"), real],
        "Scaling the tilts by α: Gaussian tokens, and heads of a model",
        note=INTERVALS,
        apart=True,
    )


def draw_bound(data: PaperData) -> ChartType:
    """Draw exponents against Psi, with the bound."""
    sources = bound_points(data)
    series = Series(
        "source",
        (*sources, BOUND),
        colours=(BLUE, GREEN, VERMILION),
        shapes=("circle", "square", LINE),
    )
    names = ("psi", "exponent", "low", "high")
    rows = [
        dict(zip(names, point[:4], strict=True)) | {"source": source, "metric": metric}
        for source, numbers in sources.items()
        for metric, of_metric in zip(("mean", "cov"), numbers.tolist(), strict=True)
        for point in of_metric
        if point[0] > 0
    ]
    x = log_axis("psi", "coupling Ψ = H²", ends_of(rows, "psi"))
    y = exponent_axis(rows)
    grid = np.geomspace(min(ends_of(rows, "psi")), max(ends_of(rows, "psi")), 80)
    bound = [{"source": BOUND, "psi": p, "exponent": published(p, 32)} for p in grid.tolist()]
    panels = [
        panel(
            lines(bound, x, y, series),
            points([row for row in rows if row["metric"] == metric], x, y, series),
            title=METRICS[metric],
        )
        for metric in ("mean", "cov")
    ]
    return figure(panels, f"Measured exponents and the bound {BOUND}", note=INTERVALS)


def draw_hardmax(data: PaperData) -> ChartType:
    """Draw the mean output against n, simulated and exact, and the argmax of real heads."""
    curve = data.hardmax.dataset
    rows = rows_of(curve, ("size",), "simulated", "standard_error", "exact", "leading")
    drawn = [
        {"size": row["size"], "line": kind, "simulated": row[kind]}
        for row in rows
        for kind in ("exact", "leading")
    ]
    n = log_axis("size", "tokens n", curve["size"].values)
    error = log_axis("simulated", "size of the mean output", ends_of([*rows, *drawn], "simulated"))
    kinds = Series("line", ("exact", "leading"), dashes=((1, 0), (1, 2)))
    left = panel(
        lines(drawn, n, error, kinds), points(rows, n, error), title="Gaussian tokens, d = 1"
    )
    return figure(
        [left, draw_argmax(data)],
        "Hardmax attention over n tokens",
        note=f"points: simulated; {TWO_ERRORS}",
        apart=True,
    )


def draw_argmax(data: PaperData) -> ChartType:
    """Draw the argmax's error of the mean against n, over all heads: a panel."""
    errors = data.argmax.error.sel(metric="mean", bound="value")
    sizes = errors["size"].values.tolist()
    values = errors.values.reshape(-1, len(sizes))
    start, layer = sizes[0], layer_of(errors)
    rows, spread, curves = [], [], []
    for j, n in enumerate(sizes):
        known = (values[:, j] > 0) & (values[:, 0] > 0)
        ratio = values[known, j] / values[known, 0]
        value, low, high = median_head(layer[known], ratio, "error")
        rows.append({"kind": MIDDLE, "n": n, "error": value, "low": low, "high": high})
        least, most = np.quantile(ratio, [0.1, 0.9]).tolist()
        spread.append({"kind": MIDDLE, "n": n, "low": least, "high": most})
    for n in np.geomspace(start, sizes[-1], 20).tolist():
        curves += [
            {"kind": SQUARE_ROOT, "n": n, "error": (n / start) ** -0.5},
            {"kind": LOGARITHM, "n": n, "error": (np.log(n) / np.log(start)) ** -0.5},
        ]
    kinds = Series(
        "kind",
        (MIDDLE, SQUARE_ROOT, LOGARITHM),
        colours=(BLUE, VERMILION, GREEN),
        shapes=("circle", LINE, LINE),
    )
    x = log_axis("n", "tokens n", sizes)
    ends = [*ends_of(spread, "low", "high"), *ends_of(curves, "error")]
    y = log_axis("error", f"error over that at n = {start}", ends)
    return panel(
        bands(spread, x, y, colour=BLUE),
        lines(curves, x, y, kinds),
        points(rows, x, y, kinds),
        title="argmax of real heads (band: 10 to 90% of heads)",
    )


def draw_heads(data: PaperData) -> ChartType:
    """Draw exponents against Psi, one point per head."""
    kinds = Series(
        "kind",
        (MEASURED, REFERENCE, BOUND),
        colours=(BLUE, VERMILION, GREEN),
        shapes=("circle", LINE, LINE),
    )
    heads, panels = data.heads.dataset, []
    y = exponent_axis(
        rows_of(heads.sel(metric=["mean", "cov"]), ("metric", "layer", "head"), "exponent")
    )
    for metric, psi, title in (
        ("mean", "psi", "mean output"),
        ("cov", "psi", "covariance"),
        ("mean", "psi_one_sided", "mean output, one-sided Ψ"),
    ):
        rows = [
            row
            | {"kind": MEASURED, "hollow": not row["trusted"], "at": row[psi]}
            | {"name": f"head {row['layer']}.{row['head']}"}
            for row in rows_of(
                heads.sel(metric=metric), ("layer", "head"), "exponent", "", psi, "trusted"
            )
            if row[psi] is not None and row["exponent"] is not None
        ]
        if not rows:  # one-sided Psi is not known everywhere
            continue
        x = log_axis("at", "Ψ", ends_of(rows, "at"))
        curves = [
            {"kind": kind, "at": at, "exponent": published(at, factor)}
            for kind, factor in ((REFERENCE, 1.0), (BOUND, 32.0))
            for at in np.geomspace(*limits(ends_of(rows, "at"), log=True), 60).tolist()
        ]
        panels.append(
            panel(
                guides([{"at": 0.5, "name": "1/2"}], x, y),
                lines(curves, x, y, kinds),
                points(rows, x, y, kinds),
                title=title,
            )
        )
    note = f"one point per head; {INTERVALS}; hollow: not to be trusted"
    return figure(panels, "Measured exponents against Ψ", note=note)


def draw_downstream(data: PaperData) -> ChartType:
    """Draw losses with their power laws, and accuracies beside the dense ones."""
    losses: Rows = []
    accuracies: Rows = []
    laws: Rows = []
    dense: Rows = []
    for part in (data.tokens.dataset, data.texts.dataset):
        names = ("task", "size")
        rows = rows_of(part, names, "loss", "", "fitted")
        losses += [row | {"hollow": not row["fitted"]} for row in rows]
        accuracies += rows_of(part, names, "accuracy")
        first = part["size"].values[part["fitted"].values][0]
        for task in part["task"].values.tolist():
            of_task = part.sel(task=task)
            dense.append({"task": task, "at": float(of_task["dense_accuracy"])})
            factor, power = float(of_task["constant"]), -float(of_task["exponent"][0])
            laws += [
                {"task": task, "size": n, "loss": factor * n**power}
                for n in part["size"].values.tolist()
                if n >= first
            ]
    series = Series("task", TASKS, colours=(VERMILION, BLUE, GREEN))
    x = log_axis("size", "keys n", ends_of(losses, "size"))
    least = 0.3 * min(loss for loss in ends_of(losses, "loss") if loss > 0)
    lows = [max(low, least) for low in ends_of(losses, "low") if low is not None]
    y = log_axis("loss", "share of changed answers", [*lows, *ends_of(losses, "high")])
    z = Axis("accuracy", "accuracy", limits=limits(ends_of(accuracies, "low", "high")))
    return figure(
        [
            panel(lines(laws, x, y, series), points(losses, x, y, series), title="Changed answers"),
            panel(
                guides(dense, x, z, series),
                lines(accuracies, x, z, series),
                points(accuracies, x, z, series),
                title="Accuracy; dotted: dense",
            ),
        ],
        "Models whose attention sees n keys",
        note="lines: power laws fitted to the filled points; bars: 95% intervals, texts as units",
    )


def draw_sparse(data: PaperData) -> ChartType:
    """Draw the exponent of every pattern."""
    patterns = data.sparse.dataset
    rows = rows_of(patterns, ("pattern",), "exponent")
    y, x = Axis("pattern", names=patterns["pattern"].values.tolist()), exponent_axis(rows)
    half = guides([{"at": 0.5, "name": "1/2"}], x, y, upright=True)
    return figure(
        [panel(half, points(rows, x, y, across=True))],
        "Sparse patterns against dense attention, heads of a decoder",
        note=f"{INTERVALS} over passages",
        least=300,
    )


def draw_depth(data: PaperData) -> ChartType:
    """Draw errors by layer and size, and exponents by layer."""
    depth, layer = data.depth.dataset, Axis("layer", "layer", whole=True)
    rows = [
        {"layer": row["layer"], "keys": f"{row['size']:g}", "error": row["error"]}
        for row in rows_of(depth, ("layer", "size"), "error")
    ]
    sizes = [f"{n:g}" for n in depth["size"].values]
    error = log_axis("error", "relative error of the tokens", ends_of(rows, "error"))
    fits = rows_of(depth, ("layer",), "exponent")
    y = Axis("exponent", "exponent", limits=limits([0.0, 1.0, *ends_of(fits, "exponent")]))
    return figure(
        [
            panel(lines(rows, layer, error, Series("keys", sizes, "keys n", ordered=True))),
            panel(guides([{"at": 0.5, "name": "1/2"}], layer, y), points(fits, layer, y)),
        ],
        "Errors of sampled attention through the layers of a decoder",
        note=f"{INTERVALS} over passages",
        apart=True,
    )


def ranked_heads(heads: xr.Dataset, field: str) -> tuple[Rows, Axis, Series]:
    """Return heads in the order of a number, an axis of their ranks, and a series by verdict."""
    rows = rows_of(heads, ("layer", "head"), field, "", "verdict")
    rows = [
        row | {"rank": i + 1, "name": f"{row['layer']}.{row['head']}"}
        for i, row in enumerate(sorted(rows, key=lambda row: row[field]))
    ]
    series = Series("verdict", tuple(dict.fromkeys(ends_of(rows, "verdict"))))
    return rows, Axis("rank", "heads in order", whole=True), series


def draw_tails(data: PaperData) -> ChartType:
    """Draw the sub-Gaussian parameter of every head, in order."""
    rows, x, series = ranked_heads(data.tails.dataset, "proxy")
    ends = ends_of(rows, "proxy", "high")
    y = log_axis("proxy", "sub-Gaussian parameter / variance", [1.0, *ends])
    level = guides([{"at": 1.0, "name": "Gaussian"}], x, y)
    title = "Keys in their worst direction"
    return figure([panel(level, points(rows, x, y, series))], title, note=INTERVALS, least=300)


def draw_together(data: PaperData) -> ChartType:
    """Draw amplification by layer."""
    rows = rows_of(data.heads.dataset, ("layer",), "amplification")
    x, ends = Axis("layer", "layer", whole=True), ends_of(rows, "low", "high")
    y = Axis("amplification", "squared error / sum over heads", limits=limits([0.8, 1.2, *ends]))
    level = guides([{"at": 1.0, "name": "independent heads"}], x, y)
    return figure(
        [panel(level, points(rows, x, y))],
        "Errors of the heads of one layer, together",
        note=INTERVALS,
        least=300,
    )


def draw_domains(data: PaperData) -> ChartType:
    """Draw the share of variance that the corpus explains, head by head."""
    domains = data.domains.dataset.assign(verdict=(("layer", "head"), domain_verdicts(data)))
    rows, x, series = ranked_heads(domains, "share")
    y = Axis("share", "share of variance between corpora", limits=(0.0, 1.0))
    title = "Tokens needed: how much the corpus explains"
    return figure([panel(points(rows, x, y, series))], title, least=300)


def draw_causal(data: PaperData) -> ChartType:
    """Draw errors with and without the mask, their ratio, and errors by position."""
    causal, first_order = data.causal.dataset, "first order"
    errors = rows_of(causal, ("curve", "size"), "error")
    ratios = rows_of(causal, ("size",), "ratio", "", "first_ratio")
    places = rows_of(causal.isel(size=slice(1, None)), ("size",), "position")
    sizes = causal["size"].values.tolist()
    x = log_axis("size", "tokens n", sizes)
    series = Series(
        "curve",
        (WITH, WITHOUT, first_order),
        colours=(VERMILION, BLUE, GREY),
        shapes=("circle", "square", LINE),
        dashes=((1, 0), (1, 0), (4, 2)),
    )
    theory = [
        [{"size": n, "curve": first_order, "error": factor * n**-0.5} for n in sizes]
        for factor in (1.0, ratios[-1]["first_ratio"])
    ]
    y = log_axis("error", "error of the mean / constant", ends_of(errors, "low", "high"))
    mean = panel(
        *(lines(rows, x, y, series) for rows in (*theory, errors)),
        points(errors, x, y, series),
        title="Mean output",
    )
    y = Axis("ratio", "error with / without", limits=limits([0.9, 1.5, *ends_of(ratios, "high")]))
    expected = [
        {"size": row["size"], "ratio": row["first_ratio"], "curve": first_order} for row in ratios
    ]
    measured = [row | {"curve": WITH} for row in ratios]
    ratio = panel(
        guides([{"at": 1.0, "name": "no effect"}], x, y),
        lines(expected, x, y, series),
        lines(measured, x, y, series),
        points(measured, x, y, series),
        title="Their ratio",
    )
    at = log_axis("size", "position i", sizes)
    ends = limits([0.9, 1.1, *ends_of(places, "low", "high")])
    y = Axis("position", "with / without, i keys", limits=ends)
    position = panel(
        guides([{"at": 1.0}], at, y),
        points([row | {"curve": WITH} for row in places], at, y, series),
        title="Error at a position",
    )
    return figure(
        [mean, ratio, position],
        "Attention with a causal mask",
        note="geometric means over heads; bars: 95% intervals, heads as units",
    )


DRAW: dict[str, Callable[[PaperData], ChartType]] = {
    "limit": draw_limit,
    "ball": draw_ball,
    "moments": draw_moments,
    "bound": draw_bound,
    "reference": draw_reference,
    "ablation": draw_ablation,
    "hardmax": draw_hardmax,
    "heads": draw_heads,
    "downstream": draw_downstream,
    "sparse": draw_sparse,
    "depth": draw_depth,
    "tails": draw_tails,
    "together": draw_together,
    "domains": draw_domains,
    "causal": draw_causal,
}


def _drawing(name: str) -> Drawing:
    draw: Callable[[Result[PaperSettings]], ChartType] = lambda result: DRAW[name](  # noqa: E731
        PaperData(result.data)
    )

    def missing(result: Result[PaperSettings]) -> str | None:
        judged = result.data["claim"].values if "claim" in result.data else ()
        return None if name in judged else f"the claim {name} was not judged"

    return Drawing(name, CLAIMS[name].title, draw, missing=missing)


DRAWINGS = tuple(map(_drawing, NAMES))
