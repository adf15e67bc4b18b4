"""Claims that the paper leaves open, judged by the other studies: sparse, depth, tails, ..."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import pandas as pd
from altair.typing import ChartType

from esscher.math.tails.verdict import kind_of
from esscher.show.chart import Axis, Series, bars, figure, guides, lines, panel, points
from esscher.show.theme import limits
from esscher.studies.paper.ledger import (
    Check,
    Claim,
    Entry,
    Measurement,
    Rows,
    Scale,
    Setting,
    Unit,
    judged,
    records,
    simultaneous,
    verdict_of,
    with_interval,
)

#: Exponents that differ by no more than this are called the same.
MARGIN = 0.1
#: Numbers of tokens whose ratio is within this factor of 1 are called the same.
FACTOR = 1.25


# -- sparse

PATTERNS = ("random", "topk", "window", "bigbird")


def sparse_units(scale: Scale) -> list[Unit]:
    """Return one unit: a few layers of the decoder."""
    context, passages, layers, queries = {
        "quick": (512, 6, [2, 12, 22], 24),
        "standard": (1_024, 12, [0, 6, 12, 18, 24, 29], 48),
        "paper": (3_000, 24, list(range(30)), 64),
    }[scale]
    return [{"context": context, "passages": passages, "layers": layers, "queries": queries}]


def measure_sparse(unit: Unit, setting: Setting) -> Rows:
    """Exponents of sparse patterns beside that of a random choice of as many keys."""
    from esscher.studies.sparse import sparse

    loaded = setting.loaded(setting.decoder)
    result = sparse(
        loaded,
        setting.text,
        context=unit["context"],
        passages=unit["passages"],
        layers=_there(unit["layers"], 30, loaded.record.layers),
        patterns=PATTERNS[1:],
        query_count=unit["queries"],
        seed=setting.seed,
        progress=False,
    )
    table = result.table().rename(columns={"exponent_low": "low", "exponent_high": "high"})
    names = [
        "pattern",
        "exponent",
        "low",
        "high",
        "last_error",
        "difference",
        "difference_low",
        "difference_high",
        "ratio",
        "ratio_low",
        "ratio_high",
    ]
    return records(table[names])


def _there(layers: Sequence[int], of: int, count: int) -> tuple[int, ...]:
    """Layers in the same places of a model that has ``count`` of them instead of ``of``."""
    return tuple(sorted({layer * count // of for layer in layers}))


def judge_sparse(tables: Mapping[str, pd.DataFrame], setting: Setting) -> Entry:
    """Judge by whether patterns have the exponent of random keys."""
    maps = tables["sparse"].set_index("pattern")
    others = maps.drop(index="random")
    differ = (others["difference_low"] > 0) | (others["difference_high"] < 0)
    same = (others["difference_low"] > -MARGIN) & (others["difference_high"] < MARGIN)
    words = {
        row["pattern"]: with_interval(
            row["difference"], row["difference_low"], row["difference_high"]
        )
        for row in records(others.reset_index())
    }
    base = records(maps.loc[["random"]])[0]
    checks = [
        Check(
            says="sparse patterns converge to dense attention at the rate of random keys",
            verdict=verdict_of(bool(same.all()), bool(differ.any())),
            measured="difference of the exponent from random keys: "
            + ", ".join(f"{name} {text}" for name, text in words.items()),
            rule="contradicted if the interval of one difference excludes 0, holds if all lie "
            f"within {MARGIN}",
        ),
        Check(
            says="random keys give 1/sqrt(n)",
            verdict=verdict_of(
                bool(base["low"] > 0.5 - MARGIN and base["high"] < 0.5 + MARGIN),
                bool(base["high"] < 0.5 or base["low"] > 0.5),
            ),
            measured="exponent " + with_interval(base["exponent"], base["low"], base["high"]),
            rule=f"holds if the interval lies within {MARGIN} of 1/2, contradicted if it "
            "excludes it",
            counts=False,
        ),
    ]
    return judged(
        "sparse",
        "Patterns do not share one rate: beside random keys (exponent "
        f"{base['exponent']:.2f}) the exponent differs by "
        + ", ".join(f"{text} for {name}" for name, text in words.items())
        + "."
        if differ.any()
        else "The exponents of sparse patterns are not told apart from that of random keys: "
        + ", ".join(f"{name} {text}" for name, text in words.items())
        + ".",
        checks,
        "A few layers of one decoder at one length; intervals are over passages of one text.",
        "More passages.",
        {"patterns": maps.reset_index()},
    )


def draw_sparse(entry: Entry) -> ChartType:
    """Draw the exponent of every pattern, and its error at the largest number of keys."""
    rows = records(entry.table("patterns"))
    names = [row["pattern"] for row in rows]
    y = Axis("pattern", names=names)
    ends = limits([0.0, 0.6, *(row[key] for row in rows for key in ("low", "high"))])
    x = Axis("exponent", "exponent of the map's error", limits=ends)
    half: dict[str, object] = {"at": 0.5, "name": "1/2"}
    left = panel(guides([half], x, y, upright=True), points(rows, x, y, across=True))
    error = Axis("last_error", "relative error at the largest budget")
    errors = [{"pattern": row["pattern"], "last_error": row["last_error"]} for row in rows]
    right = panel(bars(errors, error, y, across=True))
    return figure(
        [left, right],
        "Sparse patterns against dense attention, heads of a decoder",
        note="bars: 95% intervals over passages",
    )


# -- depth


def depth_units(scale: Scale) -> list[Unit]:
    """Return one unit: passages through the whole decoder."""
    context, passages, draws = {
        "quick": (192, 8, 1),
        "standard": (384, 12, 1),
        "paper": (2_048, 32, 4),
    }[scale]
    return [{"context": context, "passages": passages, "draws": draws}]


def measure_depth(unit: Unit, setting: Setting) -> Rows:
    """Errors by layer of a decoder whose layers attend to n keys only."""
    from esscher.studies.deep import deep

    result = deep(
        setting.loaded(setting.decoder),
        setting.text,
        context=unit["context"],
        passages=unit["passages"],
        draws=unit["draws"],
        keys="independent",
        terciles="none",
        seed=setting.seed,
        progress=False,
    )
    table = result.table("errors").rename(columns={"size": "n"})
    names = [
        "layer",
        "n",
        "error",
        "error_low",
        "error_high",
        "growth",
        "exponent",
        "exponent_low",
        "exponent_high",
    ]
    return records(table[names])


def judge_depth(tables: Mapping[str, pd.DataFrame], setting: Setting) -> Entry:
    """Judge by the exponent behind the last layer, and by how errors grow."""
    table = tables["depth"]
    layers = table.groupby("layer").first().reset_index()
    last, count = layers.iloc[-1], len(layers)
    low, high = last["exponent_low"], last["exponent_high"]
    slower = int((layers["exponent_high"] < 0.5).sum())
    most = table[table["n"] == table["n"].max()]
    factor = (most["error"].iloc[-1] / most["error"].iloc[0]) ** (1 / max(count - 1, 1))
    checks = [
        Check(
            says="the rate 1/sqrt(n) of one layer survives to the end of the model",
            verdict=verdict_of(
                bool(low > 0.5 - MARGIN and high < 0.5 + MARGIN), bool(high < 0.5 or low > 0.5)
            ),
            measured="exponent behind the last layer " + with_interval(last["exponent"], low, high),
            rule=f"holds if the interval lies within {MARGIN} of 1/2, contradicted if it "
            "excludes it",
        ),
    ]
    return judged(
        "depth",
        f"Behind the last of {count} layers, each attending to n random keys, the error falls "
        f"with exponent {with_interval(last['exponent'], low, high)}; it lies below 1/2 in "
        f"{slower} layers, and the error grows by {factor:.2f} a layer.",
        checks,
        "One decoder; keys are drawn without replacement from short passages, with a correction "
        "for the finite population.",
        "More passages.",
        {"layers": layers, "errors": table},
    )


def draw_depth(entry: Entry) -> ChartType:
    """Draw errors by layer and size, and exponents by layer."""
    errors, layers = entry.table("errors"), entry.table("layers")
    sizes = [f"{n:g}" for n in sorted(errors["n"].unique())]
    rows = [{"size": f"{row['n']:g}", **row} for row in records(errors)]
    layer = Axis("layer", "layer", whole=True)
    error = Axis(
        "error", "relative error of the tokens", log=True, limits=limits(errors["error"], log=True)
    )
    left = panel(lines(rows, layer, error, Series("size", sizes, "keys n", ordered=True)))
    fits = [
        {
            "layer": row["layer"],
            "exponent": row["exponent"],
            "low": row["exponent_low"],
            "high": row["exponent_high"],
        }
        for row in records(layers)
    ]
    y = Axis("exponent", "exponent", limits=limits([0.0, 1.0, *layers["exponent"]]))
    half: dict[str, object] = {"at": 0.5, "name": "1/2"}
    right = panel(guides([half], layer, y), points(fits, layer, y))
    return figure(
        [left, right],
        "Errors of sampled attention through the layers of a decoder",
        note="bars: 95% intervals over passages",
        apart=True,
    )


# -- tails


def tails_units(scale: Scale) -> list[Unit]:
    """Return one unit: verdicts need heads of all layers, over which halves of the text agree."""
    tokens, layers = {
        "quick": (4_096, [0, 3]),
        "standard": (16_384, list(range(6))),
        "paper": (65_536, list(range(6))),
    }[scale]
    return [{"tokens": tokens, "layers": layers}]


def measure_tails(unit: Unit, setting: Setting) -> Rows:
    """The worst direction of every head's keys: its sub-Gaussian parameter and type of tail."""
    from esscher.studies.tails import tails

    loaded = setting.loaded(setting.encoder)
    layers = _there(unit["layers"], 6, loaded.record.layers)
    result = tails(
        loaded,
        setting.text,
        tokens=unit["tokens"],
        context=128,
        layers=layers,
        seed=setting.seed,
        progress=False,
    )
    table = result.table()
    table = table.assign(verdict=table["verdict"].map(kind_of))
    return records(table[["layer", "head", "proxy", "proxy_low", "proxy_high", "verdict"]])


