"""What a plan saved on this machine: seconds, bytes and memory of both caches, kept with its run.

``esscher generate --compare`` measures it. Times are of a machine and of an hour, so that they are
no part of the plan's result; they lie in a file of their own beside it, and the report shows them.
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from esscher.core.atomic import write_atomically
from esscher.core.codec import Count, Record, as_json, as_record
from esscher.core.untrusted import read_json

if TYPE_CHECKING:
    from esscher.engine.generation import Comparison, Generation

#: Name of the file in the directory of a run.
SAVINGS = "generated.json"


class Cost(Record, frozen=True, kw_only=True):
    """What generating took with one cache; None where the system does not tell."""

    prompt_seconds: float
    tokens_per_second: float | None
    cache_bytes: Count
    peak_memory: Count | None


class Savings(Record, frozen=True, kw_only=True):
    """The same prompt with transformers' own cache, and with that of the plan.

    Attributes
    ----------
    tokens, new_tokens
        Of the prompt, and those that were generated.
    dense, planned
        What each took.
    parts_at
        Number of the first new token in which the texts differ; None if they do not.
    """

    tokens: Count
    new_tokens: Count
    dense: Cost
    planned: Cost
    parts_at: Count | None


def savings_of(found: Comparison) -> Savings:
    """Take the costs out of a comparison."""
    return Savings(
        tokens=found.dense.tokens,
        new_tokens=found.planned.new_tokens,
        dense=_cost(found.dense),
        planned=_cost(found.planned),
        parts_at=found.parts_at,
    )


def _cost(found: Generation) -> Cost:
    return Cost(
        prompt_seconds=found.prompt_seconds,
        tokens_per_second=found.decode_rate,
        cache_bytes=found.cache_bytes,
        peak_memory=found.peak.bytes,
    )


def store_savings(found: Savings, folder: Path) -> Path:
    """Keep savings in the directory of the plan's run; return the file."""
    path = folder / SAVINGS
    write_atomically(path, as_json(found))
    return path


def read_savings(folder: Path | None) -> Savings | None:
    """Return what was measured of a run's plan; None if nothing was.

    Raises
    ------
    InputError
        If the file is damaged.
    """
    if folder is None:
        return None
    path = folder / SAVINGS
    try:
        tree = read_json(path, follow=False)
    except FileNotFoundError:
        return None
    return as_record(tree, Savings, str(path))
