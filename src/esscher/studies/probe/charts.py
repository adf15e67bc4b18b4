"""Charts of a probe: every head's numbers and curves, predictions, the heads of layers together."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import altair as alt
import xarray as xr
from altair.typing import ChartType

from esscher.core.shown import between, counted, shown
from esscher.core.variables import table
from esscher.runs.fits import Fit
from esscher.show.cells import picked_title
from esscher.show.chart import (
    Axis,
    Series,
    bands,
    diagonal,
    figure,
    guides,
    lines,
    panel,
    points,
    words,
)
from esscher.show.content import Drawing
from esscher.show.explorer import explorer as head_explorer
from esscher.show.explorer import head_map
from esscher.show.frames import records
from esscher.show.theme import BLACK, BLUE, DASHES, GREEN, SHARES, VERMILION, limits
from esscher.studies.probe.study import OnePass, ProbeData
from esscher.studies.probe.view import (
    CURVES,
    LOST,
    TABLES,
    TOKENS,
    Probe,
    by_need,
    enough_for,
    exponents,
)
from esscher.studies.probe.view import layers as layer_numbers

if TYPE_CHECKING:
    import pandas as pd

#: Errors, in the order of the panels.
METRIC_NAMES = {"mean": "mean output", "map": "map (rms)", "cov": "covariance"}
#: Errors by colour and shape.
METRIC = Series(
    "metric",
    tuple(METRIC_NAMES.values()),
    colours=(VERMILION, BLUE, GREEN),
    shapes=("square", "circle", "triangle-up"),
)
KINDS = Series(
    "line", ("fitted C n^-β", "predicted"), colours=(BLACK, VERMILION), dashes=DASHES[:2]
)
#: Exponents to compare with measured ones by metric: column of the table of heads, and name.
PREDICTORS = {
    "mean": {
        "predicted_exponent_mean": "predicted on the range",
        "sharp_mean": "Gaussian, conjectured",
        "paper_reference": "published reference",
        "paper_bound": "published bound",
    },
    "cov": {"predicted_exponent_cov": "predicted on the range"},
    "map": {"predicted_exponent_map": "predicted on the range"},
}
#: Names of a measured number and the ends of its interval, by the end of its column.
ENDS = {"": "measured", "_low": "low", "_high": "high"}
#: Most heads whose curves an explorer has: those that need most tokens. A report of 80 layers of 64
#: heads then stays below 8 MB.
KEPT = 1_000
#: Points that a panel needs to stand beside another: one with many cells, and a small one.
WIDE, SLIM = 150.0, 105.0
HOLLOW = "hollow: not to be trusted"


def head_maps(predict: bool) -> list[dict[str, Any]]:
    """Return the maps above the curves of the picked head."""
    exponent = ProbeData.predicted_exponent if predict else Fit.exponent
    return [
        head_map(OnePass.at_context, colours=SHARES, log=True),
        head_map(TOKENS[1], colours=SHARES, log=True),
        head_map(OnePass.horizon, colours=SHARES, log=True),
        *(
            head_map(exponent, f"{exponent.name}_{metric}", ends=(low, 0.6))
            for metric, low in (("mean", 0.2), ("map", 0.0), ("cov", 0.2))
        ),
        head_map(OnePass.khat, colours=SHARES, ends=(0.0, 1.0)),
        head_map(LOST, colours=SHARES, ends=(0.0, 1.0)),
        head_map(OnePass.ess, log=True),
    ]


def explorer(result: Probe, heads: Sequence[tuple[int, int]] | None = None) -> ChartType:
    """Draw nine numbers of every head, and below them the curves of the one that is picked.

    At first, that is the one that needs most tokens.
    """
    frame = by_need(result)
    order = dict.fromkeys([*(heads or ()), *_places(frame)])
    kept = set(list(order)[:KEPT])
    note = f"bars and bands: 95% intervals; {HOLLOW}"
    if frame["tokens_10"].isna().any():
        note += "; ×: no number of tokens up to 10^8 is enough"
    if len(kept) < len(frame):
        note += f"; curves of the {len(kept):,} of {len(frame):,} heads that need most tokens"

    def curves(pick: alt.Parameter) -> list[ChartType]:
        return [_curves(result, kept, metric, pick) for metric in METRIC_NAMES]

    maps = head_maps(result.setup.settings.predict)
    return head_explorer(result, TABLES[0], maps, curves, heads=heads, note=note, least=WIDE)


def tokens(result: Probe) -> ChartType:
    """Draw the tokens that every head needs for 10% output error, sorted, with 95% intervals."""
    frame = by_need(result)[::-1]
    known = frame[frame["tokens_10"].notna()]
    names = {"tokens_10": "tokens", "tokens_10_low": "low", "tokens_10_high": "high"}
    rows = records(known[["layer", "head", *names]].rename(columns=names))
    ends = limits([row[key] for row in rows for key in names.values()], log=True)
    for rank, row in enumerate(rows, start=1):
        row |= {"rank": rank, "name": f"head {row['layer']}.{row['head']}"}
        row["layer"] = str(row["layer"])
        # an end that is beyond every size leaves the chart
        row["high"] = 100 * ends[1] if row["high"] is None else row["high"]
    x = Axis("rank", "heads, sorted", whole=True, limits=(0.0, len(frame) + 1.0))
    y = Axis("tokens", "tokens for 10% output error", log=True, limits=ends)
    compare = [
        {"at": need, "name": f"enough for {name} of the heads: {shown(need, 'n3')}"}
        for name, share in (("half", 0.5), ("90%", 0.9))
        if (need := enough_for(result, share)) == need
    ]
    there = [str(layer) for layer in result.data["layer"].values]
    series = Series("layer", there, "layer", shapes=("circle",) * len(there), ordered=True)
    never, note = len(frame) - len(rows), "bars: 95% intervals"
    note += f"; for {counted(never, 'head')} no number of tokens is enough" if never else ""
    drawn = panel(guides(compare, x, y, left=True), points(rows, x, y, series), height=170.0)
    return figure([drawn], result.subject, note=note)


def predicted(result: Probe) -> ChartType:
    """Draw measured exponents with 95% intervals against predicted ones, a panel per predictor."""
    frame = result.table()
    trusted = table(result.data, ("layer", "head"), ["trusted"])
    frame["name"] = [f"head {layer}.{head}" for layer, head in _places(frame)]
    panels = []
    for metric, predictors in PREDICTORS.items():
        names = {f"exponent_{metric}{end}": key for end, key in ENDS.items()}
        here = frame[["layer", "head", "name", *predictors, *names]].rename(columns=names)
        hollow = ~trusted[f"trusted_{metric}"]
        rows = records(here.assign(metric=METRIC_NAMES[metric], hollow=hollow))
        known = here[["measured", *predictors]].to_numpy(float).ravel()
        ends = limits([0.0, 0.6, *known])
        for column, name in predictors.items():
            x = Axis(column, "predicted exponent", limits=ends)
            y = Axis("measured", "measured exponent", limits=ends)
            off = (here[column] - here["measured"]).abs().mean()
            text = f"mean |difference|\n{off:.3f}" if off == off else "not predicted"
            panels.append(
                panel(
                    diagonal(x, y),
                    points(rows, x, y, METRIC),
                    words([{"text": text}], right=True),
                    title=alt.TitleParams(text=[name, METRIC_NAMES[metric]]),
                )
            )
    note = f"{counted(len(frame), 'head')}; bars: 95% intervals; {HOLLOW}"
    return figure(panels, result.subject, note=note, least=SLIM)


def layers(result: Probe) -> ChartType:
    """Draw what the heads of each layer have in common, by layer."""
    data = ProbeData(result.data.isel(size=-1, drop=True))
    count = data.dataset.sizes["head"]

    def shared(variable: str, errors: dict[str, str]) -> dict[str, xr.DataArray]:
        return {name: data.dataset[variable].sel(errors=key) for key, name in errors.items()}

    rates = layer_numbers(result)
    both = {"mean": "errors of the mean", "map": "errors of queries"}
    panels = [
        _by_layer(
            "independent heads",
            shared("effective_heads", both),
            {"at": count, "name": "all heads"},
            0.0,
        ),
        _by_layer(
            "squared error of sum / sum of squared",
            shared("amplification", both),
            {"at": 1.0, "name": "independent errors"},
            0.0,
        ),
        _by_layer(
            "exponent of the mean error",
            {
                "heads side by side": rates["side_by_side"],
                "output projection": rates["projected"],
                "mean head": rates["typical"],
                "worst head": rates["worst"],
            },
            {"at": 0.5},
            None,
        ),
    ]
    note = f"errors at n = {result.data['size'].values[-1]:,}; bars: 95% intervals"
    return figure(panels, result.subject, note=note, apart=True)


def _by_layer(
    title: str, numbers: Mapping[str, xr.DataArray], guide: dict[str, Any], least: float | None
) -> ChartType:
    """Numbers of layers by name, with their intervals if they have any."""
    rows: list[dict[str, Any]] = []
    for name, array in numbers.items():
        frame = table(array.to_dataset(name="value"), ("layer",), ["value"])
        frame = frame.rename(columns={"value_low": "low", "value_high": "high"})
        rows += records(frame.assign(of=name, layer=frame["layer"].astype(str)))
    known = [row.get(key) for row in rows for key in ("value", "low", "high")]
    low, high = limits([*known, guide["at"], least])
    x = Axis("layer", "layer", names=list(dict.fromkeys(row["layer"] for row in rows)))
    y = Axis("value", limits=(low if least is None else least, high))
    drawn = points(rows, x, y, Series("of", list(numbers)), beside=True)
    return panel(guides([guide], x, y), drawn, title=title)


def _curves(
    result: Probe, kept: Collection[tuple[int, int]], metric: str, pick: alt.Parameter
) -> ChartType:
    """An error of the picked head against n: measured, fitted and predicted, and its exponent."""
    frame = CURVES.frame(result)
    frame = frame[frame["metric"] == metric].rename(columns={"size": "n"})
    frame = frame[[place in kept for place in _places(frame)]]
    frame["hollow"] = ~frame["trusted"]

    def rows(column: str, *more: str) -> list[dict[str, Any]]:
        names = {column: "error", f"{column}_low": "low", f"{column}_high": "high"}
        names = {name: end for name, end in names.items() if name in frame}
        there = frame[frame[column] > 0][["layer", "head", "n", *names, *more]]
        return records(there.rename(columns=names))

    sizes = result.data["size"].values
    ends = {int(sizes[0]), int(sizes[-1])}  # between which it is straight
    fitted, expected = (
        [row | {"line": line} for row in rows(column)]
        for line, column in zip(KINDS.names, ("fitted", "predicted"), strict=True)
    )
    drawn = [*(row for row in fitted if row["n"] in ends), *expected]
    measured = rows("error", "hollow")
    errors = [row.get(key) for row in (*measured, *drawn) for key in ("error", "high")]
    low, high = limits(errors, log=True)
    low *= (low / high) ** 0.09  # room for a line of text
    x = Axis("n", "tokens n", log=True, limits=limits(sizes, log=True))
    y = Axis("error", "relative error", log=True, limits=(low, high))
    values = exponents(result).sel(metric=metric).to_dataset(name="value")
    text = [
        {"layer": layer, "head": head, "text": _exponent(result, row)}
        for layer, head, *row in table(values, ("layer", "head"), ["value"]).itertuples(index=False)
        if (layer, head) in kept
    ]
    return panel(
        bands(expected, x, y, colour=VERMILION, pick=pick),
        lines(drawn, x, y, KINDS, pick=pick),
        points(measured, x, y, pick=pick),
        words(text, pick=pick),
        title=picked_title(METRIC_NAMES[metric]),
    )


def _exponent(result: Probe, numbers: Sequence[float]) -> str:
    """An exponent with its interval in words; nothing if it is not known."""
    value, low, high = numbers
    if value != value:
        return ""
    how = " (predicted)" if result.setup.settings.predict else ""
    return f"β = {between(value, (low, high), 'd3')}{how}"


def _places(frame: pd.DataFrame) -> list[tuple[int, int]]:
    """Layer and head of every row."""
    return [(int(layer), int(head)) for layer, head in frame[["layer", "head"]].to_numpy()]


def _nothing_measured(result: Probe) -> str | None:
    return "nothing was sampled (--predict)" if result.setup.settings.predict else None


def _no_layers(result: Probe) -> str | None:
    if "layers" in result.tables():
        return None
    none = "no layer has more than one head, measured on at least 4 replicates"
    return _nothing_measured(result) or none


DRAWINGS = (
    Drawing(
        "explorer",
        "nine numbers of every head, and the curves of one (--head)",
        explorer,
        heads=True,
        heading="Every head",
        caption="Click a cell, or move with the arrow keys, to see the curves and numbers of that "
        "head. Errors are relative to the root mean square norm of the head's outputs (covariance: "
        "to its square). Dashed: predicted from one pass.",
    ),
    Drawing(
        "tokens",
        "tokens for 10% error of every head, sorted",
        tokens,
        heading="Tokens for 10% output error",
        caption="One point per head; click it to see the head.",
    ),
    Drawing(
        "predicted",
        "measured against predicted exponents",
        predicted,
        missing=_nothing_measured,
        heading="Predicted against measured",
        caption="One point per head; on the dotted line both agree. Click a point to see the head.",
    ),
    Drawing(
        "layers",
        "the heads of each layer together",
        layers,
        missing=_no_layers,
        heading="Heads together",
        caption="The output projection adds up the errors of a layer's heads. Independent heads: "
        "(tr R)² / tr R², R being the correlations of their errors.",
    ),
)
