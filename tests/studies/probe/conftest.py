"""Probes of any size: a small real one, and its heads varied."""

from __future__ import annotations

import copy

import pytest

from esscher.core.streams import random_stream
from esscher.runs.registry import result_of
from tests.show.runs import make


@pytest.fixture(scope="session")
def found():
    """Two layers of three heads; model and text have hostile names."""
    return make("probe")[1]


@pytest.fixture(scope="session")
def changed():
    """A function that returns a probe with changes to what it stores."""

    def change(probe, how):
        results = copy.deepcopy(probe.to_dict())
        how(results)
        return result_of(results, "a changed probe")

    return change


@pytest.fixture(scope="session")
def wide(found, changed):
    """A function that returns a probe of many layers and heads, every head another one."""

    def widen(layers=30, heads=9, name="wide"):
        rng = random_stream(0, "wide probe")

        def how(results):
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

        return changed(found, how)

    return widen
