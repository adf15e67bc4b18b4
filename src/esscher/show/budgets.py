"""Plans at several budgets in a picture: what each share of the tokens costs, text by text."""

from __future__ import annotations

from typing import Any

import numpy as np
from matplotlib.figure import Figure

from esscher.show.plans import COLOURS, MARKERS, NAMES
from esscher.show.style import (
    DOUBLE,
    columns,
    error_bars,
    escape,
    finish,
    logarithmic,
    new_figure,
    panels,
    styled,
)

#: Configurations at the same budget are drawn side by side, each this factor to the right.
APART = 1.04


@styled
def draw_budget_costs(results: dict[str, Any], *, width: float = DOUBLE) -> Figure:
    """Draw what every configuration costs against the share of tokens kept.

    Parameters
    ----------
    results
        What :func:`esscher.studies.reproduce.budgets.budget_study` returns.
    width
        Of the figure, in inches.
    """
    texts = list(results["configuration"]["checks"])
    decoder = "kl" in results["found"][0]["check"]["planned"]
    across = columns(width, len(texts), 2.2)
    height = 0.3 + 2.5 * -(-len(texts) // across)
    model, keys = results["configuration"]["model"]["name"], results["configuration"]["prefix"]
    prefix = f", prefix of {keys:,} tokens" if keys else ""
    figure = new_figure(width, height, f"{model}{prefix}: distance from dense on unseen text")
    for axis, text in zip(panels(figure, len(texts), across, sharey=True), texts, strict=True):
        rows = [row for row in results["found"] if row["text"] == text]
        budgets = np.array([100 * row["budget"] for row in rows])
        for i, name in enumerate(name for name in NAMES if name in rows[0]["check"]):
            points = np.array([distance(row["check"][name], decoder) for row in rows])
            error_bars(
                axis, budgets * APART**i, points[:, 0], (points[:, 1], points[:, 2]),
                color=COLOURS[name], marker=MARKERS[name], label=NAMES[name],
            )  # fmt: skip
        unit = "KL (nats per token)" if decoder else "1 - cosine"
        finish(axis, "tokens kept (%)", unit if axis is figure.axes[0] else "", escape(text))
        logarithmic(axis, "y")
        axis.set_xscale("log")
        axis.set_xticks(budgets, [f"{budget:g}" for budget in budgets])
        axis.minorticks_off()
    figure.axes[0].legend()
    return figure


def distance(found: dict[str, Any], decoder: bool) -> tuple[float, float, float]:
    """Distance of a configuration from dense, with the ends of its interval."""
    measure = found["kl" if decoder else "cosine"]
    value, (low, high) = measure["mean"], measure["interval"] or (measure["mean"],) * 2
    return (value, low, high) if decoder else (1 - value, 1 - high, 1 - low)
