"""The chart of a rate: errors, the fit, and exponents to compare with."""

from __future__ import annotations

import numpy as np

from esscher.core.shown import counted
from esscher.core.validation import Array
from esscher.math.statistics.fit import Rate
from esscher.math.statistics.laws import law_words
from esscher.show.chart import Axis, Series, bands, figure, lines, panel, points
from esscher.show.content import Plot
from esscher.show.frames import finite
from esscher.show.theme import BLACK, BLUE, GREEN, limits

#: Dashes of the fit, of the law that bends, and of the predicted exponent.
WHOLE, DASHED, DOTTED = (1, 0), (4, 2), (6, 2, 1, 2)
#: Places of a line; more where a law bends would not be seen.
PLACES = 60
HEIGHT = 200.0


def draw_rate(rate: Rate) -> Plot:
    """Draw a rate; the predicted exponent starts at the fit's value at the smallest size."""
    grid = np.geomspace(rate.sizes[0], rate.sizes[-1], PLACES)
    # name, colour, dashes and errors of every line
    curves: list[tuple[str, str, tuple[int, ...], Array]] = []
    if (beta := rate.predicted) is not None:
        through = rate.fitted[0] * (grid / grid[0]) ** -beta
        curves.append((f"predicted on this range {beta:.3f}", GREEN, DOTTED, through))
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
