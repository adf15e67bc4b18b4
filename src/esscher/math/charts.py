"""Charts of a prediction: errors against n, and their local exponents."""

from __future__ import annotations

from typing import Any

import numpy as np
from altair.typing import ChartType

from esscher.core.errors import InputError
from esscher.core.shown import counted
from esscher.core.validation import Array
from esscher.math.heads import WeightHead
from esscher.math.statistics.fit import Rate
from esscher.math.statistics.laws import law_words
from esscher.math.theory.prediction import Prediction
from esscher.show.chart import Axis, Series, bands, figure, guides, lines, panel, points
from esscher.show.content import Plot
from esscher.show.frames import finite
from esscher.show.theme import BLACK, BLUE, GREEN, GREY, ORANGE, PURPLE, SKY, VERMILION, limits

#: Curves in words, with their colours.
CURVES = {
    "map": ("map, rms", BLUE),
    "mean": ("mean, expected norm", VERMILION),
    "mean_rms": ("mean, rms", ORANGE),
    "cov": ("covariance, expected norm", GREEN),
    "cov_rms": ("covariance, rms", SKY),
}
#: The two kinds of mean often lie on one line: dashes show both.
WHOLE, DASHED = (1, 0), (4, 2)
#: Points that a panel needs to stand next to the other.
WIDE = 200.0


def draw_prediction(prediction: Prediction, title: str | None = None) -> Plot:
    """Draw predicted errors against n, and their local exponents; see :meth:`Prediction.plot`."""
    if not prediction.curves:
        raise InputError(
            "there is no curve to draw: the head has no infinite-token limit, or no sizes were "
            "given"
        )
    if title is None:
        head = prediction.head
        law = type(head.law).__name__ if isinstance(head, WeightHead) else "Head"
        title = (
            f"{law} tokens, d = {head.key_dim}, H = {head.horizon:.3g}, F = {head.frobenius:.3g}, "
            f"queries: {prediction.queries}"
        )
    n = prediction.sizes
    x = Axis("n", "tokens n", log=True, limits=limits(n, log=True))
    names, colours = zip(*(CURVES[curve] for curve in prediction.curves), strict=True)
    dashes = [DASHED if curve.endswith("_rms") else WHOLE for curve in prediction.curves]
    series = Series("curve", names, colours=colours, dashes=dashes, shapes=["stroke"] * len(names))
    panels = [_errors(prediction, x, series)]
    if len(n) > 1:
        panels.append(_exponents(prediction, x, series))
    return Plot(figure(panels, title, least=WIDE))


def _errors(prediction: Prediction, x: Axis, series: Series) -> ChartType:
    rows: list[dict[str, Any]] = [
        {"curve": CURVES[name][0], "n": n, "error": error}
        for name, curve in prediction.curves.items()
        for n, error in zip(curve.sizes, curve.error, strict=True)
    ]
    y = Axis("error", "error", log=True, limits=limits([row["error"] for row in rows], log=True))
    marks = [*_burn_in(prediction, x, y, "burn-in"), lines(rows, x, y, series)]
    return panel(*marks, title="predicted error")


def _exponents(prediction: Prediction, x: Axis, series: Series) -> ChartType:
    rows = [
        {"curve": CURVES[name][0], "n": n, "exponent": slope}
        for name, curve in prediction.curves.items()
        for n, slope in zip(
            np.sqrt(curve.sizes[1:] * curve.sizes[:-1]), curve.local_slopes(), strict=True
        )
    ]
    asymptotic: dict[float, str] = {}  # once, if that of several curves
    for name in prediction.curves:
        asymptotic.setdefault(prediction.asymptotic(name), CURVES[name][0])
    reference = prediction.exponents
    assert reference is not None  # or there are no curves
    published = [
        {"at": reference.paper_reference, "name": "published reference"},
        {"at": reference.paper_bound, "name": "published bound"},
    ]
    known = [*(row["exponent"] for row in rows), *asymptotic, reference.paper_reference]
    y = Axis("exponent", "local exponent", limits=limits([0.0, reference.paper_bound, *known]))
    draw = lines if len(prediction.sizes) > 2 else points  # two sizes have one exponent
    return panel(
        guides(published, x, y),
        guides([{"at": at, "curve": name} for at, name in asymptotic.items()], x, y, series),
        *_burn_in(prediction, x, y),
        draw(rows, x, y, series),
        title="local exponents (dotted: conjectured limits)",
    )


