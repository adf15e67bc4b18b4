"""The page of sparse patterns: errors against the budget, exponents, verdicts, every head."""

from __future__ import annotations

from typing import Any

from esscher.show.content import (
    Axis,
    Card,
    Chart,
    Column,
    CurveSeries,
    CurveView,
    Explorer,
    Line,
    Part,
    Plot,
    Quantity,
    Series,
    Table,
)
from esscher.show.frames import ends_of
from esscher.show.numbers import between, shown
from esscher.show.provenance import model_options, options
from esscher.show.stored import StoredRun

NAME = "Sparse attention patterns"
METRICS = {"map": "map", "mean": "mean output", "cov": "covariance"}
#: Colour, marker and line of each pattern.
STYLES = {
    "random": ("ink", "circle", "solid"),
    "corrected": ("blue", "circle", "solid"),
    "topk": ("green", "triangle-up", "solid"),
    "streaming": ("orange", "square", "solid"),
    "window": ("gold", "square", "dash"),
    "longformer": ("gold", "diamond", "dot"),
    "bigbird": ("purple", "diamond", "solid"),
    "strided": ("sky", "triangle-down", "solid"),
    "block": ("sky", "cross", "dash"),
    "pooled": ("grey", "x", "solid"),
    "linformer": ("grey", "x-thin", "dash"),
}
OTHER = ("purple", "circle", "dash")
#: Relative error for which budgets are asked, as the study has it.
TARGET = "10%"


def subject(run: StoredRun) -> str:
    """Model or law."""
    return str(run.found.subject)


def answer(run: StoredRun) -> str:
    """The headline."""
    return str(run.found.headline)


def cards(run: StoredRun) -> list[Card]:
    """The best patterns and the baseline."""
    patterns, largest = run.results["patterns"], run.results["budgets"][-1]
    base = patterns["random"]["fit"]["map"]
    last = {name: p["curve"]["dense"]["map"]["mean"][-1] for name, p in patterns.items()}
    best = min(last, key=lambda name: last[name])
    noise = patterns[best]["curve"]["dense"]["map"]["standard_error"]
    spread = "" if noise is None else f" ± {1.96 * noise[-1]:.2g}"
    out = [
        Card(
            shown(base["exponent"], "d3"),
            "exponent of random selection",
            f"map error, 95% interval {shown(base['interval'][0], 'd3')} to "
            f"{shown(base['interval'][1], 'd3')}",
        ),
        Card(best, f"smallest error at r = {largest:,}", f"map error {last[best]:.3g}{spread}"),
    ]
    reached = {
        name: p["break_even"]["for_target"]
        for name, p in patterns.items()
        if p["break_even"]["for_target"]["state"] == "inside"
    }
    if reached:
        cheapest = min(reached, key=lambda name: reached[name]["budget"])
        out.append(
            Card(
                between(reached[cheapest]["budget"], None, "n0"),
                f"keys for {TARGET} map error, at least",
                f"with {cheapest}; 95% interval {shown(reached[cheapest]['interval'][0], 'n0')} to "
                f"{shown(reached[cheapest]['interval'][1], 'n0', 'beyond the grid')}",
            )
        )
    never = sum(p["verdict"] == "does not converge to dense" for p in patterns.values())
    out.append(Card(f"{never} of {len(patterns)}", "patterns do not converge to dense"))
    out.append(
        Card(f"{run.results['visible']:,.0f}", "keys that a query sees", "dense attention, mean")
    )
    return out


def parts(run: StoredRun) -> list[Part]:
    """Curves, exponents, verdicts, bias, heads."""
    patterns = run.results["patterns"]
    out: list[Part] = [
        _curves(run),
        _exponents(patterns),
        _verdicts(patterns, run.name),
        _bias(run),
    ]
    if run.results["heads"]:
        table = _head_table(run)
        out += [_explorer(run, table), table]
    return out


def command_words(run: StoredRun) -> list[str]:
    """``sparse MODEL ...`` or ``sparse-law LAW ...``."""
    c = run.configuration
    common = {"patterns": c["patterns"], "budgets": c["budgets"]}
    if "model" in c:
        return [
            "sparse", c["model"]["name"],
            *options(
                **common, text=c["text"]["source"], context=c["context"], passages=c["passages"],
                draws=c["draws"], query_count=c["query_count"], seed=c["seed"], **model_options(c),
                out=run.name,
            ),
        ]  # fmt: skip
    return [
        "sparse-law", c["law"],
        *options(
            **common, horizon=c["horizon"], dim=c["dim"], spectrum=c["spectrum"], tau=c["tau"],
            df=c["df"] if c["law"] == "student" else None,
            correlation=c["correlation"] or None, tokens=c["tokens"],
            replicates=c["replicates"], query_count=c["query_count"], seed=c["seed"], out=run.name,
        ),
    ]  # fmt: skip


