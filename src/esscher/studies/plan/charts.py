"""Charts of a plan: budgets, what they cost on held-out text, and how good the prediction was."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from altair.typing import ChartType

from esscher.core.shown import counted
from esscher.core.variables import table
from esscher.show import theme
from esscher.show.cells import ROW, heatmap, map_height, picked_title
from esscher.show.chart import (
    HEIGHT,
    Axis,
    Series,
    bars,
    diagonal,
    figure,
    panel,
    points,
    sheet,
)
from esscher.show.content import Drawing
from esscher.show.explorer import explorer, head_map
from esscher.show.frames import records
from esscher.show.theme import limits
from esscher.studies.plan.result import PlanResult
from esscher.studies.plan.study import ALL, FACTOR, PlanData
from esscher.studies.plan.view import NAMES, RATIO, TABLES

if TYPE_CHECKING:
    import altair as alt

#: Axis beside the layers.
KEY_HEAD = "key_head"
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
ERROR = (PlanData.predicted_error, PlanData.realised_error)
ERRORS = Series(
    "error",
    [variable.heading for variable in ERROR],
    colours=(theme.VERMILION, theme.BLUE),
    shapes=("diamond", "circle"),
)
PREDICTED, REALISED = "predicted relative error", "realised on held-out text"
#: Points that a panel must have to stand beside another.
WIDE = 170.0
SURE = "95% intervals over passages"


def overview(result: PlanResult) -> ChartType:
    """Draw budgets, costs and calibration; without a check, budgets alone."""
    if not result.checked:
        return budgets(result)
    height = max(map_height(result.data.sizes["layer"]), HEIGHT)
    parts = [
        figure([_budgets(result), _calibration(result, height)], least=WIDE, apart=True),
        figure([_cost(result, KL)], least=WIDE),
    ]
    note = f"{_passages(result)}; black lines: {SURE}"
    return sheet(parts, _title(result), note=note)


def budgets(result: PlanResult) -> ChartType:
    """Draw the tokens that every key head keeps."""
    return figure([_budgets(result)], _title(result), note=_kept(result))


def heads(result: PlanResult, heads: Sequence[tuple[int, int]] | None = None) -> ChartType:
    """Draw budgets and errors of every key head, and its query heads for the one picked."""
    frame = result.table()
    # a plan that existed has no prediction, and one without a check nothing realised
    errors = [v for v in ERROR if v.name in frame and frame[v.name].notna().any()]
    names = [variable.name for variable in errors]
    frame = frame.sort_values(names[0], ascending=False, kind="stable")
    # the same colours for both; heads that keep everything have no error, and no colour
    some = frame[names[0]] > 0
    colours: dict[str, Any] = {"log": True, "colours": theme.SHARES}
    if some.any():
        colours["ends"] = frame[names[0]][some].min(), frame[names].max(axis=None)
    maps = [
        head_map(PlanData.tokens, log=True),
        head_map(RATIO, ends=(0.0, 1.0), colours=theme.SHARES),
        *(head_map(variable, **colours) for variable in errors),
    ]
    rows = [
        {"layer": row["layer"], KEY_HEAD: row[KEY_HEAD], "query": str(row["query"])}
        | {"error": variable.heading, "value": row[variable.name]}
        for variable in errors
        for row in records(table(result.data, ("layer", KEY_HEAD, "query"), (variable.name,)))
    ]
    queries = [str(query) for query in result.data["query"].values]
    x = Axis("query", "query head of the group", names=queries)
    y = Axis("value", "relative output error")

    def curves(pick: alt.Parameter) -> list[ChartType]:
        drawn = points(rows, x, y, ERRORS, beside=True, pick=pick)
        return [panel(drawn, title=picked_title("errors", KEY_HEAD))]

    note = "errors of the worst query head" + ("" if some.all() else "; ×: all kept, no error")
    first = [(int(frame["layer"].iloc[0]), int(frame[KEY_HEAD].iloc[0]))]
    return explorer(result, TABLES[0], maps, curves, heads=heads or first, note=note)


def cost(result: PlanResult) -> ChartType:
    """Draw everything that was measured on held-out text, by configuration."""
    panels = [_cost(result, title) for title in MEASURES]
    note = f"{_passages(result)}; lines: {SURE}"
    return figure(panels, _title(result), note=note, least=WIDE)


def tasks(result: PlanResult) -> ChartType:
    """Draw the share of right answers in every task, by configuration."""
    frame, panels = result.table("tasks"), []
    for task, scores in frame[frame["task"] != ALL].groupby("task", sort=False):
        rows = [
            {
                "label": f"{NAMES[row['configuration']]}: {row['score']:.0%}",
                "value": row["score"],
                "low": row["score_low"],
                "high": row["score_high"],
            }
            for row in records(scores)
        ]
        names = Axis("label", names=[row["label"] for row in rows])
        x = Axis("value", "right answers", limits=(0.0, 1.0))
        title = str(task) if scores["dense_can"].all() else f"{task}: dense cannot"
        drawn = bars(rows, x, names, across=True)
        panels.append(panel(drawn, title=title, height=1.4 * ROW * len(rows)))
    note = "lines: Wilson's 95% intervals"
    return figure(panels, _title(result), note=note, least=WIDE)


def calibration(result: PlanResult) -> ChartType:
    """Draw the realised against the predicted error of every head."""
    return figure([_calibration(result, 180.0)], _title(result))


def _no_check(result: PlanResult) -> str | None:
    return None if result.checked else "the plan was not checked (--check TEXT)"


def _no_tasks(result: PlanResult) -> str | None:
    return None if result.data.sizes["task"] else "no questions were asked (--tasks)"


DRAWINGS = (
    Drawing("plan", "budgets, cost and calibration", overview),
    Drawing("budgets", "tokens that every key head keeps", budgets),
    Drawing(
        "explorer",
        "budgets and errors of every key head, and one of them (--head)",
        heads,
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
        caption="All methods keep the same number of bytes, on passages that the plan has not "
        "seen.",
    ),
    Drawing(
        "tasks",
        "right answers to questions about texts",
        tasks,
        missing=_no_tasks,
        heading="Questions about texts",
        caption="Share of right answers by method; all keep the same number of bytes.",
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


def _budgets(result: PlanResult) -> ChartType:
    return heatmap(records(result.table()), "tokens", "tokens kept", log=True, columns=KEY_HEAD)


def _cost(result: PlanResult, title: str) -> ChartType:
    """One measure of every configuration, with 95% intervals over passages."""
    frame, measure = result.table("check").set_index("configuration"), MEASURES[title]
    rows = [
        {
            "configuration": NAMES[name],
            "label": f"{NAMES[name]}: {frame[measure][name]:.3g}",
            "value": frame[measure][name],
            "low": frame[f"{measure}_low"][name],
            "high": frame[f"{measure}_high"][name],
        }
        for name in frame.index
    ]
    names = Axis("label", names=[row["label"] for row in rows])
    drawn = bars(rows, Axis("value", title), names, across=True)
    return panel(drawn, height=1.4 * ROW * len(rows))


def _calibration(result: PlanResult, height: float = HEIGHT) -> ChartType:
    """Realised against predicted error of every head; grey: within the factor of the check."""
    frame = table(
        result.data.sel(bound="value"),
        ("layer", KEY_HEAD, "query"),
        ("predicted_error", "realised_error"),
    )
    group = result.data.sizes["query"]
    rows = [
        {
            "name": f"layer {row['layer']}, head {row[KEY_HEAD] * group + row['query']}",
            "predicted": row["predicted_error"],
            "realised": row["realised_error"],
        }
        for row in records(frame[(frame["predicted_error"] > 0) & (frame["realised_error"] > 0)])
    ]
    ends = limits([row[key] for row in rows for key in ("predicted", "realised")], log=True)
    x = Axis("predicted", PREDICTED, log=True, limits=ends)
    y = Axis("realised", REALISED, log=True, limits=ends)
    share = float(result.data["within_factor"])
    within = f": {share:.0%} within a factor of {FACTOR:g} (grey)" if share == share else ""
    marks = [diagonal(x, y, FACTOR), points(rows, x, y)] if rows else [diagonal(x, y)]
    return panel(*marks, title=f"heads{within}", height=height)


def _passages(result: PlanResult) -> str:
    return counted(result.setup.settings.check_passages, "held-out passage") + " of this text"


def _kept(result: PlanResult) -> str:
    keeping = result.plan.keeping
    return (
        f"the {keeping.sinks} first and {keeping.recent} latest tokens are always kept, others by "
        "their scores"
    )


def _title(result: PlanResult) -> str:
    plan = result.plan
    return f"{plan.model.name}: {100 * plan.share:.3g}% of the bytes of {plan.prefix:,} tokens"