def _burn_in(prediction: Prediction, x: Axis, y: Axis, name: str = "") -> list[ChartType]:
    """The burn-in, if it lies among the sizes."""
    inside = prediction.sizes[0] < prediction.burn_in < prediction.sizes[-1]
    mark = {"at": prediction.burn_in, "name": name}
    return [guides([mark], x, y, upright=True)] if inside else []


# The chart of a rate: errors, the fit, and exponents to compare with.

#: Exponents to compare with: words, colour and dashes.
COMPARED: dict[str, tuple[str, str, tuple[int, ...]]] = {
    "predicted": ("predicted on this range", GREEN, (6, 2, 1, 2)),
    "sharp": ("asymptotic (conjectured)", PURPLE, (1, 2)),
    "paper_reference": ("published reference", ORANGE, (4, 2)),
    "paper_bound": ("published bound", GREY, (4, 2)),
}
#: Places of a line; more where a law bends would not be seen.
PLACES = 60
HEIGHT = 200.0


def draw_rate(rate: Rate) -> Plot:
    """Draw a rate; lines to compare with start at the fit's value at the smallest size."""
    grid = np.geomspace(rate.sizes[0], rate.sizes[-1], PLACES)
    # name, colour, dashes and errors of every line, those to compare with first
    curves: list[tuple[str, str, tuple[int, ...], Array]] = []
    for field, (words, colour, dash) in COMPARED.items():
        beta = getattr(rate, field)
        if beta is not None:
            through = rate.fitted[0] * (grid / grid[0]) ** -beta
            curves.append((f"{words} {beta:.3f}", colour, dash, through))
    least, most = rate.interval
    sure = "" if least is None or most is None else f" ({least:.3f} to {most:.3f})"
    words = f"fit {rate.exponent:.3f}{sure}"
    curves.append((words, BLUE, WHOLE, rate.constant * grid**-rate.exponent))
    if rate.law != "power":
        bent = rate.selection.laws[rate.law].error(grid)
        curves.append((law_words(rate.law), BLACK, DASHED, bent))
    measured = f"mean of {counted(rate.n_replicates, 'replicate')}"
    series = Series(
        "curve",
        [*(name for name, *_ in curves), measured],
        colours=[*(colour for _, colour, *_ in curves), BLACK],
        dashes=[*(dash for _, _, dash, _ in curves), WHOLE],
        shapes=[*["stroke"] * len(curves), "circle"],
    )
    drawn = [
        {"curve": name, "n": n, "error": error}
        for name, _, _, errors in curves
        for n, error in zip(grid, errors, strict=True)
    ]
    rows = [
        {"curve": measured, "n": n, "error": error, "low": finite(low, True), "high": finite(high)}
        for n, error, low, high in zip(rate.sizes, rate.mean, rate.lower, rate.upper, strict=True)
    ]
    known = [row.get(key) for row in (*drawn, *rows) for key in ("error", "low", "high")]
    x = Axis("n", "tokens n", log=True, limits=limits(rate.sizes, log=True))
    y = Axis("error", "mean error", log=True, limits=limits(known, log=True))
    interval = rate.band(grid)
    title = rate.law_words + ("" if rate.trusted else "; exponent not to be trusted")
    marks = [lines(drawn, x, y, series), points(rows, x, y, series)]
    below = []
    if interval is not None:
        ends = [
            {"n": n, "low": low, "high": high} for n, low, high in zip(grid, *interval, strict=True)
        ]
        below.append(bands(ends, x, y))
    return Plot(figure([panel(*below, *marks, height=HEIGHT)], title))
