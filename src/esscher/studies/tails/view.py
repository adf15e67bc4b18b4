"""Tails as people see them: the tables and the sentences."""

from __future__ import annotations

import numpy as np
import xarray as xr

from esscher.core.shown import between, counted
from esscher.core.variables import by_row, var, with_ends
from esscher.math.tails.verdict import KINDS, LETTERS, MEANINGS, SUBSTANTIAL
from esscher.runs.result import Result
from esscher.show.table_view import TableView
from esscher.studies.tails.study import Cloud, LayerTails, TailsData, TailsSettings

TITLE = "Tails of the keys"
#: Variables that only tables show.
FURTHEST = var("", "tokens in the tail", name="furthest", kind="U")
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
            f"{name!r} {x:+.1f}"
            for name, x in zip(names, values, strict=True)
            if x == x  # fewer tokens than are named
        ),
        "rank",
        tokens,
        far,
    )
    cloud["halves"] = by_row(
        lambda verdicts: " ".join(LETTERS.get(verdict, "") for verdict in verdicts),
        "half",
        cloud["half_verdict"],
    )
    cloud["with_delimiters"] = delimited
    return cloud.isel(layer=[bool(x.notnull().any()) for x in cloud["tokens"]])


def halves(result: Result[TailsSettings]) -> xr.Dataset:
    """Return what two halves of the text say, of all clouds that there are."""
    data = TailsData(result.data.isel(group=result.data["clouds"].values > 0))
    half = {name: data.half_counts.sel(half=name, drop=True) for name in ("first", "second")}
    return data.dataset.assign(
        {
            name: by_row(lambda counts: "/".join(f"{n:.0f}" for n in counts), "called", counts)
            for name, counts in (half | {"both": data.both_counts}).items()
        }
    )


_CLOUD = (
    *(Cloud.verdict, Cloud.proxy, Cloud.kurtosis, Cloud.tau, HALVES, Cloud.beyond),
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
        least=("norms", "logits", "kurt."),
    ),
    TableView(
        "layers",
        "Hidden states that enter each layer",
        ("layer",),
        _CLOUD,
        lambda result: clouds(result, keys=False),
        least=("norms", "kurt."),
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
        halves,
        least=("clouds",),
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
    kappa, ends = with_ends(keys.kappa)
    agreement = "They say the same of all heads"
    if not np.isnan(kappa):
        agreement = f"They agree beyond chance with kappa = {between(kappa, ends)}"
    low, middle, high = clouds(result)["proxy"].sel(bound="value").quantile([0.1, 0.5, 0.9]).values
    return (
        f"The keys of {light} of {counted(count, 'head' if count == heads else 'key head')} are "
        "sub-Gaussian even in their worst direction, as far as these tokens reach; those of "
        f"{heavy} are heavier, {count - light - heavy} undecided, by what both halves of the text "
        f"say. {agreement}: single heads are {'judged' if reproducible(result) else 'not judged'}. "
        f"The variance proxy of the median head is {middle:.2f} times its variance (10% and 90% of "
        f"the heads: {low:.2f} and {high:.2f})."
    )


def notes(result: Result[TailsSettings]) -> list[str]:
    """Return what is said below the tables of a terminal."""
    if reproducible(result):
        given = dict.fromkeys(clouds(result)["verdict"].values.ravel().tolist())
        return [f"keys, {verdict}: {MEANINGS[verdict]}." for verdict in given]
    return [
        "No single head is judged: that takes a kappa whose interval is above "
        f"{SUBSTANTIAL:g}. What both halves say is counted over all heads."
    ]
