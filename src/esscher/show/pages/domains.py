"""The page of a comparison of corpora: what differs, how much, and where variance comes from."""

from __future__ import annotations

from typing import Any

from esscher.show.content import (
    COLOURS,
    Axis,
    Bars,
    Card,
    Chart,
    Column,
    CurveSeries,
    CurveView,
    Explorer,
    Grid,
    Line,
    Part,
    Plot,
    Quantity,
    Series,
    Table,
)
from esscher.show.frames import data_of, ends_of, values
from esscher.show.numbers import shown
from esscher.show.provenance import model_options, options
from esscher.show.stored import StoredRun
from esscher.studies.domains import Domains

NAME = "Heads on several corpora"
SYMBOLS = ("circle", "square", "triangle-up", "diamond", "triangle-down", "cross")
PARTS = {
    "head": "blue",
    "head x corpus": "gold",
    "corpus": "orange",
    "block": "grey",
    "rest": "pale",
}
#: Statistics in the order of what they say, and how many of them have curves of heads.
ORDER = ("tokens", "ess", "khat", "exponent", "horizon", "sinks", "frobenius", "tau", "delimiters")
DETAILED = 3


def subject(run: StoredRun) -> str:
    """Model and corpora."""
    c = run.configuration
    return (
        f"{c['model']['name']} on {len(c['texts'])} corpora, {c['blocks']} blocks of "
        f"{c['block_tokens']:,} tokens each, {c['mode']}"
    )


def answer(run: StoredRun) -> str:
    """The headline."""
    return str(run.found.headline)


def cards(run: StoredRun) -> list[Card]:
    """Heads that differ, ranks, transfer."""
    r = run.results
    if not r["counts"]:
        return []
    units = len(r["units"])
    out = [
        Card(f"{r['counts']['any']['heads']} of {units}", "heads differ between corpora",
             f"false discovery rate {r['configuration']['fdr']:.0%}; "
             f"{r['counts']['any']['heads_holm']} family-wise"),
    ]  # fmt: skip
    tokens = r["variance"].get("tokens")
    # A number may be missing: few heads and blocks give no interval, and no ranks.
    if tokens is not None and tokens["head_over_corpus"] is not None:
        ends = tokens["head_over_corpus_interval"]
        known = ends is not None and None not in ends
        sure = "95% interval {} to {}".format(*(shown(end, "d1") for end in ends)) if known else (
            "too few blocks for an interval"
        )  # fmt: skip
        out.append(
            Card(f"{shown(tokens['head_over_corpus'], 'd1')}×", "head against corpus",
                 f"variance of tokens needed: {sure}")
        )  # fmt: skip
    rank = r["rank"].get("tokens")
    if rank is not None and rank["between"] is not None:
        out.append(
            Card(shown(rank["between"], "d2"), "rank correlation between corpora",
                 f"of tokens needed; {shown(rank['within'], 'd2')} between blocks of one corpus")
        )  # fmt: skip
    transfer = r.get("transfer")
    if transfer and transfer["factor"] is not None:
        out.append(
            Card(f"{shown(transfer['factor'], 'd2')}×", "typical factor from corpus to corpus",
                 f"of tokens needed; {shown(transfer['factor_within'], 'd2')} within one corpus")
        )  # fmt: skip
    return out


def parts(run: StoredRun) -> list[Part]:
    """Layers, heads, variance, ranks, tables."""
    r = run.results
    out: list[Part] = []
    if r.get("layers"):
        out.append(_layers(run))
    if r.get("tests"):
        table = _head_table(run)
        out.append(_explorer(run, table))
        out += [_variance(run), _variance_table(run), _pairs(run), _strongest(run.found, run.name)]
        return [*out, _medians(run), table]
    return [*out, _medians(run)]


def command_words(run: StoredRun) -> list[str]:
    """``domains MODEL ...``."""
    c = run.configuration
    texts = [word for x in c["texts"] for word in ("--text", f"{x['name']}={x['source']}")]
    return [
        "domains", c["model"]["name"], *texts,
        *options(
            blocks=c["blocks"], block_tokens=c["block_tokens"], mode=c["mode"],
            context=c["context"], fdr=c["fdr"], exponents=c["exponents"],
            replicates=c["replicates"] or None, seed=c["seed"], **model_options(c), out=run.name,
        ),
    ]  # fmt: skip


def _names(run: StoredRun) -> list[str]:
    there = run.results.get("statistics", {})
    return [n for n in ORDER if n in there] + [n for n in there if n not in ORDER]