def _curves(run: StoredRun) -> Chart:
    budgets, views = run.results["budgets"], []
    for metric, name in METRICS.items():
        series = []
        for pattern, entry in run.results["patterns"].items():
            colour, symbol, dash = STYLES.get(pattern, OTHER)
            curve = entry["curve"]["dense"][metric]
            mean, noise = curve["mean"], curve["standard_error"]
            low = high = None
            if noise is not None:
                low = [max(m - 1.96 * s, 0.05 * m) for m, s in zip(mean, noise, strict=True)]
                high = [m + 1.96 * s for m, s in zip(mean, noise, strict=True)]
            series.append(
                Series(pattern, budgets, mean, low, high, mode="both", colour=colour,
                       symbol=symbol, dash=dash, text=[entry["title"]] * len(budgets))
            )  # fmt: skip
        lines = [Line("h", 0.1, "10%")] if metric == "map" else []
        views.append(
            Plot(name, Axis("keys r that a query attends", True, budgets),
                 Axis("relative error against dense", True), series, lines)
        )  # fmt: skip
    return Chart(
        "Error against the budget",
        views,
        caption="Relative error against dense attention, with 95% intervals (1.96 standard "
        "errors). Names in the legend hide and show patterns.",
        selector="Error of the",
        height=470,
    )


def _exponents(patterns: dict[str, Any]) -> Chart:
    names = list(patterns)[::-1]
    series = []
    for (metric, words), colour, offset in zip(
        METRICS.items(), ("blue", "orange", "green"), (0.2, 0.0, -0.2), strict=True
    ):
        fits = [patterns[name]["fit"][metric] for name in names]
        low, high = ends_of(fit["interval"] for fit in fits)
        series.append(
            Series(
                words,
                [fit["exponent"] for fit in fits],
                [i + offset for i in range(len(names))],
                x_low=low,
                x_high=high,
                colour=colour,
                text=names,
                hollow=[not (fit["trusted"] and fit["law"] == "power") for fit in fits],
            )
        )
    return Chart(
        "Exponents by pattern",
        [Plot("exponents", Axis("exponent of error ~ r^-β"), Axis("", categories=names), series,
              [Line("v", 0.0), Line("v", 0.5, "1/2")])],
        caption="With 95% intervals; hollow: not to be trusted, or no power law.",
    )  # fmt: skip


def _verdicts(patterns: dict[str, Any], name: str) -> Table:
    fits = {p: entry["fit"]["map"] for p, entry in patterns.items()}
    low, high = ends_of(fit["interval"] for fit in fits.values())
    versus = [(entry["versus_random"] or {}).get("map") for entry in patterns.values()]
    rlow, rhigh = ends_of(None if v is None else v["ratio_interval"] for v in versus)
    target = [entry["break_even"]["for_target"] for entry in patterns.values()]
    tlow, thigh = ends_of(t["interval"] if t["state"] == "inside" else None for t in target)
    said = {"above": "error is above it everywhere", "below": "error is below it everywhere"}
    return Table(
        title="Verdicts",
        name=f"{name}-verdicts",
        columns=[
            Column("pattern", "pattern"),
            Column("verdict", "verdict"),
            Column("exponent", "exponent, map", "d3", "low", "high"),
            Column("ratio", "error / random", "s3", "ratio_low", "ratio_high",
                   help="geometric mean over the budgets of the map error over that of random "
                   "selection"),
            Column("keys", f"keys for {TARGET}", "n0", "keys_low", "keys_high",
                   missing="not on this grid", last=True),
            Column("evidence", "evidence"),
            Column("target", "the error asked for", shown=False),
        ],
        data={
            "pattern": list(patterns),
            "title": [entry["title"] for entry in patterns.values()],
            "verdict": [entry["verdict"] for entry in patterns.values()],
            "exponent": [fit["exponent"] for fit in fits.values()],
            "low": low,
            "high": high,
            "ratio": [None if v is None else v["ratio"] for v in versus],
            "ratio_low": rlow,
            "ratio_high": rhigh,
            "keys": [t["budget"] for t in target],
            "keys_low": tlow,
            "keys_high": thigh,
            "target": [said.get(t["state"], "reached") for t in target],
            "evidence": [entry["evidence"] for entry in patterns.values()],
        },
        caption="On the map error: does the pattern keep the exponent of random selection?",
    )  # fmt: skip


