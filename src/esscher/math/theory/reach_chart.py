"""The phases of a needle over n and the scale, and its weight against n at several scales."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
from altair.typing import ChartType

from esscher.math.laws import Law
from esscher.math.theory.needle import NeedlePrediction, SimulatedNeedle
from esscher.math.theory.reach import expected_weight
from esscher.math.theory.reach_phases import PHASES, STEEP, Planted, phase_edges
from esscher.math.theory.regimes import CONTEXT_WINDOWS
from esscher.show.chart import bands, figure, guides, lines, panel, points
from esscher.show.drawing import Plot
from esscher.show.scales import Axis, Series
from esscher.show.theme import BLACK, BLUE, GREEN, LINE, ORANGE, PALE, VERMILION

#: Places along n, and shares of the steepest scale that are drawn.
PLACES = 49
WIDE, HEIGHT = 200.0, 170.0
PHASE = Series("phase", PHASES, colours=(ORANGE, GREEN, BLUE, PALE))
HARDMAX = "hardmax"


def draw_needle(
    prediction: NeedlePrediction, law: Law, simulated: SimulatedNeedle | None = None
) -> Plot:
    """Draw phases and weights over the range of n of a prediction."""
    reach = Planted(law, prediction.spread, prediction.advantage)
    n = np.unique(np.round(np.geomspace(max(prediction.sizes[0], 2), prediction.sizes[-1], PLACES)))
    title = (
        f"A needle of advantage z = {prediction.advantage:g} among n {prediction.law} keys of "
        f"spread s = {prediction.spread:g}"
    )
    panels = [_phases(reach, n, prediction.scale), _weights(reach, n, prediction, simulated)]
    note = "lost: no scale gives the needle half of the attention; frozen to leading order in ln n"
    return Plot(figure(panels, title, note=note, least=WIDE, apart=True))


def _phases(reach: Planted, n: Any, scale: float) -> ChartType:
    found, frozen = phase_edges(reach, n)
    low = 0.2 * min(scale, float(np.nanmin([*found, *frozen])))
    high = 1.5 * max(scale, float(np.nanmax(frozen)))
    rows = []
    for size, start, end in zip(n, found, frozen, strict=True):
        if math.isnan(start):
            edges = [low, low, low, low, high]
        else:
            start, end = min(start, end, high), min(end, high)
            edges = [low, start, end, high, high]
        rows += [
            {"phase": name, "n": size, "low": edges[i], "high": edges[i + 1]}
            for i, name in enumerate(PHASES)
        ]
    x = Axis("n", "other keys n", log=True, limits=(float(n[0]), float(n[-1])))
    y = Axis("scale", "scale b", log=True, limits=(low, high))
    windows = [{"at": at, "name": word} for word, at in CONTEXT_WINDOWS.items()
               if n[0] < at < n[-1]]  # fmt: skip
    return panel(
        bands(rows, x, y, PHASE),
        guides(windows, x, y, upright=True),
        guides([{"at": scale, "name": "scale given"}], x, y),
        title="phases",
        height=HEIGHT,
    )


def _weights(
    reach: Planted, n: Any, prediction: NeedlePrediction, simulated: SimulatedNeedle | None
) -> ChartType:
    rule = prediction.leading.best_scale
    scales = {f"b = {prediction.scale:g}": prediction.scale}
    if 0 < rule < STEEP / reach.spread:
        scales[f"b = {rule / 2:.3g}"] = rule / 2
        scales[f"b = {rule:.3g}, the rule"] = rule
    rows = []
    for name, scale in scales.items():
        values = expected_weight(reach.noise(scale, float(n[-1])), reach.advantage, scale, n)
        rows += [
            {"line": name, "n": size, "weight": value}
            for size, value in zip(n, values, strict=True)
        ]
    rows += [{"line": HARDMAX, "n": size, "weight": reach.hardmax(float(size))} for size in n]
    names = [*scales, HARDMAX]
    colours = [*[VERMILION, ORANGE, BLUE, BLACK][: len(names) - 1], BLACK]
    series = Series("line", names, colours=colours, shapes=["circle"] + [LINE] * (len(names) - 1))
    x = Axis("n", "other keys n", log=True, limits=(float(n[0]), float(n[-1])))
    y = Axis("weight", "expected weight of the needle", limits=(0.0, 1.0))
    blocks = [lines(rows, x, y, series)]
    if simulated is not None:
        drawn = zip(simulated.sizes, simulated.weight, simulated.standard_error, strict=True)
        blocks.append(points(
            [{"line": names[0], "n": size, "weight": w, "low": w - 2 * e, "high": w + 2 * e}
             for size, w, e in drawn], x, y, series,
        ))  # fmt: skip
    ends = [(prediction.leading.limit, "exp I(z)"), (math.log(max(prediction.limit_length, 1)),
                                                    "limit")]  # fmt: skip
    marks = [{"at": math.exp(at), "name": name} for at, name in ends
             if math.log(n[0]) < at < math.log(n[-1])]  # fmt: skip
    return panel(
        *blocks, guides(marks, x, y, upright=True, turned=True), title="weight", height=HEIGHT
    )