def _layers(run: StoredRun) -> Chart:
    r, views = run.results, []
    for name in _names(run):
        series = []
        for i, (corpus, rows) in enumerate(r["layers"][name].items()):
            count = len(r["layers"][name])
            series.append(
                Series(
                    corpus,
                    [row["layer"] + 0.5 * (i / max(count - 1, 1) - 0.5) for row in rows],
                    [row["value"] for row in rows], [row["low"] for row in rows],
                    [row["high"] for row in rows], colour=COLOURS[i % len(COLOURS)],
                    symbol=SYMBOLS[(i // len(COLOURS) + i) % len(SYMBOLS)],
                    text=[f"layer {row['layer']}" for row in rows],
                )
            )  # fmt: skip
        log = r["statistics"][name]["scale"] == "ratio"
        title = r["statistics"][name]["title"]
        views.append(Plot(title, Axis("layer"), Axis(title, log), series))
    return Chart(
        "Layers by corpus",
        views,
        caption="Typical head of each layer on each corpus, with 95% intervals over blocks; points "
        "of a layer stand side by side.",
        selector="Statistic",
        height=420,
    )


def _head_table(run: StoredRun) -> Table:
    r = run.results
    data: dict[str, list[Any]] = {
        "layer": [unit[0] for unit in r["units"]],
        "head": [unit[1] for unit in r["units"]],
    }
    columns = [Column("layer", "layer", "n0"), Column("head", "head", "n0")]
    for name in _names(run):
        test, title = r["tests"][name]["omnibus"], r["statistics"][name]["title"]
        data[f"{name}_share"] = values(test["share"])
        data[f"{name}_p"] = values(test["adjusted"])
        data[f"{name}_holm"] = values(test["holm"])
        columns += [
            Column(f"{name}_share", f"{title}: share", "p0",
                   help="share of the variance over blocks that is between corpora"),
            Column(f"{name}_p", "adjusted p", "s2", help=f"{title}: false discovery rate"),
        ]  # fmt: skip
    return Table(
        title="All heads",
        name=f"{run.name}-heads",
        columns=columns,
        data=data,
        caption="Share of a head's variance over the blocks that lies between corpora, with "
        "p-values of the permutation test, adjusted for the false discovery rate over all heads "
        "and statistics (family-wise ones are in the CSV file).",
        sort=("tokens_share", True) if "tokens_share" in data else None,
    )


def _explorer(run: StoredRun, table: Table) -> Explorer:
    r, names = run.results, _names(run)
    detailed = names[:DETAILED]
    views = []
    for name in detailed:
        ratio, title = r["statistics"][name]["scale"] == "ratio", r["statistics"][name]["title"]
        pairs = [f"{p['b']} / {p['a']}" for p in r["tests"][name]["pairs"]]
        views.append(
            CurveView(
                title,
                Axis(f"{title}: {'ratio' if ratio else 'difference'}", log=ratio),
                Axis("", categories=pairs),
                [CurveSeries("effect", f"{name}_effect", f"{name}_low", f"{name}_high", "points",
                             hollow=f"{name}_chance")],
                list(range(len(pairs))),
                [Line("v", 1.0 if ratio else 0.0)],
                across=True,
            )
        )  # fmt: skip
    curves: list[dict[str, Any]] = []
    for i in range(len(r["units"])):
        own: dict[str, Any] = {}
        for name in detailed:
            tests = r["tests"][name]["pairs"]
            own[f"{name}_effect"] = [p["effect"][i] for p in tests]
            own[f"{name}_low"] = [p["low"][i] for p in tests]
            own[f"{name}_high"] = [p["high"][i] for p in tests]
            own[f"{name}_chance"] = [
                p["adjusted"][i] is None or p["adjusted"][i] > r["configuration"]["fdr"]
                for p in tests
            ]
        curves.append(own)
    first = table.data[f"{names[0]}_share"]
    order = sorted(range(len(first)), key=lambda i: -(first[i] or 0.0))
    return Explorer(
        title="Which heads differ",
        table=table,
        quantities=[
            Quantity(f"{name}_share", f"share between corpora: {r['statistics'][name]['title']}",
                     "cividis", limits=(0.0, 1.0))
            for name in names
        ],
        facts=[key for name in detailed for key in (f"{name}_share", f"{name}_p")],
        views=views,
        curves=curves,
        importance=order,
        start=order[0],
        caption="Share of a head's variance over the blocks that lies between corpora.",
        curve_caption="The first-named corpus over (or minus) the second, with intervals that hold "
        f"for the discoveries together (level {r['correction']['interval_level']:.1%}); hollow: "
        "may be chance.",
    )  # fmt: skip


def _variance(run: StoredRun) -> Chart:
    r = run.results
    names = [name for name in _names(run) if r["variance"].get(name)]
    titles = [r["statistics"][name]["title"] for name in names]
    series = []
    for part, colour in PARTS.items():
        shares = [r["variance"][name]["shares"][part] for name in names]
        series.append(Series(part, list(range(len(names))), shares, colour=colour))
    return Chart(
        "Where the variance comes from",
        [Bars("variance", Axis("share of the variance", limits=(0.0, 1.0)), titles, series,
              stacked=True, horizontal=True)],
        caption="Which head it is, which corpus, both together, which block of a corpus, and what "
        "is left; the table below says how sure that is.",
    )  # fmt: skip


def _variance_table(run: StoredRun) -> Table:
    r = run.results
    names = [name for name in _names(run) if r["variance"].get(name)]
    found = [r["variance"][name] for name in names]
    low, high = ends_of(one["head_over_corpus_interval"] for one in found)
    data: dict[str, list[Any]] = {"statistic": [r["statistics"][name]["title"] for name in names]}
    columns = [Column("statistic", "statistic")]
    for part in PARTS:
        key = part.replace(" ", "_")
        share = [one["shares"][part] for one in found]
        noise = [1.96 * one["standard_errors"][part] for one in found]
        data[key] = share
        data[f"{key}_low"] = [max(0.0, s - e) for s, e in zip(share, noise, strict=True)]
        data[f"{key}_high"] = [min(1.0, s + e) for s, e in zip(share, noise, strict=True)]
        columns.append(Column(key, part, "p1", f"{key}_low", f"{key}_high"))
    data |= {"ratio": [one["head_over_corpus"] for one in found], "low": low, "high": high}
    columns.append(
        Column(
            "ratio",
            "head / corpus",
            "s3",
            "low",
            "high",
            help="variance of heads over that of corpora and of both together",
        )
    )
    return Table(
        title="Shares of the variance",
        name=f"{run.name}-variance",
        columns=columns,
        data=data,
        caption="With 95% intervals (1.96 standard errors, cut at 0 and 1).",
    )  # fmt: skip


def _pairs(run: StoredRun) -> Chart:
    r, corpora = run.results, [c["name"] for c in run.results["corpora"]]
    views = []
    total = len(r["units"])
    for name in _names(run):
        grid: list[list[float | None]] = [[None] * len(corpora) for _ in corpora]
        for pair in r["tests"][name]["pairs"]:
            i, j = corpora.index(pair["a"]), corpora.index(pair["b"])
            grid[i][j] = grid[j][i] = float(pair["heads"])
        views.append(
            Grid(f"heads that differ: {r['statistics'][name]['title']}", corpora, corpora, grid,
                 "corpus", "corpus", "n0", (0.0, float(total)))
        )  # fmt: skip
    return Chart(
        "Pairs of corpora",
        views,
        caption=f"Number of heads, of {total}, in which two corpora differ (false discovery rate "
        f"{r['configuration']['fdr']:.0%}).",
        selector="Count",
    )


def _strongest(found: Domains, name: str) -> Table:
    return Table(
        title="Strongest differences",
        name=f"{name}-strongest",
        columns=[
            Column("statistic", "statistic"),
            Column("head", "head"),
            Column("a", "corpus"),
            Column("b", "against"),
            Column("effect", "effect", "s3", "low", "high", help="ratio or difference, b to a"),
            Column("adjusted_p", "adjusted p", "s2"),
        ],
        data=data_of(found.strongest_table()),
        caption="By the near ends of their intervals.",
    )


def _medians(run: StoredRun) -> Table:
    frame = run.found.medians()
    columns = [Column("corpus", "corpus"), Column("distinct", "distinct tokens", "p0"),
               Column("unknown", "unknown tokens", "p2")]  # fmt: skip
    for name in _names(run):
        if name in frame:
            columns.append(
                Column(name, run.results["statistics"][name]["title"], "s3", f"{name}_low",
                       f"{name}_high")
            )  # fmt: skip
    return Table(
        title="Corpora",
        name=f"{run.name}-corpora",
        columns=columns,
        data=data_of(frame),
        caption="Medians over the heads, with 95% intervals over blocks.",
    )
