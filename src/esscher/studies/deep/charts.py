"""The chart of deep stacks: errors, exponents and growth by layer, and what becomes of the end."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from altair.typing import ChartType

from esscher.core.shown import shown
from esscher.core.variables import table
from esscher.show.chart import Axis, Series, bands, figure, guides, lines, panel, points
from esscher.show.content import Drawing
from esscher.show.frames import finite, records
from esscher.show.theme import BLUE, GREY, ORANGE, PURPLE, SKY, VERMILION, limits
from esscher.studies.deep.study import STACK_CURVES, TERCILES, AnyDeep
from esscher.studies.deep.view import is_stack, shown_size, subject

#: Curves of a layer in words; those of a model, ways of drawing keys, are words already.
NAMES = dict(zip(STACK_CURVES, ("map", "mean", "covariance"), strict=True))
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
#: Share of a value beyond which its interval goes on below a logarithmic axis.
CUT = 0.05


def depth(result: AnyDeep) -> ChartType:
    """Draw errors and exponents by layer, with growth and limit of a stack, or a model's end."""
    data = result.data
    panels = [_errors(result)]
    fits = [
        row | {"hollow": not row["trusted"]}
        for row in _rows(table(data, ("layer", "curve"), ["exponent", "trusted"]), "exponent")
    ]
    if fits:
        y = _axis(fits, "exponent", "exponent β", also=(0.0, 0.5))
        guide: list[dict[str, Any]] = [{"at": 0.0}, {"at": 0.5, "name": "1/2"}]
        panels.append(_by_layer(result, fits, y, guide, "exponents"))
    if is_stack(result):
        n = shown_size(result)
        steps = _rows(table(data.sel(size=n), ("layer", "curve"), ["growth"]), "growth", log=True)
        if steps:
            y = _axis(steps, "growth", "growth factor", log=True, also=(1.0,))
            title = f"error / error one layer before, n = {n:,}"
            panels.append(_by_layer(result, steps, y, [{"at": 1.0}], title))
        panels.append(_limit(result))
    else:
        names, what = {}, "KL" if "kl" in data else "1 - cosine"
        for row in records(result.table("damage")):
            name, rate = row["sampled"], ""
            if row["exponent"] is not None:
                rate = f": {what} ~ n^{-row['exponent']:.2f}"
            if name in TERCILES:
                ends = (shown(row[f"horizon_{end}"], "d1", "?") for end in ("low", "high"))
                name = f"{name} H ({' to '.join(ends)})"
            else:
                name = f"{name} samples"
            names[row["sampled"]] = name + rate
        ways = {name: words for name, words in names.items() if name not in TERCILES}
        panels.append(_end(result, ways, "end of the model, all heads sampled"))
        if len(ways) < len(names):
            thirds = {name: words for name, words in names.items() if name in TERCILES}
            panels.append(_end(result, thirds, "one third of the heads sampled"))
    note = "bars: 95% intervals; hollow: not to be trusted"
    return figure(panels, subject(result), note=note, least=WIDE, apart=True)


DRAWINGS = (
    Drawing(
        "depth",
        "errors and exponents by layer, and the end",
        depth,
        heading="Errors by layer, and the end",
        caption="Relative error of the tokens behind each layer, one line per n: in a stack "
        "against the infinite-token limit, in a model against attention over all keys; β of error "
        "~ C n^-β. Last, the measured limit of a stack against the exact recursion (if both agree, "
        "all points of a layer lie in the band in 95% of the cases), or what a model says with n "
        "keys drawn, in all heads or in one third of them by horizon.",
    ),
)


def _errors(result: AnyDeep) -> ChartType:
    """Errors of the first curve at every n; of a model's other one at the middle n, dashed."""
    frame = table(result.data, ("curve", "size", "layer"), ["error"])
    curve, *others = result.data["curve"].values.tolist()
    first = frame["curve"] == curve
    other = (frame["size"] == shown_size(result)) & (not is_stack(result))
    rows = _rows(frame[first | other], "error", log=True)
    for row in rows:
        row |= {"n": f"{row['size']:,}", "samples": row["curve"]}
    whole = [row for row in rows if row["samples"] == curve]
    x = Axis("layer", "layer", whole=True, limits=limits([row["layer"] for row in rows]))
    y = _axis(whole, "error", "relative error", log=True)
    sizes = [f"{n:,}" for n in result.data["size"].values]
    series = Series("n", sizes, title="n", ordered=True)
    dashes = None if is_stack(result) or not others else Series("samples", [curve, *others])
    title = f"error of the {NAMES[curve]}" if is_stack(result) else f"error, {curve} samples"
    return panel(lines(rows, x, y, series, dashes=dashes), points(whole, x, y, series), title=title)


