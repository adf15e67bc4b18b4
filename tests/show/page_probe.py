"""Probes of any size for tests of pages: the heads of a small real one, varied."""

from __future__ import annotations

import copy
from typing import Any

from esscher.core.streams import random_stream
from esscher.studies.probe import Probe
from tests.show.runs import make


def wide_probe(layers: int = 30, heads: int = 9, name: str = "wide") -> Probe:
    """Results of a probe with this many layers and heads, every head another one."""
    small: Probe = make("probe")[1]
    results: dict[str, Any] = copy.deepcopy(small.results)
    rng = random_stream(0, "wide probe")
    own = results["heads"]
    results["heads"] = []
    for layer in range(layers):
        for head in range(heads):
            made = copy.deepcopy(own[(layer * heads + head) % len(own)])
            made |= {"layer": layer, "head": head}
            factor = float(rng.lognormal(0.0, 0.5))
            made["horizon"] *= factor
            for tolerance, tokens in made["tokens_for"].items():
                made["tokens_for"][tolerance] = None if tokens is None else tokens * factor
                ends = made["tokens_for_interval"][tolerance]
                made["tokens_for_interval"][tolerance] = [e and e * factor for e in ends]
            for fit in made["fit"].values():
                fit["exponent"] += float(rng.normal(0.0, 0.02))
            results["heads"].append(made)
    whole = results["layers"]
    results["layers"] = [copy.deepcopy(whole[i % len(whole)]) | {"layer": i} for i in range(layers)]
    results["configuration"]["model"] |= {"layers": layers, "heads": heads, "name": name}
    results["configuration"] |= {"layers": list(range(layers)), "heads": list(range(heads))}
    return Probe(results, small.folder)