def judge_tails(tables: Mapping[str, pd.DataFrame], setting: Setting) -> Entry:
    """Judge by what both halves of the text say about every head."""
    table = tables["tails"]
    counts = table["verdict"].value_counts()
    light, heavy = int(counts.get("sub-Gaussian", 0)), int(counts.get("heavier", 0))
    total = len(table)
    checks = [
        Check(
            says="keys are sub-Gaussian in every direction",
            verdict=verdict_of(light == total, heavy > 0.05 * total + 1),
            measured=f"{light} of {total} heads are, {heavy} are heavier, "
            f"{total - light - heavy} undecided",
            rule="a head counts if both halves of the text say so (found on one half, judged on "
            "the other) and the halves agree beyond chance over all heads; contradicted if more "
            "heads are heavier than one and one in twenty",
        ),
    ]
    return judged(
        "tails",
        f"In their worst direction the keys of {light} of {total} heads are sub-Gaussian, those of "
        f"{heavy} are heavier, {total - light - heavy} are undecided. The median sub-Gaussian "
        f"parameter is {table['proxy'].median():.2f} times the variance (1: Gaussian).",
        checks,
        "A finite sample shows tails only as far as it reaches.",
        "More tokens.",
        {"heads": table},
    )


def draw_tails(entry: Entry) -> ChartType:
    """Draw the sub-Gaussian parameter of every head, in order."""
    table = entry.table("heads").sort_values("proxy").reset_index(drop=True)
    rows = [
        {
            "rank": i + 1,
            "proxy": row["proxy"],
            "low": row["proxy_low"],
            "high": row["proxy_high"],
            "verdict": row["verdict"],
            "name": f"{row['layer']}.{row['head']}",
        }
        for i, row in enumerate(records(table))
    ]
    x = Axis("rank", "heads in order", whole=True)
    y = Axis(
        "proxy",
        "sub-Gaussian parameter / variance",
        log=True,
        limits=limits([1.0, *table["proxy"], *table["proxy_high"]], log=True),
    )
    one: dict[str, object] = {"at": 1.0, "name": "Gaussian"}
    series = Series("verdict", tuple(table["verdict"].unique()))
    return figure(
        [panel(guides([one], x, y), points(rows, x, y, series))],
        "Keys in their worst direction",
        note="bars: 95% intervals",
        least=300,
    )


