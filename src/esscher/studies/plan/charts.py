"""Charts of a plan: budgets, what they cost on held-out text, and how good the prediction was."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from altair.typing import ChartType

from esscher.core.shown import counted
from esscher.show.cells import ROW, heatmap, map_height, picked_title, picking
from esscher.show.chart import (
    HEIGHT,
    Axis,
    Series,
    bands,
    bars,
    diagonal,
    figure,
    lines,
    panel,
    points,
    sheet,
)
from esscher.show.content import Drawing, check_heads
from esscher.show.frames import records
from esscher.show.theme import (
    BLACK,
    BLUE,
    GREEN,
    OLIVE,
    ORANGE,
    PURPLE,
    SHARES,
    SKY,
    VERMILION,
    limits,
)
from esscher.studies.plan.result import Check, Plan
from esscher.studies.plan.view import KEY_HEAD, grouped, key_heads, name_of

#: Colours of the first configurations; a chart of lines shows no more.
COLOURS = (BLUE, ORANGE, GREEN, PURPLE, VERMILION, SKY, BLACK, OLIVE)
#: The distance from dense.
KL = "KL to dense (nats per token)"
#: What is measured on held-out text, by the heading of its panel.
MEASURES = {
    KL: "kl",
    "share with the same most likely token": "top1",
    "perplexity / dense perplexity": "perplexity_ratio",
    "relative error of attention outputs": "error",
}
#: Errors of query heads that share a key head.
ERRORS = Series(
    "error",
    ("predicted", "realised on held-out text"),
    colours=(VERMILION, BLUE),
    shapes=("diamond", "circle"),
)
#: Configurations whose intervals are drawn over layers: bands of more than two cover each other.
BANDED = ("planned", "uniform")
#: Share of the largest error below which an error is rounding: all tokens are kept.
ROUNDING = 1e-4
PREDICTED, REALISED = "predicted relative error", "realised on held-out text"
#: Points that a panel must have to stand beside another.
WIDE = 170.0
SURE = "95% intervals over passages"


def overview(plan: Plan) -> ChartType:
    """Draw budgets, costs, layers and calibration; without a check, budgets alone."""
    check = plan.check
    if check is None:
        return budgets(plan)
    height = max(map_height(len(plan.budgets)), HEIGHT)
    parts = [
        figure([_budgets(plan), _calibration(check, height)], least=WIDE, apart=True),
        figure([_cost(check, KL, series(check)), _layers(check)], least=WIDE),
    ]
    return sheet(parts, _title(plan), note=f"{_passages(check)}; black lines and bands: {SURE}")


def budgets(plan: Plan) -> ChartType:
    """Draw the tokens that every key head keeps."""
    return figure([_budgets(plan)], _title(plan), note=_kept(plan))


def explorer(plan: Plan, heads: Sequence[tuple[int, int]] | None = None) -> ChartType:
    """Draw budgets and errors of every key head, and its query heads for the one picked."""
    table = key_heads(plan)
    places = [(int(layer), int(head)) for layer, head in table[["layer", KEY_HEAD]].to_numpy()]
    chosen = places[int(table["predicted_error"].to_numpy().argmax())]
    if heads is not None:
        check_heads(heads, places)
        chosen = heads[0]
    pick = picking(*chosen, columns=KEY_HEAD)
    # the same colours for both; heads that keep everything have no error, and no colour
    known = table[[name for name in table if name.endswith("_error")]].to_numpy()
    least = [error for error in table["predicted_error"] if error > 0]
    errors: dict[str, Any] = {
        "log": True,
        "colours": SHARES,
        "ends": (min(least), known.max()) if least else None,
    }
    panels = [
        heatmap(records(table), column, title, columns=KEY_HEAD, pick=pick, **how)
        for column, title, how in (
            ("tokens", "tokens kept", {"log": True}),
            ("ratio", "share of the prefix", {"ends": (0.0, 1.0), "colours": SHARES}),
            ("predicted_error", "predicted error, worst query head", errors),
            ("realised_error", "realised error, worst query head", errors),
        )
        if column in table
    ]
    # of the query heads that share the key head that is picked
    grids = {ERRORS.names[0]: grouped(plan, plan.predicted.head_error)}
    if plan.check is not None:
        grids[ERRORS.names[1]] = grouped(plan, plan.check.heads.realised)
    rows = [
        {"layer": layer, KEY_HEAD: head, "error": name, "query": str(i), "value": value}
        for name, grid in grids.items()
        for (layer, head), values in zip(np.ndindex(np.shape(plan.budgets)), grid, strict=True)
        for i, value in enumerate(values)
    ]
    names = list(dict.fromkeys(row["query"] for row in rows))
    x = Axis("query", "query head of the group", names=names)
    y = Axis("value", "relative output error")
    drawn = points(rows, x, y, ERRORS, beside=True, pick=pick)
    panels.append(panel(drawn, title=picked_title("errors", KEY_HEAD)))
    note = _kept(plan) + ("" if len(least) == len(table) else "; ×: all kept, no error")
    return figure(panels, _title(plan), note=note, apart=True, pick=pick)


def cost(plan: Plan) -> ChartType:
    """Draw everything that was measured on held-out text, by configuration."""
    check = _checked(plan)
    panels = [_cost(check, title) for title in MEASURES]
    note = f"{_passages(check)}; lines: {SURE}"
    return figure(panels, _title(plan), note=note, least=WIDE)


def tasks(plan: Plan) -> ChartType:
    """Draw the share of right answers in every task, by configuration."""
    check = _checked(plan)
    panels = []
    for task, scores in check.tasks.items():
        rows: list[dict[str, Any]] = []
        for name, answers in scores.items():
            called = "dense" if name == "dense" else name_of(name)
            low, high = answers.interval
            label = f"{called}: {answers.score:.0%}"
            rows.append({"label": label, "value": answers.score, "low": low, "high": high})
        names = Axis("label", names=[row["label"] for row in rows])
        x = Axis("value", "right answers", limits=(0.0, 1.0))
        title = f"{task}: dense cannot" if task in check.dense_cannot else task
        drawn = bars(rows, x, names, across=True)
        panels.append(panel(drawn, title=title, height=1.4 * ROW * len(rows)))
    note = "lines: Wilson's 95% intervals"
    return figure(panels, _title(plan), note=note, least=WIDE)


def layers(plan: Plan) -> ChartType:
    """Draw the relative error of the attention outputs of every layer."""
    check = _checked(plan)
    note = f"{_passages(check)}; bands: {SURE}, of planned and uniform"
    return figure([_layers(check)], _title(plan), note=note)


def calibration(plan: Plan) -> ChartType:
    """Draw the realised against the predicted error of every head."""
    return figure([_calibration(_checked(plan), 180.0)], _title(plan))


def _no_check(plan: Plan) -> str | None:
    return None if plan.check is not None else "the plan was not checked (--check TEXT)"


def _no_tasks(plan: Plan) -> str | None:
    asked = plan.check is not None and plan.check.tasks
    return None if asked else "no questions were asked (--tasks)"


DRAWINGS = (
    Drawing("plan", "budgets, cost, layers and calibration", overview),
    Drawing("budgets", "tokens that every key head keeps", budgets),
    Drawing(
        "explorer",
        "budgets and errors of every key head, and one of them (--head)",
        explorer,
        heads=True,
        heading="Budgets",
        caption="Click a cell, or move with the arrow keys, to see the errors of the query heads "
        "that share this key head.",
    ),
    Drawing(
        "cost",
        "what the plan costs on held-out text",
        cost,
        missing=_no_check,
        heading="What it costs on held-out text",
        caption="All methods keep the same number of tokens, on passages that the plan has not "
        "seen.",
    ),
    Drawing(
        "tasks",
        "right answers to questions about texts",
        tasks,
        missing=_no_tasks,
        heading="Questions about texts",
        caption="Share of right answers by method; all keep the same number of tokens.",
    ),
    Drawing(
        "layers",
        "errors of attention outputs by layer",
        layers,
        missing=_no_check,
        heading="Error of attention outputs by layer",
        caption="Against dense attention on held-out text. Layers without a point have no error: "
        "all of their tokens are kept.",
    ),
    Drawing(
        "calibration",
        "realised against predicted errors of heads",
        calibration,
        missing=_no_check,
        heading="Predicted against realised",
        caption="One point per query head; on the dotted line both are equal.",
    ),
)


def series(check: Check) -> Series:
    """Return what tells the configurations of a check apart."""
    names = [name_of(name) for name in shown_first(check)]
    return Series("configuration", names, colours=COLOURS[: len(names)])


def shown_first(check: Check) -> list[str]:
    """Return as many configurations as there are colours: planned, uniform, the closest others."""
    distance = {name: own.kl.mean for name, own in check.configurations.items()}
    others = sorted(
        (n for n in distance if n not in ("planned", "uniform")), key=distance.__getitem__
    )
    return ["planned", "uniform", *others][: len(COLOURS)]


def _budgets(plan: Plan) -> ChartType:
    rows = records(key_heads(plan))
    return heatmap(rows, "tokens", "tokens kept", log=True, columns=KEY_HEAD)


def _cost(check: Check, title: str, colours: Series | None = None) -> ChartType:
    """One measure of every configuration, with 95% intervals over passages."""
    rows: list[dict[str, Any]] = []
    for name in check.configurations if colours is None else shown_first(check):
        mean, called = getattr(check.measures[name], MEASURES[title]), name_of(name)
        low, high = mean.interval or (None, None)
        rows.append(
            {
                "configuration": called,
                "label": f"{called}: {mean.mean:.3g}",
                "value": mean.mean,
                "low": low,
                "high": high,
            }
        )
    names = Axis("label", names=[row["label"] for row in rows])
    drawn = bars(rows, Axis("value", title), names, colours, across=True)
    return panel(drawn, height=HEIGHT if colours is not None else 1.4 * ROW * len(rows))


def _layers(check: Check) -> ChartType:
    """Relative error of the attention outputs of every layer; bands of the two that matter most."""
    rows: list[dict[str, Any]] = []
    for name in shown_first(check):
        for layer, mean in enumerate(check.measures[name].layer_error):
            low, high = (mean.interval if name in BANDED else None) or (None, None)
            rows.append(
                {
                    "configuration": name_of(name),
                    "layer": layer,
                    "error": mean.mean,
                    "low": low,
                    "high": high,
                }
            )
    x = Axis("layer", "layer", whole=True, limits=limits([row["layer"] for row in rows]))
    largest = max(row["error"] for row in rows)
    rows = [row for row in rows if row["error"] > ROUNDING * largest]
    ends = limits([row[key] for row in rows for key in ("error", "high")], log=True)
    y = Axis("error", "relative error", log=True, limits=ends)
    colours = series(check)
    known = [row for row in rows if row["low"] is not None]
    plain = [{key: row[key] for key in ("configuration", "layer", "error")} for row in rows]
    return panel(
        *([bands(known, x, y, colours)] if known else []),
        lines(plain, x, y, colours),
        points(plain, x, y, colours),
        title="attention outputs",
    )


def _calibration(check: Check, height: float = HEIGHT) -> ChartType:
    """Realised against predicted error of every head; grey: within the factor of the check."""
    heads = check.heads
    rows = [
        {"name": f"layer {layer}, head {head}", "predicted": guess, "realised": real}
        for layer, (guesses, errors) in enumerate(zip(heads.predicted, heads.realised, strict=True))
        for head, (guess, real) in enumerate(zip(guesses, errors, strict=True))
        if guess > 0 and real > 0
    ]
    ends = limits([row[key] for row in rows for key in ("predicted", "realised")], log=True)
    x = Axis("predicted", PREDICTED, log=True, limits=ends)
    y = Axis("realised", REALISED, log=True, limits=ends)
    share = heads.within_factor
    within = "" if share is None else f": {share:.0%} within a factor of {heads.factor:g} (grey)"
    marks = [diagonal(x, y, heads.factor), points(rows, x, y)] if rows else [diagonal(x, y)]
    return panel(*marks, title=f"heads{within}", height=height)


def _checked(plan: Plan) -> Check:
    assert plan.check is not None  # ``missing`` says so
    return plan.check


def _passages(check: Check) -> str:
    return counted(check.passages, "held-out passage") + " of this text"


def _kept(plan: Plan) -> str:
    keeping = plan.keeping
    return (
        f"the {keeping.sinks} first and {keeping.recent} latest tokens are always kept, others by "
        "their scores"
    )


def _title(plan: Plan) -> str:
    return f"{plan.model.name}: {plan.total.ratio:.1%} of {plan.prefix:,} tokens kept"
