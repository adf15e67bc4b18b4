"""Probes of any size for tests of pages: the heads of a small real one, varied."""

from __future__ import annotations

import copy
from collections.abc import Callable
from typing import Any

from esscher.core.streams import random_stream
from esscher.runs.registry import result_of
from esscher.studies.probe import Probe
from tests.show.runs import make


def changed(found: Probe, change: Callable[[dict[str, Any]], None]) -> Probe:
    """The same probe with changes to what it stores."""
    results = copy.deepcopy(found.to_dict())
    change(results)
    other = result_of(results, "a changed probe")
    assert isinstance(other, Probe)
    return other


def wide_probe(layers: int = 30, heads: int = 9, name: str = "wide") -> Probe:
    """Results of a probe with this many layers and heads, every head another one."""
    rng = random_stream(0, "wide probe")

    def widen(results: dict[str, Any]) -> None:
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
        results["layers"] = [
            copy.deepcopy(whole[i % len(whole)]) | {"layer": i} for i in range(layers)
        ]
        results["configuration"]["model"] |= {"layers": layers, "heads": heads, "name": name}
        results["configuration"] |= {"layers": list(range(layers)), "heads": list(range(heads))}

    return changed(make("probe")[1], widen)