# -- together


def judge_together(tables: Mapping[str, pd.DataFrame], setting: Setting) -> Entry:
    """Judge by whether squared errors of a layer's heads add up."""
    heads = tables["heads"]
    names = ["effective_heads", "amplification", "amplification_low", "amplification_high"]
    table = heads.groupby("layer")[names].first().reset_index()
    table["heads"] = heads.groupby("layer").size().to_numpy()
    low, high = table["amplification_low"], table["amplification_high"]
    # intervals widened so that they hold the numbers of all layers at once
    middle, half = table["amplification"], simultaneous(len(table)) / 1.96 * (high - low) / 2
    apart = (middle - half > 1) | (middle + half < 1)
    same = (middle - half > 0.9) & (middle + half < 1.1)
    words = ", ".join(
        f"layer {row['layer']}: "
        + with_interval(row["amplification"], row["amplification_low"], row["amplification_high"])
        for row in records(table)
    )
    checks = [
        Check(
            says="heads of one layer err independently: their squared errors add up",
            verdict=verdict_of(bool(same.all()), bool(apart.any())),
            measured=f"squared error of the sum over the sum of squared errors, {words}",
            rule="contradicted if an interval excludes 1, holds if all lie within 0.9 to 1.1",
        ),
    ]
    share = table["effective_heads"] / table["heads"]
    return judged(
        "together",
        "Heads that see the same tokens do not err independently: the squared error of a layer "
        f"is {middle.min():.2f} to {middle.max():.2f} of the sum over its heads; "
        f"{share.min():.0%} to {share.max():.0%} of the heads are effective."
        if apart.any()
        else f"The squared error of a layer is {middle.min():.2f} to {middle.max():.2f} of the "
        "sum over its heads.",
        checks,
        "Mean outputs of pooled tokens at one size, one encoder.",
        "More replicates.",
        {"layers": table},
    )


