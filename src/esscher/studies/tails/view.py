"""Tails as people see them: the tables, the cards and the sentences."""

from __future__ import annotations

from typing import Any

import numpy as np
import xarray as xr

from esscher.core.shown import counted, shown, visible
from esscher.core.variables import by_row, var
from esscher.math.tails.verdict import KINDS, LETTERS, MEANINGS, SUBSTANTIAL
from esscher.runs.result import Result
from esscher.show.content import Card
from esscher.show.table_view import TableView
from esscher.studies.tails.study import Cloud, LayerTails, TailsData, TailsSettings

TITLE = "Tails of the keys"
#: Characters of a token that a terminal shows.
TOKEN = 9
#: Variables that only tables show.
FURTHEST = var("", "tokens in the tail", name="furthest", kind="U")
TOKEN_SHOWN = var(
    "",
    "furthest",
    name="token",
    kind="U",
    page=False,
    terminal="furthest",
    help="token that reaches furthest",
)
HALVES = var(
    "",
    "halves",
    name="halves",
    kind="U",
    page=False,
    terminal="halves",
    help="what each half of the text says (S sub-Gaussian, E exponential moments, H heavier than "
    "Gaussian, N no exponential moments, ? undecided)",
)
WITH_DELIMITERS = var("", "with delimiters", name="with_delimiters", kind="U", page=False)
COUNTS = tuple(
    var("", heading, name=name, kind="U", terminal=heading, help=help)
    for name, heading, help in (
        ("first", "one half", f"clouds that it calls {' / '.join(KINDS)}"),
        ("second", "the other", ""),
        ("both", "both", ""),
    )
)


def clouds(result: Result[TailsSettings], keys: bool = True) -> xr.Dataset:
    """Return the text tokens of both halves, of keys or of hidden states, with words for tables."""
    data = TailsData(result.data)
    cloud = (data.keys if keys else data.hidden).alone()
    delimited = cloud["verdict"].sel(subset="all", drop=True)
    cloud = cloud.sel(subset="text", part="both", drop=True)
    if keys:
        cloud["logits_k"], cloud["key_head"] = data.logits_k, data.key_head
    tokens, far = cloud["tail_token"], cloud["tail_projection"]
    cloud["furthest"] = by_row(
        lambda names, values: ", ".join(
            f"{visible(name)!r} {x:+.1f}"
            for name, x in zip(names, values, strict=True)
            if x == x  # fewer tokens than are named
        ),
        "rank",
        tokens,
        far,
    )
    cloud["token"] = by_row(
        lambda names: (names[0].strip() or repr(names[0]))[:TOKEN], "rank", tokens
    )
    cloud["halves"] = by_row(
        lambda verdicts: " ".join(LETTERS.get(verdict, "") for verdict in verdicts),
        "half",
        cloud["half_verdict"],
    )
    cloud["with_delimiters"] = delimited
    return cloud.isel(layer=[bool(x.notnull().any()) for x in cloud["tokens"]])


def _halves(result: Result[TailsSettings]) -> xr.Dataset:
    """What two halves of the text say, of all clouds that there are."""
    data = TailsData(result.data.isel(group=result.data["clouds"].values > 0))
    shown_counts = data.dataset
    for name in ("first", "second", "both"):
        counts = data.both_counts if name == "both" else data.half_counts.sel(half=name)
        rows = counts.transpose("group", "called").values.astype(int)
        shown_counts = shown_counts.assign(
            {name: ("group", ["/".join(map(str, row)) for row in rows])}
        )
    return shown_counts


_CLOUD = (
    *(Cloud.verdict, Cloud.proxy, Cloud.kurtosis, Cloud.tau, HALVES, TOKEN_SHOWN, Cloud.beyond),
    *(Cloud.norms_k, LayerTails.logits_k, Cloud.largest, Cloud.agreement, FURTHEST),
    *(Cloud.half_verdict, WITH_DELIMITERS, Cloud.evidence, LayerTails.key_head),
)
TABLES = (
    TableView(
        "heads",
        "All heads",
        ("layer", "head"),
        _CLOUD,
        clouds,
        sort="kurtosis",
        caption="Brackets are 95% intervals. Tokens in the tail are given with their projection in "
        "standard deviations. Single heads get a verdict only if both halves of the text agree "
        "enough; what each half says is in the CSV file.",
        least=("furthest", "norms", "logits", "kurt."),
    ),
    TableView(
        "layers",
        "Hidden states that enter each layer",
        ("layer",),
        _CLOUD,
        lambda result: clouds(result, keys=False),
        least=("furthest", "norms", "kurt."),
        most=1000,
        page=False,
    ),
    TableView(
        "halves",
        f"What two halves of the text say: {' / '.join(KINDS)}",
        ("group",),
        (
            *COUNTS,
            *(TailsData.clouds, TailsData.half_tokens, TailsData.kappa),
            *(TailsData.proxy_correlation, TailsData.reproducible),
        ),
        _halves,
        least=("clouds",),
        page=False,
    ),
)


