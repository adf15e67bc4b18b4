"""The chart of deep stacks: errors, exponents and growth by layer, and what becomes of the end."""

from __future__ import annotations

from typing import Any

from altair.typing import ChartType

from esscher.core.variables import Variable, table, var
from esscher.show.chart import Axis, Series, figure, guides, lines, panel, points
from esscher.show.content import Drawing
from esscher.show.frames import records
from esscher.show.theme import BLUE, ORANGE, PURPLE, SKY, VERMILION, limits
from esscher.studies.deep.study import TERCILES, AnyDeep, DeepData, DepthData
from esscher.studies.deep.view import is_stack, shown_size

#: Colours and shapes of what is sampled in a model.
SAMPLED = {
    "independent": (BLUE, "circle"),
    "shared": (VERMILION, "square"),
    "low": (SKY, "circle"),
    "middle": (ORANGE, "square"),
    "high": (PURPLE, "triangle-up"),
}
#: Points that a panel needs to stand beside another.
WIDE = 200.0
#: Variables that only the chart shows.
DISTANCE = var("", "1 - cosine to dense", name="distance")


def depth(result: AnyDeep) -> ChartType:
    """Draw errors and exponents by layer, with growth in a stack, or a model's end."""
    data, n = result.data, shown_size(result)
    panels = [_errors(result)]
    fits = table(data, ("layer", "curve"), ["exponent", "trusted"])
    fits["hollow"] = ~fits["trusted"]
    half: list[dict[str, Any]] = [{"at": 0.0}, {"at": 0.5, "name": "1/2"}]
    panels += _by_layer(result, fits, DepthData.fit.exponent, half, "exponents")
    if is_stack(result):
        steps = table(data.sel(size=n), ("layer", "curve"), ["growth"])
        title = f"error / error one layer before, n = {n:,}"
        panels += _by_layer(result, steps, DepthData.growth, [{"at": 1.0}], title, log=True)
    else:
        names = data["sampled"].values.tolist()
        thirds = [name for name in names if name in TERCILES]
        ways = [name for name in names if name not in TERCILES]
        panels.append(_end(result, ways, "end of the model, all heads sampled"))
        if thirds:
            panels.append(_end(result, thirds, "a third of the heads sampled, by horizon"))
    note = "bars: 95% intervals; hollow: not to be trusted"
    return figure(panels, result.subject, note=note, least=WIDE, apart=True)


def _errors(result: AnyDeep) -> ChartType:
    """Errors of the first curve at every n; of a model's other one at the middle n, dashed."""
    frame = table(result.data, ("curve", "size", "layer"), ["error"])
    curve, *others = result.data["curve"].values.tolist()
    other = (frame["size"] == shown_size(result)) & (not is_stack(result))
    frame["n"] = [f"{n:,}" for n in frame["size"]]
    rows = records(frame[(frame["curve"] == curve) | other], interval="error")
    whole = [row for row in rows if row["curve"] == curve]
    x = Axis("layer", "layer", whole=True, limits=limits(frame["layer"]))
    y = Axis.of(DepthData.error, whole, log=True)
    sizes = [f"{n:,}" for n in result.data["size"].values]
    series = Series("n", sizes, title="n", ordered=True)
    dashes = None if is_stack(result) or not others else Series("curve", [curve, *others])
    drawn = lines(rows, x, y, series, dashes=dashes), points(whole, x, y, series)
    return panel(*drawn, title=f"error, {curve}")


def _by_layer(
    result: AnyDeep,
    frame: Any,
    variable: Variable,
    compare: list[dict[str, Any]],
    title: str,
    log: bool = False,
) -> list[ChartType]:
    """Points of the curves, side by side at every layer; no panel if nothing is known."""
    known = frame[frame[variable.name].notna()]
    rows = [row | {"layer": str(row["layer"])} for row in records(known, interval=variable.name)]
    y = Axis.of(variable, rows, (row["at"] for row in compare), log=log)
    x = Axis("layer", "layer", names=list(dict.fromkeys(row["layer"] for row in rows)))
    drawn = points(rows, x, y, Series("curve", result.data["curve"].values.tolist()), beside=True)
    return [panel(guides(compare, x, y), drawn, title=title)] if rows else []


def _end(result: AnyDeep, names: list[str], title: str) -> ChartType:
    """KL, or 1 - cosine, against the keys drawn: a line for all that is sampled."""
    data, variable = result.data, DeepData.kl
    if "kl" not in data:
        variable = DISTANCE
        turned = data["cosine"].sel(bound=["value", "high", "low"])  # its ends change places
        data = data.assign(distance=(data["cosine"].dims, 1 - turned.values))
    frame = table(data.sel(sampled=names), ("sampled", "size"), [variable.name])
    rows = records(frame, interval=variable.name)
    colours, shapes = zip(*(SAMPLED[name] for name in names), strict=True)
    series = Series("sampled", names, colours=colours, shapes=shapes)
    x = Axis("size", "keys drawn n", log=True, limits=limits(data["size"].values, log=True))
    y = Axis.of(variable, rows, log=True)
    return panel(lines(rows, x, y, series), points(rows, x, y, series), title=title)


DRAWINGS = (
    Drawing(
        "depth",
        "errors and exponents by layer, and the end",
        depth,
        heading="Errors by layer, and the end",
        caption="Relative error of the tokens behind each layer, one line per n: in a stack "
        "against the infinite-token limit, in a model against attention over all keys; β of error "
        "~ C n^-β. Last, how errors grow in a stack, or what a model says with n keys drawn, in "
        "all heads or in one third of them by horizon.",
    ),
)