def draw_together(entry: Entry) -> ChartType:
    """Draw amplification by layer."""
    rows = [
        {
            "layer": row["layer"],
            "amplification": row["amplification"],
            "low": row["amplification_low"],
            "high": row["amplification_high"],
        }
        for row in records(entry.table("layers"))
    ]
    x = Axis("layer", "layer", whole=True)
    at = [row[key] for row in rows for key in ("low", "high")]
    y = Axis("amplification", "squared error / sum over heads", limits=limits([0.8, 1.2, *at]))
    one: dict[str, object] = {"at": 1.0, "name": "independent heads"}
    return figure(
        [panel(guides([one], x, y), points(rows, x, y))],
        "Errors of the heads of one layer, together",
        note="bars: 95% intervals",
        least=300,
    )


# -- domains


def domains_units(scale: Scale) -> list[Unit]:
    """Return one unit: the text against program text."""
    layers, tokens, blocks = {
        "quick": ([1, 4], 500, 6),
        "standard": (list(range(6)), 2_000, 8),
        "paper": (list(range(6)), 4_000, 12),
    }[scale]
    return [{"layers": layers, "tokens": tokens, "blocks": blocks}]


def measure_domains(unit: Unit, setting: Setting) -> Rows:
    """Tokens that each head needs for 10% error, on two corpora."""
    from esscher.studies.domains import domains

    other = "demo:code" if setting.text != "demo:code" else "demo:docs"
    loaded = setting.loaded(setting.encoder)
    layers = _there(unit["layers"], 6, loaded.record.layers)
    result = domains(
        loaded,
        {"text": setting.text, "other": other},
        blocks=unit["blocks"],
        block_tokens=unit["tokens"],
        layers=layers,
        seed=setting.seed,
        progress=False,
    )
    table = result.table("tests").rename(columns={"effect_low": "low", "effect_high": "high"})
    tokens = table[table["statistic"] == "tokens"]
    columns = ["layer", "head", "p", "adjusted_p", "share", "verdict", "low", "high"]
    return records(tokens[columns])


