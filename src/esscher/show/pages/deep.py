"""The page of a deep run: errors layer by layer, and what becomes of the end of the stack."""

from __future__ import annotations

from typing import Any

from esscher.show.content import Axis, Card, Chart, Column, Line, Part, Plot, Series, Table
from esscher.show.frames import data_of, ends_of
from esscher.show.numbers import between, shown
from esscher.show.provenance import model_options, options
from esscher.show.stored import StoredRun
from esscher.studies.deep import Deep
from esscher.studies.deep.records import Curve, Perplexity

NAME = "Error through depth"
NAMES = {"map": "map", "mean": "mean", "cov": "covariance"}
PAINT = {
    "map": "blue", "mean": "orange", "cov": "green", "independent": "blue", "shared": "orange",
    "low": "sky", "middle": "gold", "high": "purple", "dense": "grey",
}  # fmt: skip
#: Quantities of a model's end: name, title, logarithmic, value that falls to 0.
END = {
    "kl": ("KL divergence", "KL to the dense next-token law (nats)", True),
    "cosine": ("cosine", "1 - cosine to the dense embedding", True),
    "top1": ("top token", "share of tokens with the same most likely token", False),
    "perplexity": ("perplexity", "perplexity / dense perplexity", False),
}


def subject(run: StoredRun) -> str:
    """The stack or the model."""
    c = run.configuration
    if run.found.is_gaussian:
        return (
            f"Gaussian stack, {c['depth']} layers, d = {c['dim']}, H = {c['horizon']:g}, residual "
            f"{c['residual']:g}, {c['replicates']} replicates"
        )
    return (
        f"{c['model']['name']} on {c['text']['source']}, {c['passages']} passages of "
        f"{c['context']:,} tokens, {c['draws']} draws"
    )


def answer(run: StoredRun) -> str:
    """The headline."""
    return str(run.found.headline)


def cards(run: StoredRun) -> list[Card]:
    """Errors of the first and last layer, growth, and the end."""
    found: Deep = run.found
    layers, curve = found.layers, next(iter(found.layers[0].error))
    j = len(found.sizes) - 1 if found.is_gaussian else len(found.sizes) // 2
    n = f"n = {found.sizes[j]:,}"
    out = []
    for name, layer in (("first", layers[0]), ("last", layers[-1])):
        error = layer.error[curve]
        ends = error.interval[j]
        out.append(Card(shown(error.mean[j], "p2"), f"error after the {name} layer",
                        f"{n}; {_ends(ends, 'p2')}"))  # fmt: skip
    growth = run.found.growth[curve][j]
    if growth is not None:
        out.append(Card(shown(growth.factor, "d3"), "growth factor per layer",
                        f"{n}; {_ends(growth.interval, 'd3')}"))  # fmt: skip
    fit = layers[-1].fit[curve]
    if fit is not None:
        out.append(Card(shown(fit.exponent, "d3"), "exponent after the last layer",
                        _ends(fit.interval, "d3")))  # fmt: skip
    return out


def parts(run: StoredRun) -> list[Part]:
    """Errors, exponents, growth; then the limit, or the end of the model."""
    found: Deep = run.found
    out: list[Part] = [_errors(found), _exponents(found), _growth(found)]
    if found.is_gaussian:
        out.append(_limit(found))
    else:
        out += [_end(found), _end_table(found, run.name)]
        if run.found.terciles is not None:
            out.append(_terciles(run))
    return [*out, _layer_table(found, run.name)]


def command_words(run: StoredRun) -> list[str]:
    """``deep MODEL ...`` or ``deep-stack ...``."""
    c = run.configuration
    if run.found.is_gaussian:
        return [
            "deep-stack",
            *options(
                depth=c["depth"], dim=c["dim"], horizon=c["horizon"], residual=c["residual"],
                output_scale=c["output_scale"], tau=c["tau"], sizes=c["sizes"],
                replicates=c["replicates"], seed=c["seed"], out=run.name,
            ),
        ]  # fmt: skip
    return [
        "deep", c["model"]["name"],
        *options(
            text=c["text"]["source"], sizes=c["sizes"], context=c["context"],
            passages=c["passages"], draws=c["draws"], keys=c["keys"], terciles=c["terciles"],
            seed=c["seed"],
            **model_options(c), out=run.name,
        ),
    ]  # fmt: skip