def reproducible(result: Result[TailsSettings]) -> bool:
    """Tell whether verdicts on single heads are given."""
    return bool(TailsData(result.data).reproducible.sel(group="keys"))


def subject(result: Result[TailsSettings]) -> str:
    """Return what was measured, in a line."""
    setup = result.setup
    return f"{setup.model.name} on {setup.text.source}, {setup.settings.tokens:,} tokens"


def headline(result: Result[TailsSettings]) -> str:
    """Return the answer in a few sentences."""
    keys = TailsData(result.data.sel(group="keys"))
    light, heavy, _ = (int(n) for n in keys.both_counts.values)
    count, heads = int(keys.clouds), keys.key_head.size
    kappa = _with_interval(keys.kappa)
    beyond = "Both halves say the same of all heads, which says nothing about single ones"
    if kappa:
        beyond = f"Agreement of the halves beyond chance is kappa = {kappa}"
    low, middle, high = _proxies(result)
    one, two = keys.proxy_medians.values
    proxies = (
        f"Variance proxy over variance: median {middle:.2f} ({one:.2f} and {two:.2f} in the "
        f"halves), 10% and 90% of the heads {low:.2f} and {high:.2f}"
    )
    if ranks := _with_interval(keys.proxy_correlation):
        proxies += f"; rank correlation between the halves {ranks}"
    return (
        f"The keys of {light} of {counted(count, 'head' if count == heads else 'key head')} are "
        "sub-Gaussian even in their worst direction, as far as these tokens reach; those of "
        f"{heavy} are heavier, {count - light - heavy} undecided. Counted is what both halves of "
        f"the text ({float(keys.half_tokens):,.0f} tokens each) say. {beyond}: single heads are "
        f"{'judged' if reproducible(result) else 'not judged'}. {proxies}."
    )


def cards(result: Result[TailsSettings]) -> list[Card]:
    """Return the numbers that matter."""
    keys = TailsData(result.data.sel(group="keys"))
    count, (light, heavy, _) = int(keys.clouds), (int(n) for n in keys.both_counts.values)
    first, second = keys.half_counts.transpose("half", "called").values.astype(int)
    enough = "enough" if reproducible(result) else f"too low ({SUBSTANTIAL:g} is needed)"
    kappa, low, high = keys.kappa.values
    same = np.isnan(kappa)
    sure = "all heads are called the same" if same else f"95% interval {low:.2f} to {high:.2f}"
    least, middle, most = _proxies(result)
    return [
        Card(
            f"{light} of {count}",
            "heads are sub-Gaussian in both halves of the text",
            f"in the worst direction; in one half {first[0]}, in the other {second[0]}",
        ),
        Card(
            f"{heavy} of {count}",
            "heads have heavier tails in both halves",
            f"in one half {first[1]}, in the other {second[1]}",
        ),
        Card(
            f"{count - light - heavy} of {count}",
            "heads are undecided",
            "the halves differ, or cannot tell",
        ),
        Card(
            shown(kappa, "d2"),
            "agreement of the halves, kappa",
            f"{sure}; {enough} for verdicts on single heads",
        ),
        Card(
            shown(middle, "d2"),
            "variance proxy / variance",
            f"median head; 10% and 90% of the heads: {least:.2f} and {most:.2f}",
        ),
    ]


def notes(result: Result[TailsSettings]) -> list[str]:
    """Return what is said below the tables of a terminal."""
    if reproducible(result):
        given = dict.fromkeys(clouds(result)["verdict"].values.ravel().tolist())
        return [f"keys, {verdict}: {MEANINGS[verdict]}." for verdict in given]
    return [
        "No single head is judged: that takes a kappa whose interval is above "
        f"{SUBSTANTIAL:g}. What both halves say is counted over all heads."
    ]


def _proxies(result: Result[TailsSettings]) -> Any:
    """10%, 50% and 90% quantiles over the heads."""
    return np.quantile(clouds(result)["proxy"].sel(bound="value").values, [0.1, 0.5, 0.9])


def _with_interval(array: xr.DataArray) -> str:
    """A number with the ends of its interval; nothing where there is none."""
    value, low, high = array.values
    return "" if np.isnan(value) else f"{value:.2f} ({low:.2f} to {high:.2f})"
