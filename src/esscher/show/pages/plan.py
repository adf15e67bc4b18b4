"""The page of a plan: budgets, what they are predicted to cost, what they did cost."""

from __future__ import annotations

from typing import Any

import numpy as np

from esscher.show.content import (
    Axis,
    Bars,
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
from esscher.show.frames import data_of, ends_of
from esscher.show.numbers import between, shown
from esscher.show.provenance import model_options, options
from esscher.show.stored import StoredRun
from esscher.studies.plan.words import inverse, kept_per_head

NAME = "Token budgets"
#: What is compared on unseen text, with colours.
VARIANTS = {
    "planned": ("the plan", "blue"),
    "uniform": ("uniform budgets", "orange"),
    "heavy": ("heavy hitters", "green"),
    "recent": ("sinks and recent", "purple"),
}
#: What is measured there: key, name, title.
MEASURES = (
    ("kl", "KL divergence", "KL to dense (nats per token)"),
    ("cosine", "cosine", "1 - cosine to dense"),
    ("top1", "top token", "share of tokens with the same most likely token"),
    ("perplexity_ratio", "perplexity", "perplexity / dense perplexity"),
    ("error", "output error", "relative error of attention outputs"),
)


def subject(run: StoredRun) -> str:
    """Model and texts."""
    c = run.results["configuration"]
    check = "" if c["check"] is None else f", checked on {c['check']['source']}"
    return f"{c['model']['name']}, calibrated on {c['text']['source']}{check}"


def answer(run: StoredRun) -> str:
    """The headline."""
    return str(run.found.headline)


def cards(run: StoredRun) -> list[Card]:
    """What is kept, and what it costs."""
    r = run.results
    out = [
        Card(f"{r['total']['ratio']:.1%}", "of the tokens are kept",
             f"{r['total']['tokens']:,} in all key heads"),
        Card(kept_per_head(r["budgets"]), "tokens per key head",
             f"of a prefix of {r['prefix']:,}"),
        Card(shown(r["predicted"]["effect"]), f"predicted {r['predicted']['unit']}",
             _interval(r["predicted"]["interval"])),
    ]  # fmt: skip
    if r["check"] is not None:
        name, _, title = next(m for m in MEASURES if m[0] in r["check"]["planned"])
        value, ends = _value(name, r["check"]["planned"][name])
        out.append(Card(shown(value), f"measured {title}", _interval(ends)))
        out += [_verdict(run), *_best(r["check"])]
    return out


def _verdict(run: StoredRun) -> Card:
    """The plan against uniform budgets."""
    ratio = run.found.check.ratios["uniform"]
    if run.found.verdict == "undecided":
        return Card("undecided", "whether the plan or uniform budgets are closer to dense",
                    f"ratio {ratio.mean:.2g}, {_interval(ratio.interval, 's2')}")  # fmt: skip
    words = "closer to dense than uniform budgets"
    if run.found.verdict == "worse":
        ratio, words = inverse(ratio), "farther from dense than uniform budgets"
    return Card(f"{ratio.mean:.2g}×", words, _interval(ratio.interval, "s2"))


def _best(check: dict[str, Any]) -> list[Card]:
    """What is closest to dense."""
    best = [VARIANTS[name][0] for name in check["best"]]
    apart = "beyond the paired intervals" if len(best) == 1 else "cannot be told apart"
    return [Card(", ".join(best), "closest to dense of all that was measured", apart)]


def parts(run: StoredRun) -> list[Part]:
    """Budgets, check, predicted against realised, table."""
    table = _table(run)
    out: list[Part] = [_explorer(run, table)]
    if run.results["check"] is not None:
        out += [_cost(run), _layers(run), _calibration(run)]
    else:
        out.append(_predicted(run))
    return [*out, table]


def command_words(run: StoredRun) -> list[str]:
    """``plan MODEL ...``."""
    c = run.results["configuration"]
    return [
        "plan", c["model"]["name"],
        *options(
            text=c["text"]["source"], check=None if c["check"] is None else c["check"]["source"],
            budget=c["budget"], tolerance=c["tolerance"], prefix=c["prefix"],
            query_count=c["query_count"] or None, passages=c["passages"],
            check_passages=c["check_passages"] or None, sampled=c["sampled"], seed=c["seed"],
            **model_options(c), out=run.name,
        ),
    ]  # fmt: skip


def _table(run: StoredRun) -> Table:
    frame = run.found.table().rename(columns={"key_head": "head"})
    check = run.results["check"]
    columns = [
        Column("layer", "layer", "n0"),
        Column("head", "key head", "n0"),
        Column("tokens", "tokens kept", "n0"),
        Column("ratio", "of the prefix", "p1"),
        Column("power", "power of scores", "d2", help="tokens are drawn with score^power"),
        Column("predicted_error", "predicted error", "s3",
               help="relative output error of the worst query head of the group"),
    ]  # fmt: skip
    if check is not None:
        layers, key_heads = run.found.token_budgets.tokens.shape
        realised = np.asarray(check["heads"]["realised"]).reshape(layers, key_heads, -1)
        frame["realised_error"] = realised.max(axis=-1).ravel()
        columns.append(
            Column("realised_error", "realised error", "s3", help="the same on unseen text")
        )
    return Table(
        title="All key heads",
        name=f"{run.name}-budgets",
        columns=columns,
        data=data_of(frame),
        caption="The CSV file is the plan as a table; plan.json in the run's directory is the plan "
        "itself.",
        sort=("tokens", True),
    )


def _explorer(run: StoredRun, table: Table) -> Explorer:
    r = run.results
    layers, key_heads = run.found.token_budgets.tokens.shape
    predicted = np.asarray(r["predicted"]["head_error"]).reshape(layers * key_heads, -1)
    group = predicted.shape[1]
    series = [
        CurveSeries("predicted", "predicted", mode="points", colour="orange", symbol="diamond")
    ]
    curves: list[dict[str, Any]] = [{"predicted": row.tolist()} for row in predicted]
    quantities = [
        Quantity("tokens", "tokens kept", log=True),
        Quantity("ratio", "share of the prefix", "cividis", limits=(0.0, 1.0)),
        Quantity("predicted_error", "predicted error", "cividis", log=True),
        Quantity("power", "power of scores"),
    ]
    facts = ["tokens", "ratio", "power", "predicted_error"]
    if r["check"] is not None:
        realised = np.asarray(r["check"]["heads"]["realised"]).reshape(layers * key_heads, -1)
        for curve, row in zip(curves, realised, strict=True):
            curve["realised"] = row.tolist()
        series.append(CurveSeries("realised on unseen text", "realised", mode="points"))
        quantities.insert(3, Quantity("realised_error", "realised error", "cividis", log=True))
        facts.append("realised_error")
    names = [str(i) for i in range(group)]
    worst = predicted.max(axis=1)
    return Explorer(
        title="Budgets",
        table=table,
        quantities=quantities,
        facts=facts,
        views=[
            CurveView("errors", Axis("query head of the group", categories=names),
                      Axis("relative output error"), series, list(range(group)))
        ],
        curves=curves,
        importance=[int(i) for i in np.argsort(-worst)],
        unit="key head",
        start=int(np.argmax(worst)),
        caption=f"Tokens that each key head keeps of a prefix of {r['prefix']:,}: "
        f"{r['keeping']['sinks']} first and {r['keeping']['recent']} recent ones for certain, the "
        "others drawn by their scores.",
        curve_caption="Relative errors of the outputs of the query heads that share this key head.",
    )  # fmt: skip


def _cost(run: StoredRun) -> Chart:
    check = run.results["check"]
    names = [name for name in VARIANTS if name in check]
    views = []
    for key, words, title in MEASURES:
        if key not in check["planned"]:
            continue
        found = [_value(key, check[name][key]) for name in names]
        low, high = ends_of(ends for _, ends in found)
        views.append(
            Bars(words, Axis(title), [VARIANTS[name][0] for name in names],
                 [Series(title, list(range(len(names))), [v for v, _ in found], low, high)],
                 horizontal=True)
        )  # fmt: skip
    return Chart(
        "What it costs on unseen text",
        views,
        caption=f"All with the same number of tokens, on {check['passages']} passages that had no "
        "part in the plan; bars are 95% intervals over passages.",
        selector="Measure",
        height=260,
    )


def _value(name: str, found: dict[str, Any]) -> tuple[float, Any]:
    """Value and interval; of the cosine 1 minus it."""
    ends = found.get("interval")
    if name != "cosine":
        return found["mean"], ends
    return 1 - found["mean"], None if ends is None else [1 - ends[1], 1 - ends[0]]


def _layers(run: StoredRun) -> Chart:
    check = run.results["check"]
    series = []
    for name, (words, colour) in VARIANTS.items():
        if name in check:
            error = check[name]["layer_error"]
            low, high = ends_of(error["interval"] or [None] * len(error["mean"]))
            series.append(
                Series(words, list(range(len(error["mean"]))), error["mean"], low, high,
                       mode="both", colour=colour)
            )  # fmt: skip
    return Chart(
        "Error of attention outputs by layer",
        [Plot("errors", Axis("layer"), Axis("relative error", True), series, apart=True)],
        caption="Against dense attention on unseen text, with 95% intervals over passages.",
    )


def _calibration(run: StoredRun) -> Chart:
    heads = run.results["check"]["heads"]
    predicted, realised = (np.asarray(heads[k]) for k in ("predicted", "realised"))
    layers, count = predicted.shape
    key_heads = run.found.token_budgets.tokens.shape[1]
    places = [(i, j) for i in range(layers) for j in range(count)
              if predicted[i, j] > 0 and realised[i, j] > 0]  # fmt: skip
    share = "" if heads["within_factor"] is None else (
        f" {heads['within_factor']:.0%} of the heads are within a factor of {heads['factor']:g}."
    )  # fmt: skip
    return Chart(
        "Predicted against realised",
        [
            Plot(
                "heads", Axis("predicted relative error", True),
                Axis("realised on unseen text", True),
                [Series("query heads", [float(predicted[p]) for p in places],
                        [float(realised[p]) for p in places],
                        text=[f"layer {i}, head {j}" for i, j in places],
                        rows=[i * key_heads + j * key_heads // count for i, j in places])],
                [Line("diagonal")],
            )
        ],
        caption=f"One point per query head; on the dotted line both agree.{share} Click a point to "
        "see its key head.",
        height=430,
    )  # fmt: skip


def _predicted(run: StoredRun) -> Chart:
    errors = np.sort(np.asarray(run.results["predicted"]["head_error"]).ravel())
    share = (np.arange(len(errors)) + 1) / len(errors)
    return Chart(
        "Predicted errors",
        [
            Plot("share", Axis("relative output error", log=bool(np.all(errors > 0))),
                 Axis("share of query heads", limits=(0.0, 1.02)),
                 [Series("query heads", errors.tolist(), share.tolist(), mode="line")],
                 [] if run.configuration["tolerance"] is None
                 else [Line("v", run.configuration["tolerance"], "tolerance")])
        ],
        caption="Share of the query heads with at most this predicted error. The plan was not "
        "checked: give a text with --check.",
    )  # fmt: skip


def _interval(interval: Any, how: str = "s3") -> str:
    if interval is None or interval[0] is None:
        return "no interval"
    return f"95% interval {between(interval[0], None, how)} to {shown(interval[1], how)}"