def _errors(found: Deep) -> Chart:
    at = [layer.layer for layer in found.layers]
    views = []
    for curve in found.layers[0].error:
        series = []
        for j, n in enumerate(found.sizes):
            low, high = ends_of(layer.error[curve].interval[j] for layer in found.layers)
            errors = [layer.error[curve].mean[j] for layer in found.layers]
            shade = _share(j, len(found.sizes))
            series.append(Series(f"n = {n:,}", at, errors, low, high, mode="both", shade=shade))
        views.append(Plot(_name(curve), Axis("layer"), Axis("relative error", log=True), series))
    what = (
        "of a token against its limit"
        if found.is_gaussian
        else "of the tokens, keys drawn at random"
    )
    return Chart(
        "Error by layer",
        views,
        caption=f"Relative error {what}, one line per n. Bars are 95% intervals.",
        selector="Error of the" if found.is_gaussian else "Samples",
        height=420,
    )


def _exponents(found: Deep) -> Chart:
    series = []
    for curve in found.layers[0].fit:
        by_layer = [(layer.layer, layer.fit[curve]) for layer in found.layers]
        known = [(at, fit) for at, fit in by_layer if fit is not None]
        fits = [fit for _, fit in known]
        low, high = ends_of(fit.interval for fit in fits)
        series.append(
            Series(_name(curve), [at for at, _ in known],
                   [fit.exponent for fit in fits], low, high, mode="points",
                   colour=PAINT.get(curve, "blue"), hollow=[not fit.trusted for fit in fits])
        )  # fmt: skip
    return Chart(
        "Exponents by layer",
        [
            Plot(
                "exponents",
                Axis("layer"),
                Axis("exponent β"),
                series,
                [Line("h", 0.5, "1/2")],
                apart=True,
            )
        ],
        caption="β of error ~ C n^-β after each layer, with 95% intervals; hollow: not to be "
        "trusted.",
    )