def judge_domains(tables: Mapping[str, pd.DataFrame], setting: Setting) -> Entry:
    """Judge by permutations of the blocks, at a false discovery rate of 5%."""
    table = tables["domains"].copy()
    differs = table["verdict"] == "differs"
    within = (table["low"] > 1 / FACTOR) & (table["high"] < FACTOR)
    table.loc[within & ~differs, "verdict"] = "the same"
    differ, same, total = int(differs.sum()), int((within & ~differs).sum()), len(table)
    checks = [
        Check(
            says="a head needs as many tokens on another kind of text",
            verdict=verdict_of(same == total, differ > 0),
            measured=f"{differ} of {total} heads differ, {same} are the same, "
            f"{total - differ - same} undecided",
            rule="contradicted if a head differs (blocks exchanged between texts, p-values "
            "adjusted over the heads, false discovery rate 5%); holds if in every head the 95% "
            f"interval of the ratio lies within a factor of {FACTOR}",
        ),
    ]
    return judged(
        "domains",
        f"Between the text and another kind of text {differ} of {total} heads need another number "
        f"of tokens for 10% error; the corpus explains {table['share'].median():.0%} of a typical "
        "head's variance between blocks.",
        checks,
        "Two corpora, and blocks of one corpus are not quite independent.",
        "More blocks.",
        {"heads": table},
    )


def draw_domains(entry: Entry) -> ChartType:
    """Draw the share of variance that the corpus explains, head by head."""
    table = entry.table("heads").sort_values("share").reset_index(drop=True)
    rows = [
        {
            "rank": i + 1,
            "share": row["share"],
            "verdict": row["verdict"],
            "name": f"{row['layer']}.{row['head']}",
        }
        for i, row in enumerate(records(table))
    ]
    x = Axis("rank", "heads in order", whole=True)
    y = Axis("share", "share of variance between corpora", limits=(0.0, 1.0))
    series = Series("verdict", tuple(table["verdict"].unique()))
    return figure(
        [panel(points(rows, x, y, series))],
        "Tokens needed: how much the corpus explains",
        least=300,
    )


MEASUREMENTS: dict[str, Measurement] = {
    "sparse": Measurement(sparse_units, measure_sparse),
    "depth": Measurement(depth_units, measure_depth),
    "tails": Measurement(tails_units, measure_tails),
    "domains": Measurement(domains_units, measure_domains),
}
CLAIMS: dict[str, Claim] = {
    "sparse": Claim(
        "Sparse attention",
        "Left open: do sparse patterns converge to dense attention at the same rate?",
        ("sparse",),
        judge_sparse,
        draw_sparse,
    ),
    "depth": Claim(
        "Depth",
        "Left open: does the rate of one layer survive a stack of layers?",
        ("depth",),
        judge_depth,
        draw_depth,
    ),
    "tails": Claim(
        "Sub-Gaussian tokens",
        "The theory assumes sub-Gaussian tokens.",
        ("tails",),
        judge_tails,
        draw_tails,
    ),
    "together": Claim(
        "Several heads",
        "Left open: do the heads of one layer err independently?",
        ("heads",),
        judge_together,
        draw_together,
    ),
    "domains": Claim(
        "Other domains",
        "Left open: are a head's numbers the same on another kind of text?",
        ("domains",),
        judge_domains,
        draw_domains,
    ),
}
