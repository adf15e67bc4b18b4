"""Whether two runs are of the same heads: the only thing that lets numbers be set in pairs."""

from __future__ import annotations

from collections.abc import Sequence

from esscher.show.stored import StoredRun


def same_weights(one: StoredRun, other: StoredRun) -> bool:
    """Whether two runs are of a model with the same weights.

    Names say nothing: two models may share one, and one model may have several.
    """
    stored = [run.configuration for run in (one, other)]
    hashes = [c.get("weight_hash") or c.get("model", {}).get("weight_hash") for c in stored]
    return bool(hashes[0]) and hashes[0] == hashes[1]


def same_heads(one: StoredRun, other: StoredRun) -> bool:
    """Whether two runs have measured the same heads of the same weights, in the same order."""
    first, second = (
        [(head["layer"], head["head"]) for head in run.results["heads"]] for run in (one, other)
    )
    return first == second and same_weights(one, other)


def of_same_heads(runs: Sequence[StoredRun]) -> list[list[StoredRun]]:
    """Runs in groups of the same heads, in the order of their first ones."""
    groups: list[list[StoredRun]] = []
    for run in runs:
        for group in groups:
            if same_heads(group[0], run):
                group.append(run)
                break
        else:
            groups.append([run])
    return groups