def _by_layer(
    result: AnyDeep, rows: list[dict[str, Any]], y: Axis, guide: list[dict[str, Any]], title: str
) -> ChartType:
    """Points of the curves, side by side at every layer."""
    there = sorted({row["layer"] for row in rows})
    names = {name: NAMES.get(name, name) for name in result.data["curve"].values.tolist()}
    rows = [row | {"layer": str(row["layer"]), "curve": names[row["curve"]]} for row in rows]
    x = Axis("layer", "layer", names=[str(layer) for layer in there])
    series = Series("curve", list(names.values()))
    return panel(guides(guide, x, y), points(rows, x, y, series, beside=True), title=title)


def _limit(result: AnyDeep) -> ChartType:
    """Deviations of the measured limit from the recursion, in standard errors."""
    what, data = "95% bound of the largest", result.data
    with np.errstate(divide="ignore", invalid="ignore"):
        scores = (data["measured"] - data["exact"]) / data["standard_error"]
    frame = table(scores.to_dataset(name="score"), ("layer", "entry"), ["score"])
    rows = records(frame[np.isfinite(frame["score"])])
    bounds = [
        {"layer": layer + side, "low": -bound, "high": bound, "what": what}
        for layer, bound in enumerate(data["largest_bound"].values.tolist())
        if bound == bound
        for side in (-0.5, 0.5)
    ]
    x = Axis("layer", "layer", whole=True, limits=(-0.5, data.sizes["layer"] - 0.5))
    known = [row[key] for row in bounds for key in ("low", "high")]
    ends = limits([*known, *(row["score"] for row in rows)])
    y = Axis("score", "deviation (standard errors)", limits=ends)
    return panel(
        bands(bounds, x, y, Series("what", (what,), colours=(GREY,))),
        guides([{"at": 0.0}], x, y),
        points(rows, x, y),
        title="measured limit minus recursion",
    )


def _end(result: AnyDeep, names: dict[str, str], title: str) -> ChartType:
    """KL, or 1 - cosine, against the keys drawn: a line for all that is sampled, by its name."""
    data = result.data
    value = data["kl"] if "kl" in data else 1 - data["cosine"]
    if "kl" not in data:  # the ends change places
        value = value.sel(bound=["value", "high", "low"]).assign_coords(bound=value["bound"])
    values = value.sel(sampled=list(names)).to_dataset(name="value")
    rows = _rows(table(values, ("sampled", "size"), ["value"]), "value", log=True)
    rows = [row | {"variant": names[row["sampled"]], "n": row["size"]} for row in rows]
    colours, shapes = zip(*(SAMPLED[name] for name in names), strict=True)
    series = Series("variant", list(names.values()), colours=colours, shapes=shapes)
    x = Axis("n", "keys drawn n", log=True, limits=limits(data["size"].values, log=True))
    what = "KL to dense (nats per token)" if "kl" in data else "1 - cosine to dense"
    y = _axis(rows, "value", what, log=True)
    return panel(lines(rows, x, y, series), points(rows, x, y, series), title=title)


def _rows(frame: Any, field: str, *, log: bool = False) -> list[dict[str, Any]]:
    """Rows of a table whose number is known, with the ends of its interval."""
    rows = []
    for row in records(frame[frame[field].notna()]):
        low, high = row.pop(f"{field}_low"), row.pop(f"{field}_high")
        rows.append(row | {field: finite(row[field], log), "low": low, "high": high})
    return rows


def _axis(
    rows: list[dict[str, Any]],
    field: str,
    title: str,
    *,
    log: bool = False,
    also: Sequence[float] = (),
) -> Axis:
    """The axis of numbers with intervals; on a logarithmic one those that reach 0 are cut."""
    known = [*also, *(row[key] for row in rows for key in (field, "high"))]
    for row in rows:
        low, value = row["low"], row[field]
        known.append(max(low, CUT * value) if log and None not in (low, value) else low)
    return Axis(field, title, log=log, limits=limits(known, log=log))
