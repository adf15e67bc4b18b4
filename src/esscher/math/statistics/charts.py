"""The chart of a rate: errors, the fit, and exponents to compare with."""

from __future__ import annotations

from typing import Any

import numpy as np

from esscher.core.shown import counted
from esscher.core.validation import Array
from esscher.math.statistics.laws import law_words
from esscher.math.statistics.rate import Rate
from esscher.show.chart import bands, figure, lines, panel, points
from esscher.show.drawing import Plot
from esscher.show.frames import finite
from esscher.show.scales import Axis, Series
from esscher.show.theme import BLACK, BLUE, GREEN, GREY, ORANGE, PURPLE, limits

#: Exponents to compare with: words, colour and dashes.
COMPARED: dict[str, tuple[str, str, tuple[int, ...]]] = {
    "predicted": ("predicted on this range", GREEN, (6, 2, 1, 2)),
    "sharp": ("asymptotic (conjectured)", PURPLE, (1, 2)),
    "paper_reference": ("published reference", ORANGE, (4, 2)),
    "paper_bound": ("published bound", GREY, (4, 2)),
}
WHOLE, DASHED = (1, 0), (4, 2)
#: Places of a line; more where a law bends would not be seen.
PLACES = 60
HEIGHT = 200.0


def draw_rate(rate: Rate) -> Plot:
    """Draw a rate; lines to compare with start at the fit's value at the smallest size."""
    grid = np.geomspace(rate.sizes[0], rate.sizes[-1], PLACES)
    curves = _curves(rate, grid)
    measured = f"{rate.summary} of {counted(rate.n_replicates, 'replicate')}"
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
        for n, error, low, high in zip(rate.sizes, rate.errors, rate.lower, rate.upper, strict=True)
    ]
    known = [row.get(key) for row in (*drawn, *rows) for key in ("error", "low", "high")]
    x = Axis("n", "tokens n", log=True, limits=limits(rate.sizes, log=True))
    y = Axis("error", f"{rate.summary} error", log=True, limits=limits(known, log=True))
    band = _band(rate, grid)
    title = rate.law_words + ("" if rate.trusted else "; exponent not to be trusted")
    marks = [lines(drawn, x, y, series), points(rows, x, y, series)]
    below = [bands(band, x, y)] if band else []
    return Plot(figure([panel(*below, *marks, height=HEIGHT)], title))


def _curves(rate: Rate, grid: Array) -> list[tuple[str, str, tuple[int, ...], Array]]:
    """Name, colour, dashes and errors of every line, those to compare with first."""
    found = []
    for field, (words, colour, dash) in COMPARED.items():
        beta = getattr(rate, field)
        if beta is not None:
            through = rate.fitted[0] * (grid / grid[0]) ** -beta
            found.append((f"{words} {beta:.3f}", colour, dash, through))
    low, high = rate.interval
    sure = f" ({low:.3f} to {high:.3f})" if np.isfinite(high - low) else ""
    words = f"fit {rate.exponent:.3f}{sure}"
    found.append((words, BLUE, WHOLE, rate.constant * grid**-rate.exponent))
    if rate.law != "power":
        bent = rate.selection.fits[rate.law].error(grid)
        found.append((law_words(rate.law), BLACK, DASHED, bent))
    return found


def _band(rate: Rate, grid: Array) -> list[dict[str, Any]]:
    """The interval of the fitted line; nothing if its width is not known."""
    x = np.log(grid)
    a, cross, b = rate.covariance[0, 0], rate.covariance[0, 1], rate.covariance[1, 1]
    spread = rate.critical * np.sqrt(np.maximum(a - 2 * x * cross + x * x * b, 0.0))
    if not np.all(np.isfinite(spread)):
        return []
    line = rate.constant * grid**-rate.exponent
    ends = zip(grid, line * np.exp(-spread), line * np.exp(spread), strict=True)
    return [{"n": n, "low": low, "high": high} for n, low, high in ends]
