"""Heads of a probe one by one: convergence curves, predicted exponents, tokens needed."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
from matplotlib import colormaps
from matplotlib.colors import BoundaryNorm
from matplotlib.figure import Figure

from esscher.core.errors import InputError
from esscher.show.style import (
    BLACK,
    DOUBLE,
    GREY,
    GUIDE,
    METRIC_COLOURS,
    METRIC_MARKERS,
    METRIC_NAMES,
    NOTE,
    SIZES,
    SMALL,
    columns,
    error_bars,
    finish,
    legend_below,
    logarithmic,
    new_figure,
    note,
    panels,
    styled,
)
from esscher.show.titles import title_of

if TYPE_CHECKING:
    from esscher.studies.probe import Probe
    from esscher.studies.probe.records import ProbeHead

#: Heads whose curves are drawn unless some are chosen, and the most that can be.
SHOWN, MOST = 6, 24
FITTED, PREDICTED = "fitted law (hollow: not to be trusted)", "map, predicted (95% band)"
#: Predictors of an exponent: column of the table and name, by metric.
PREDICTORS = {
    "mean": (
        ("predicted_khat", "one-pass k-hat"),
        ("sharp", "sharp Gaussian"),
        ("paper_reference", "published reference"),
        ("paper_bound", "published bound"),
    ),
    "map": (
        ("predicted_map", "predicted on the range"),
        ("predicted_khat", "one-pass k-hat"),
        ("paper_reference", "published reference"),
        ("paper_bound", "published bound"),
    ),
}


@styled
def draw_curves(
    found: Probe,
    title: str | None = None,
    *,
    width: float = DOUBLE,
    heads: Sequence[tuple[int, int]] | None = None,
) -> Figure:
    """Draw errors against n with their 95% intervals, fitted laws and the predicted map error.

    Errors are relative: those of the mean and of the map to the root mean square norm of the
    outputs, those of the covariance to its square.

    Parameters
    ----------
    found
        The probe.
    title
        Above everything; None: what was probed; empty: none.
    width
        Of the figure, in inches.
    heads
        (layer, head) of those to draw; unless given six, from the one that needs most tokens to
        the one that needs fewest.
    """
    chosen = _chosen(found, heads)
    across = columns(width, len(chosen), 1.65 if width < 5 else 2.1)
    rows = -(-len(chosen) // across)
    figure = new_figure(width, 0.75 + 1.9 * rows, title_of(found.to_dict(), title))
    axes = panels(figure, len(chosen), across, sharex=True)
    for axis, head in zip(axes, chosen, strict=True):
        _draw_head(axis, head)
        axis.set_yscale("log")
        low, high = axis.get_ylim()
        axis.set_ylim(low * (low / high) ** 0.4, high)  # room for the exponents
    for i, axis in enumerate(axes):
        logarithmic(axis, "x")
        logarithmic(axis, "y")
        head = chosen[i]
        bottom = i + across >= len(axes)
        finish(
            axis,
            "tokens n" if bottom else "",
            "relative error" if i % across == 0 else "",
            f"head {head.layer}.{head.head}: H = {head.horizon:.2f}",
        )
        axis.tick_params(labelbottom=bottom)
    found_handles = dict(zip(*axes[0].get_legend_handles_labels()[::-1], strict=True))
    names = [*METRIC_NAMES.values(), FITTED, PREDICTED]
    legend_below(figure, ([found_handles[name] for name in names], names), width, most=3)
    return figure


def _chosen(found: Probe, heads: Sequence[tuple[int, int]] | None) -> list[ProbeHead]:
    table = found.table()
    if heads is None:
        needy = table["tokens_10"].fillna(np.inf).to_numpy()
        order = np.argsort(-needy, kind="stable")
        at = np.unique(np.linspace(0, len(order) - 1, min(SHOWN, len(order))).astype(int))
        heads = [(int(table["layer"][i]), int(table["head"][i])) for i in order[at]]
    check_heads(heads, [(h.layer, h.head) for h in found.heads])
    return [found.head(layer, head) for layer, head in heads]


def check_heads(asked: Sequence[tuple[int, int]], there: Sequence[tuple[int, int]]) -> None:
    """Refuse heads that a run does not have."""
    if len(asked) > MOST or not asked:
        raise InputError(f"{len(asked)} heads are asked for; draw 1 to {MOST} of them")
    for layer, head in asked:
        if (layer, head) not in there:
            layers, heads = (sorted({pair[i] for pair in there}) for i in (0, 1))
            raise InputError(
                f"there is no head {layer}.{head} in this run: it has layers {_range(layers)} and "
                f"heads {_range(heads)}; write LAYER.HEAD, such as {there[0][0]}.{there[0][1]}"
            )


def _range(numbers: Sequence[int]) -> str:
    whole = list(numbers) == list(range(numbers[0], numbers[-1] + 1)) and len(numbers) > 2
    return f"{numbers[0]} to {numbers[-1]}" if whole else ", ".join(map(str, numbers))


def _draw_head(axis: Any, head: ProbeHead) -> None:
    words = []
    for metric in METRIC_NAMES:
        fit = head.fit[metric]
        scale = head.norm ** (2 if metric == "cov" else 1)
        n = np.asarray(fit.sizes)
        colour = METRIC_COLOURS[metric]
        ends = np.array([fit.lower, fit.upper], dtype=np.float64) / scale
        error_bars(
            axis, n, np.asarray(fit.mean) / scale, ends, color=colour,
            marker=METRIC_MARKERS[metric], hollow=np.full(len(n), not fit.trusted),
            label=METRIC_NAMES[metric],
        )  # fmt: skip
        fine = np.geomspace(n[0], n[-1], 60)
        if fit.constant is not None:
            axis.plot(fine, fit.constant * fine**-fit.exponent / scale, color=colour)
        low, high = fit.interval
        half = "" if low is None or high is None else f" \u00b1 {(high - low) / 2:.3f}"
        words.append(rf"{metric}: $\beta$ = {fit.exponent:.3f}{half}")
    predicted = head.predicted_map
    n = np.asarray(head.fit.map.sizes)
    error = np.asarray(predicted.error, dtype=np.float64) / head.norm
    noise = 1.96 * np.asarray(predicted.standard_error, dtype=np.float64) / head.norm
    axis.plot(n, error, "--", color=BLACK, linewidth=GUIDE, label=PREDICTED)
    axis.fill_between(n, error - noise, error + noise, color=BLACK, alpha=0.15, linewidth=0)
    axis.plot([], [], color=GREY, label=FITTED)
    axis.text(
        0.03, 0.03, "\n".join(words), transform=axis.transAxes, fontsize=NOTE - 0.5, va="bottom",
        linespacing=1.1,
    )  # fmt: skip


@styled
def draw_predicted(found: Probe, title: str | None = None, *, width: float = DOUBLE) -> Figure:
    """Draw measured exponents with 95% intervals against predicted ones, a panel per predictor."""
    table = found.table()
    cases = [(metric, *about) for metric, all_of in PREDICTORS.items() for about in all_of]
    across = columns(width, len(cases), 1.6)
    rows = -(-len(cases) // across)
    figure = new_figure(width, 0.6 + 1.75 * rows, title_of(found.to_dict(), title))
    axes = panels(figure, len(cases), across, sharex=True, sharey=True)
    for i, (axis, (metric, column, name)) in enumerate(zip(axes, cases, strict=True)):
        measured, predicted = (table[k].to_numpy(dtype=float) for k in (metric, column))
        ends = [table[f"{metric}_{side}"].to_numpy(dtype=float) for side in ("low", "high")]
        trusted = np.array([head.fit[metric].trusted for head in found.heads])
        error_bars(
            axis, predicted, measured, ends, hollow=~trusted, color=METRIC_COLOURS[metric],
            marker=METRIC_MARKERS[metric], markersize=2.6, capsize=0, elinewidth=0.4,
            markeredgewidth=0.6,
        )  # fmt: skip
        axis.axline((0.5, 0.5), slope=1, color=BLACK, linewidth=GUIDE)
        off = np.nanmean(np.abs(predicted - measured))
        note(axis, f"mean |difference|\n{off:.3f}", (0.97, 0.04), ha="right", va="bottom")
        finish(
            axis,
            "predicted exponent" if i + across >= len(axes) else "",
            "measured exponent" if i % across == 0 else "",
            f"{name}\n{METRIC_NAMES[metric]}",
        )
        axis.title.set_fontsize(SMALL)
        axis.tick_params(labelbottom=i + across >= len(axes))
    everything = table[["mean", "map"]].to_numpy(dtype=float)
    axes[0].set_xlim(-0.04, max(0.6, axes[0].get_xlim()[1]))
    axes[0].set_ylim(min(0.0, np.nanmin(everything)) - 0.04, max(0.62, np.nanmax(everything) + 0.1))
    figure.supxlabel(
        f"{len(table)} heads; bars: 95% intervals; hollow: not to be trusted", fontsize=NOTE,
        color=GREY,
    )  # fmt: skip
    return figure


@styled
def draw_tokens(found: Probe, title: str | None = None, *, width: float = DOUBLE) -> Figure:
    """Draw the tokens that every head needs for 10% output error, sorted, with 95% intervals."""
    table = found.table()
    table = table.sort_values(["tokens_10", "layer", "head"], na_position="last", kind="stable")
    need, low, high = (
        table[name].to_numpy(dtype=float)
        for name in ("tokens_10", "tokens_10_low", "tokens_10_high")
    )
    known = np.isfinite(need)
    figure = new_figure(width, 2.9, title_of(found.to_dict(), title))
    axis = figure.subplots()
    at = np.arange(len(need))
    layers = sorted(table["layer"].unique())
    norm = BoundaryNorm(np.arange(len(layers) + 1) - 0.5, colormaps[SIZES].N)
    place = np.array([layers.index(layer) for layer in table["layer"]])
    largest = np.nanmax(np.where(np.isfinite(high), high, need)) if known.any() else 1.0
    # an end that is beyond every size: the bar leaves the figure
    top = np.where(np.isfinite(high), high, 100 * largest)
    axis.vlines(at[known], low[known], top[known], color=GREY, linewidth=0.6, alpha=0.7)
    dots = axis.scatter(
        at[known], need[known], c=place[known], cmap=SIZES, norm=norm, s=9, zorder=3,
        linewidths=0,
    )  # fmt: skip
    axis.set_yscale("log")
    if known.any():
        axis.set_ylim(np.nanmin(low[known]) / 1.5, largest * 2)
    if not known.all():
        note(
            axis, f"{int((~known).sum())} heads: no number of tokens is enough", (0.98, 0.96),
            ha="right",
        )  # fmt: skip
    logarithmic(axis, "y")
    words = []
    for share, name in ((0.5, "half"), (0.9, "90%")):
        i = int(np.ceil(share * len(need))) - 1
        if known[i]:
            bottom = axis.get_ylim()[0]
            axis.plot([-1, i, i], [need[i], need[i], bottom], ":", color=GREY, linewidth=GUIDE)
            words.append(f"enough for {name} of the heads: {need[i]:,.0f}")
    note(axis, "\n".join(words), (0.98, 0.04), ha="right", va="bottom", backgroundcolor="white")
    axis.set_xlim(-1, len(need))
    bar = figure.colorbar(dots, ax=axis, pad=0.01, aspect=25)
    step = max(1, len(layers) // 8)
    bar.set_ticks(
        list(range(0, len(layers), step)),
        labels=[str(layers[i]) for i in range(0, len(layers), step)],
    )
    bar.minorticks_off()
    bar.ax.tick_params(labelsize=SMALL, length=0)
    bar.outline.set_linewidth(0.5)
    bar.set_label("layer", fontsize=SMALL)
    finish(axis, "heads, sorted", "tokens for 10% output error", "", grid="y")
    return figure
