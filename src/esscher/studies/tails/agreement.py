"""From layers to the result: what two halves of the text say of the same clouds.

A verdict on a single cloud is given only where the halves agree well enough over all of them.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import xarray as xr

from esscher.core.variables import estimate, joined
from esscher.math.tails.verdict import KINDS, UNDECIDED, half_agreement
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
    agreements = []
    for keys, subset in GROUPS.values():
        cloud = (data.keys if keys else data.hidden).alone().sel(subset=subset)
        if keys:  # heads that share their keys count once
            cloud = cloud.isel(head=first)
        halves = cloud["half_verdict"].transpose(..., "half").values.reshape(-1, 2)
        proxies = cloud["proxy"].sel(bound="value", part=["first", "second"])
        pairs = proxies.transpose(..., "part").values.reshape(-1, 2)
        there = halves[:, 0] != ""
        tokens = cloud["tokens"].values.ravel()[there]
        agreements.append(half_agreement(halves[there].tolist(), pairs[there], tokens, seed))
    data.clouds = [each.clouds for each in agreements]
    data.half_tokens = [each.tokens for each in agreements]
    data.half_counts = [[each.first, each.second] for each in agreements]
    data.both_counts = [each.both for each in agreements]
    data.kappa = [estimate(each.kappa) for each in agreements]
    data.proxy_correlation = [estimate(each.proxy) for each in agreements]
    data.proxy_medians = [each.proxy_medians for each in agreements]
    data.reproducible = [each.reproducible for each in agreements]
    # text tokens and all tokens, of keys and of hidden states, in the order of the groups
    given = data.reproducible.values.reshape(2, 2)
    for clouds, subsets in zip((data.keys, data.hidden), given, strict=True):
        verdict = clouds.verdict
        kept = xr.DataArray(subsets, dims="subset") | (verdict == "")
        clouds.verdict = verdict.where(kept, UNDECIDED).astype(np.str_)
    return data
