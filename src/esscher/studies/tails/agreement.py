"""From layers to the result: what two halves of the text say of the same clouds.

A verdict on a single cloud is given only where the halves agree well enough over all of them.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import xarray as xr

from esscher.core.variables import joined
from esscher.math.statistics.intervals import rank_correlation_interval
from esscher.math.tails.verdict import (
    KINDS,
    SUBSTANTIAL,
    UNDECIDED,
    kappa_estimate,
    verdict_table,
)
from esscher.studies.tails.study import TailsData

#: Clouds whose halves are compared: whether they are the keys, and which of the tokens.
GROUPS = {
    "keys": (True, "text"),
    "keys with delimiters": (True, "all"),
    "hidden states": (False, "text"),
    "hidden states with delimiters": (False, "all"),
}


def combine(cells: Sequence[xr.Dataset], seed: int) -> TailsData:
    """Put the layers together, and withhold the verdicts that the halves do not agree on."""
    layers = TailsData(joined(cells, "layer"))
    coordinates = {"group": list(GROUPS), "called": list(KINDS)}
    data = TailsData(layers.dataset.assign_coords(coordinates))
    first = ~layers.key_head.isel(layer=0).to_series().duplicated().to_numpy()
    tables, correlations, tokens = [], [], []
    for keys, subset in GROUPS.values():
        cloud = (data.keys if keys else data.hidden).alone().sel(subset=subset)
        if keys:  # heads that share their keys count once
            cloud = cloud.isel(head=first)
        halves = cloud["half_verdict"].transpose(..., "half").values.reshape(-1, 2)
        proxies = cloud["proxy"].sel(bound="value", part=["first", "second"])
        pairs = proxies.transpose(..., "part").values.reshape(-1, 2)
        there = halves[:, 0] != ""
        tables.append(verdict_table(halves[there].tolist()))
        correlations.append(rank_correlation_interval(*pairs[there].T))
        halved = cloud["tokens"].values.ravel()[there] / 2
        tokens.append(halved.mean() if there.any() else 0.0)
    counts, kappas = np.array(tables).astype(int), [kappa_estimate(table, seed) for table in tables]
    data.clouds = counts.sum(axis=(1, 2))
    data.half_tokens = tokens
    data.half_counts = np.stack([counts.sum(axis=2), counts.sum(axis=1)], axis=1)
    data.both_counts = counts.diagonal(axis1=1, axis2=2)
    data.kappa = kappas
    data.proxy_correlation = correlations
    data.reproducible = [low >= SUBSTANTIAL for _, low, _ in kappas]
    # text tokens and all tokens, of keys and of hidden states, in the order of the groups
    given = data.reproducible.values.reshape(2, 2)
    for clouds, subsets in zip((data.keys, data.hidden), given, strict=True):
        verdict = clouds.verdict
        kept = xr.DataArray(subsets, dims="subset") | (verdict == "")
        clouds.verdict = verdict.where(kept, UNDECIDED).astype(np.str_)
    return data