def _growth(found: Deep) -> Chart:
    views = []
    for j in sorted({len(found.sizes) - 1, len(found.sizes) // 2, 0}, reverse=True):
        series = []
        for curve in found.layers[0].growth:
            rows = [
                (layer.layer, step)
                for layer in found.layers
                if (step := layer.growth[curve][j]) is not None
            ]
            low, high = ends_of(step.interval for _, step in rows)
            series.append(
                Series(_name(curve), [at for at, _ in rows], [s.factor for _, s in rows],
                       low, high, mode="points", colour=PAINT.get(curve, "blue"))
            )  # fmt: skip
        views.append(
            Plot(f"n = {found.sizes[j]:,}", Axis("layer"), Axis("growth factor", True), series,
                 [Line("h", 1.0, "no growth")], apart=True)
        )  # fmt: skip
    return Chart(
        "Growth from layer to layer",
        views,
        caption="Error over that of the layer before, with 95% intervals.",
        selector="At",
    )


def _limit(found: Deep) -> Chart:
    limits = [limit for limit in found.limit if limit.standard_error is not None]
    at, scores = [], []
    for limit in limits:
        at += [limit.layer] * len(limit.deviations)
        scores += limit.deviations
    layers = [limit.layer for limit in limits]
    bound = [limit.bound for limit in limits]
    return Chart(
        "Measured limit against the exact recursion",
        [
            Plot("deviations", Axis("layer"), Axis("deviation (standard errors)"), [
                Series("entries of mean and covariance", at, scores),
                Series("95% bound of the largest", layers, bound, mode="line", colour="orange"),
                Series("lower bound", layers, [None if b is None else -b for b in bound],
                       mode="line", colour="orange", joined=True),
            ])
        ],
        caption="Every entry of the limit of every layer, extrapolated from the measured sizes, "
        "minus what the recursion says. If both agree, all points of a layer lie between the lines "
        "in 95% of the cases.",
    )  # fmt: skip


def _end(found: Deep) -> Chart:
    sizes, views = found.sizes, []
    for name, (words, title, log) in END.items():
        curves = found.end.quantities.get(name)
        if not curves:
            continue
        series = []
        for variant, curve in curves.items():
            if variant == "dense":
                continue
            value, ends = _damage(name, curve)
            low, high = ends_of(ends)
            series.append(
                Series(_variant(found, variant), sizes, value, low, high, mode="both",
                       colour=PAINT.get(variant, "blue"),
                       dash="dash" if variant in ("low", "middle", "high") else "solid")
            )  # fmt: skip
        views.append(
            Plot(words, Axis("keys drawn n", True, sizes), Axis(title, log), series, apart=True)
        )
    return Chart(
        "The end of the model",
        views,
        caption="What the model says, with n keys drawn in every layer, against dense attention; "
        "dashed: only one third of the heads drawn, by their horizon. Bars are 95% intervals over "
        "passages.",
        selector="Quantity",
        height=420,
    )


def _damage(name: str, curve: Curve) -> tuple[list[Any], list[Any]]:
    """Values with intervals; of perplexity the ratio to the dense one, of the cosine 1 minus it."""
    if isinstance(curve, Perplexity):
        return list(curve.ratio or ()), list(curve.ratio_interval or ())
    if name == "cosine":
        ends = [None if end is None else [1 - end[1], 1 - end[0]] for end in curve.interval]
        return [1 - value for value in curve.mean], ends
    return list(curve.mean), list(curve.interval)


def _variant(found: Deep, variant: str) -> str:
    terciles = found.terciles
    if variant not in ("low", "middle", "high") or terciles is None:
        return f"{variant} samples"
    about = terciles.heads[variant]
    low, high = shown(about.horizon_min, "d1"), shown(about.horizon_max, "d1")
    return f"{variant} third (H {low} to {high})"


def _end_table(found: Deep, name: str) -> Table:
    frame = found.end_table()
    return Table(
        title="The end of the model in numbers",
        name=f"{name}-end",
        columns=[
            Column("quantity", "quantity"),
            Column("variant", "drawn"),
            Column("n", "keys n", "n0", missing="all"),
            Column("mean", "value", "s3", "low", "high"),
        ],
        data=data_of(frame),
        caption="With 95% intervals over passages.",
    )


def _terciles(run: StoredRun) -> Table:
    found: Deep = run.found
    terciles, sizes = found.terciles, found.sizes
    assert terciles is not None  # or there is no table
    rows = [(name, about) for name, about in terciles.heads.items() if name in terciles.error]
    middle = len(sizes) // 2
    errors = [terciles.error[name] for name, _ in rows]
    low, high = ends_of(error.interval[middle] for error in errors)
    return Table(
        title="Heads by their horizon",
        name=f"{run.name}-terciles",
        columns=[
            Column("third", "third"),
            Column("heads", "heads", "n0"),
            Column("horizon", "median horizon H", "d2", "horizon_low", "horizon_high",
                   help="with the smallest and the largest"),
            Column("layer", "mean layer", "d1"),
            Column("error", f"error at n = {sizes[middle]:,}", "p1", "error_low", "error_high"),
        ],
        data={
            "third": [name for name, _ in rows],
            "heads": [about.heads for _, about in rows],
            "horizon": [about.horizon_median for _, about in rows],
            "horizon_low": [about.horizon_min for _, about in rows],
            "horizon_high": [about.horizon_max for _, about in rows],
            "layer": [about.mean_layer for _, about in rows],
            "error": [error.mean[middle] for error in errors],
            "error_low": low,
            "error_high": high,
        },
        caption=f"One third of the heads of the {terciles.scope} is sampled at a time, the "
        "others are dense. Errors are of the last layer, with 95% intervals over passages.",
    )  # fmt: skip


def _layer_table(found: Deep, name: str) -> Table:
    frame = found.table()
    frame["error_low"] = frame["error"] - 1.96 * frame["standard_error"].astype(float)
    frame["error_high"] = frame["error"] + 1.96 * frame["standard_error"].astype(float)
    frame["curve"] = [_name(curve) for curve in frame["curve"]]
    return Table(
        title="All layers",
        name=f"{name}-layers",
        columns=[
            Column("layer", "layer", "n0"),
            Column("curve", "error of the" if found.is_gaussian else "samples"),
            Column("n", "n", "n0"),
            Column("error", "relative error", "p2", "error_low", "error_high"),
            Column("growth", "growth", "d3", "growth_low", "growth_high"),
            Column("exponent", "exponent", "d3", "exponent_low", "exponent_high"),
            Column("trusted", "trusted"),
        ],
        data=data_of(frame),
        caption="95% intervals; those of errors are 1.96 standard errors.",
    )


def _name(curve: str) -> str:
    return NAMES.get(curve, curve)


def _share(j: int, count: int) -> float:
    return j / (count - 1) if count > 1 else 0.0


def _ends(interval: Any, how: str) -> str:
    if interval is None or interval[0] is None:
        return "no interval"
    return f"95% interval {between(interval[0], None, how)} to {shown(interval[1], how)}"
