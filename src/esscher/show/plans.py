"""A plan in pictures: budgets, what they cost on unseen text, and how good the prediction was."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator

from esscher.core.errors import InputError
from esscher.show.heatmaps import draw_grid
from esscher.show.style import (
    BLACK,
    BLUE,
    DOUBLE,
    GREEN,
    GREY,
    NOTE,
    ORANGE,
    PURPLE,
    columns,
    error_bars,
    finish,
    logarithmic,
    new_figure,
    panels,
    styled,
)
from esscher.show.titles import title_of

COLOURS = {"planned": BLUE, "uniform": ORANGE, "heavy": GREEN, "recent": PURPLE}
MARKERS = {"planned": "o", "uniform": "s", "heavy": "^", "recent": "D"}
NAMES = {
    "planned": "planned",
    "uniform": "uniform",
    "heavy": "heavy hitters",
    "recent": "sinks + recent",
}


@styled
def draw_plan(
    results: dict[str, Any], title: str | None = None, *, width: float = DOUBLE
) -> Figure:
    """Draw a plan; without a check only its budgets and predicted errors.

    Parameters
    ----------
    results
        What the file of a plan holds.
    title
        Above everything; None: the model and what is kept; empty: none.
    width
        Of the figure, in inches.
    """
    parts = [draw_budgets]
    parts += [draw_predicted] if results["check"] is None else [draw_cost, draw_layers, draw_heads]
    across = columns(width, len(parts), 3.0)
    height = 0.3 + 2.6 * -(-len(parts) // across)
    figure = new_figure(width, height, title_of(results, title))
    for axis, part in zip(panels(figure, len(parts), across), parts, strict=True):
        part(axis, results)
    return figure


def single(part: Callable[[Any, dict[str, Any]], None], checked: bool) -> Callable[..., Figure]:
    """A figure of one panel; some need a check."""

    @styled
    def draw(results: dict[str, Any], title: str | None = None, *, width: float = DOUBLE) -> Figure:
        if checked and results["check"] is None:
            raise InputError("the plan has no check; make it with --check TEXT")
        figure = new_figure(width, min(0.8 * width, 3.2) + 0.2, title_of(results, title))
        part(figure.subplots(), results)
        return figure

    draw.__doc__ = part.__doc__
    return draw


def draw_budgets(axis: Any, results: dict[str, Any]) -> None:
    """Tokens that every key head keeps."""
    budgets = np.asarray(results["budgets"], dtype=np.float64)
    layers, heads = (list(range(count)) for count in budgets.shape)
    draw_grid(
        axis.figure, axis, budgets, layers, heads, "tokens kept", logarithmic=True,
        heads_name="key head",
    )  # fmt: skip


def draw_predicted(axis: Any, results: dict[str, Any]) -> None:
    """Distribution over heads of the predicted relative output error."""
    errors = np.sort(np.asarray(results["predicted"]["head_error"], dtype=np.float64).ravel())
    share = np.arange(1, len(errors) + 1) / len(errors)
    axis.step(errors, share, where="post", color=COLOURS["planned"])
    if np.all(errors > 0) and errors[-1] > 3 * errors[0]:
        logarithmic(axis, "x")
    axis.set_ylim(0, 1.02)
    finish(axis, "predicted relative error", "share of heads", "predicted errors")


def draw_cost(axis: Any, results: dict[str, Any]) -> None:
    """Divergence from dense of every configuration, with 95% interval over passages."""
    check = results["check"]
    decoder = "kl" in check["planned"]
    names = [name for name in NAMES if name in check]
    for i, name in enumerate(names):
        found = check[name]["kl" if decoder else "cosine"]
        value, ends = found["mean"], found["interval"] or [found["mean"]] * 2
        if not decoder:
            value, ends = 1 - value, [1 - ends[1], 1 - ends[0]]
        axis.bar(i, value, color=COLOURS[name], width=0.6)
        error_bars(axis, [i], [value], [[ends[0]], [ends[1]]], color=BLACK, marker="", capsize=3)
        axis.annotate(
            f"{value:.2g}", (i, max(ends[1], value)), textcoords="offset points", xytext=(0, 2),
            ha="center", fontsize=NOTE,
        )  # fmt: skip
    axis.set_ylim(0, 1.12 * axis.get_ylim()[1])
    axis.set_xticks(range(len(names)), [NAMES[name] for name in names])
    finish(
        axis, "", "KL to dense (nats per token)" if decoder else "1 - cosine to dense",
        f"{check['passages']} unseen passages, 95% intervals", grid="y",
    )  # fmt: skip
    axis.tick_params(axis="x", labelsize=NOTE, rotation=15)


def draw_layers(axis: Any, results: dict[str, Any]) -> None:
    """Relative error of the attention outputs of every layer, with 95% intervals."""
    check = results["check"]
    for name in (name for name in NAMES if name in check):
        found = check[name]["layer_error"]
        values = np.asarray(found["mean"], dtype=np.float64)
        layers = np.arange(len(values))
        axis.plot(
            layers, values, color=COLOURS[name], marker=MARKERS[name], markersize=2.4,
            label=NAMES[name],
        )  # fmt: skip
        ends = found.get("interval")
        if ends is not None and all(end is not None for end in ends):
            low, high = np.array(ends, dtype=np.float64).T
            axis.fill_between(
                layers, np.maximum(low, 0.02 * values), high, color=COLOURS[name], alpha=0.15,
                linewidth=0,
            )  # fmt: skip
    axis.set_yscale("log")
    low, high = axis.get_ylim()
    axis.set_ylim(low, high * (high / low) ** 0.25)  # room for the legend
    logarithmic(axis, "y")
    axis.xaxis.set_major_locator(MaxNLocator(8, integer=True))
    finish(axis, "layer", "relative error", "attention outputs (bands: 95%)")
    axis.legend(fontsize=NOTE, ncols=2, loc="upper center", columnspacing=0.8)


def draw_heads(axis: Any, results: dict[str, Any]) -> None:
    """Realised against predicted error of every head; grey: within the factor of the check."""
    heads = results["check"]["heads"]
    predicted, realised = (
        np.asarray(heads[k], dtype=np.float64).ravel() for k in ("predicted", "realised")
    )
    shown = (predicted > 0) & (realised > 0)
    axis.plot(
        predicted[shown], realised[shown], "o", color=COLOURS["planned"], markersize=2.4, alpha=0.6,
        markeredgewidth=0,
    )  # fmt: skip
    if shown.any():
        both = np.concatenate([predicted[shown], realised[shown]])
        ends, factor = np.array([both.min(), both.max()]), heads["factor"]
        axis.plot(ends, ends, color=BLACK, linewidth=0.8)
        axis.fill_between(ends, ends / factor, ends * factor, color=GREY, alpha=0.2, linewidth=0)
        logarithmic(axis, "x")
        logarithmic(axis, "y")
    within = heads["within_factor"]
    share = "" if within is None else f": {within:.0%} within a factor of {heads['factor']:g}"
    finish(axis, "predicted relative error", "realised on unseen text", f"heads{share}")


draw_budgets_figure = single(draw_budgets, checked=False)
draw_predicted_figure = single(draw_predicted, checked=False)
draw_cost_figure = single(draw_cost, checked=True)
draw_layers_figure = single(draw_layers, checked=True)
draw_calibration_figure = single(draw_heads, checked=True)