def _bias(run: StoredRun) -> Chart:
    budgets, series = run.results["budgets"], []
    for pattern, entry in run.results["patterns"].items():
        colour, symbol, dash = STYLES.get(pattern, OTHER)
        if entry["bias"] is not None:
            series.append(
                Series(pattern, budgets, entry["bias"]["share"], mode="both", colour=colour,
                       symbol=symbol, dash=dash)
            )  # fmt: skip
    return Chart(
        "How much of the error is bias",
        [Plot("bias", Axis("keys r that a query attends", True, budgets),
              Axis("share of the squared map error", limits=(-0.05, 1.05)), series)],
        caption="What averaging over draws would not remove, as a share of the squared map error; "
        "for a pattern without randomness all of it.",
        height=420,
    )  # fmt: skip


def _head_table(run: StoredRun) -> Table:
    heads, names = run.results["heads"], list(run.results["patterns"])
    data: dict[str, list[Any]] = {
        "layer": [h["layer"] for h in heads],
        "head": [h["head"] for h in heads],
        "best": [min(names, key=lambda p: h["patterns"][p]["map"]["error"][-1]) for h in heads],
    }
    columns = [
        Column("layer", "layer", "n0"),
        Column("head", "head", "n0"),
        Column("best", "smallest error", help="pattern with the smallest map error"),
    ]
    for p in names:
        own = [h["patterns"][p] for h in heads]
        low, high = ends_of(x["map"]["interval"] for x in own)
        data |= {
            f"{p}_exponent": [x["map"]["exponent"] for x in own],
            f"{p}_low": low,
            f"{p}_high": high,
            f"{p}_error": [x["map"]["error"][-1] for x in own],
            f"{p}_keys": [x["budget"] for x in own],
        }
        columns += [
            Column(f"{p}_exponent", f"exponent, {p}", "d2", f"{p}_low", f"{p}_high",
                   shown=p == "random"),
            Column(f"{p}_error", f"error, {p}", "s3",
                   help=f"map error at r = {run.results['budgets'][-1]:,}"),
            Column(f"{p}_keys", f"keys for {TARGET}, {p}", "n0", missing="not on this grid",
                   last=True, shown=False),
        ]  # fmt: skip
    return Table(
        title="All heads",
        name=f"{run.name}-heads",
        columns=columns,
        data=data,
        caption=f"Map errors at r = {run.results['budgets'][-1]:,}. The CSV file also has the "
        "exponents of all patterns with intervals.",
        sort=("random_error", True),
    )


def _explorer(run: StoredRun, table: Table) -> Explorer:
    names, budgets = list(run.results["patterns"]), run.results["budgets"]
    series = []
    for p in names:
        colour, symbol, dash = STYLES.get(p, OTHER)
        series.append(CurveSeries(p, p, colour=colour, symbol=symbol, dash=dash))
    error = [h["patterns"]["random"]["map"]["error"][-1] for h in run.results["heads"]]
    order = sorted(range(len(error)), key=lambda i: -error[i])
    paint = [(p, STYLES.get(p, OTHER)[0]) for p in names if p in set(table.data["best"])]
    return Explorer(
        title="Every head",
        table=table,
        quantities=[
            Quantity("random_exponent", "exponent, random", limits=(0.0, 0.6)),
            *(
                Quantity(f"{p}_error", f"map error, {p}", "cividis", log=True) for p in names
            ),
            Quantity("best", "pattern with the smallest error", categories=paint),
            *(Quantity(f"{p}_exponent", f"exponent, {p}") for p in names if p != "random"),
        ],
        facts=["best", "random_exponent", "random_error",
               *(f"{p}_error" for p in ("topk", "streaming", "corrected") if p in names)],
        views=[
            CurveView("map", Axis("keys r", True, budgets),
                      Axis("relative map error", True), series, budgets,
                      [Line("h", 0.1, "10%")])
        ],
        curves=[
            {p: h["patterns"][p]["map"]["error"] for p in names} for h in run.results["heads"]
        ],
        importance=order,
        start=order[0],
        caption=f"Mean over {run.results['replicates']} replicates. Colours of the last quantity "
        "are those of the curves.",
        curve_caption="Mean relative map error of this head; intervals of its exponents are in the "
        "table.",
    )  # fmt: skip
