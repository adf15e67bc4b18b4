"""Checks of what is asked of a plan."""

from __future__ import annotations

import math
from dataclasses import asdict, dataclass
from typing import Any

from esscher.core.errors import InputError
from esscher.core.validation import as_dim, as_seed, as_share
from esscher.engine.models.outline import Outline
from esscher.studies.plan.keeping import Keeping, keeping_for

KIND = "plan"

#: Longest cache of a decoder, and longest passage of an encoder, unless a length is given.
PREFIX, PASSAGE = 4_096, 512
#: Tokens after a decoder's cache unless a number is given; at most a quarter of what it reads.
QUERIES = 128
#: Shortest cache or passage of which budgets can be kept.
FEWEST_KEYS = 16
#: Calibration passages unless a number is given. An encoder's are short, and cheap.
PASSAGES, ENCODER_PASSAGES = 4, 16
#: Samples of each unseen passage of an encoder: its embedding is one number per passage, which
#: varies with the sample; a decoder's measures are means over its queries.
ENCODER_DRAWS = 4
#: Fewest unseen passages of an encoder: with two, the nearest of the others is always the same.
NEIGHBOURS = 3
#: Rounding of attention in float32: no tolerance below this can be told from 0.
SMALLEST_TOLERANCE = 1e-4


@dataclass(frozen=True)
class PlanRequest:
    """What is asked of a plan, apart from model and text.

    Attributes
    ----------
    budget, tolerance
        One of them is None.
    prefix
        Tokens of a decoder's cache; 0 for an encoder.
    length
        Tokens of a passage.
    draws
        Samples of each unseen passage.
    measure
        Whether effects are measured by sampling, not predicted from weights.
    keeping
        What is kept for certain.
    """

    budget: float | None
    tolerance: float | None
    prefix: int
    length: int
    passages: int
    check_passages: int
    draws: int
    measure: bool
    seed: int
    keeping: Keeping

    @property
    def keys(self) -> int:
        """Tokens of which budgets are kept."""
        return self.prefix or self.length

    def to_dict(self) -> dict[str, Any]:
        """Return the fields as JSON holds them."""
        return asdict(self)


def check_goal(budget: float | None, tolerance: float | None) -> None:
    """Refuse both or neither, and what is no share."""
    if (budget is None) == (tolerance is None):
        raise InputError("give either a budget, such as 0.25, or a tolerance, such as 0.1")
    if budget is not None:
        as_share(budget, "budget", 0.25)
    if tolerance is not None:
        as_share(tolerance, "tolerance", 0.1)


def make_request(
    model: Outline,
    *,
    budget: float | None,
    tolerance: float | None,
    prefix: int | None,
    queries: int | None,
    passages: int | None,
    check_passages: int | None,
    measure: bool,
    seed: int,
) -> PlanRequest:
    """Check the arguments and fill in what was left out."""
    model.check_supported()
    check_goal(budget, tolerance)
    asked = 0 if not model.causal else _queries(model, queries, QUERIES)
    keys = _keys(model, prefix, asked)
    keeping = keeping_for(keys, model.causal)
    least = keeping.count + 1
    if budget is not None and not least / keys <= budget <= 1:
        smallest = math.ceil(least / keys * 1e4) / 1e4
        raise InputError(
            f"budget is {budget:g}; every head keeps {keeping.count} tokens of {keys} for certain "
            f"and at least one more, so the smallest possible budget is {smallest:g}, the largest 1"
        )
    if tolerance is not None and not SMALLEST_TOLERANCE <= tolerance < 1:
        raise InputError(
            f"tolerance is {tolerance:g}; errors below {SMALLEST_TOLERANCE:g} cannot be told from "
            f"rounding, so the smallest possible tolerance is {SMALLEST_TOLERANCE:g}, and it must "
            "be below 1"
        )
    checked = 0 if check_passages is None else as_dim(check_passages, "check_passages")
    if not model.causal and 0 < checked < NEIGHBOURS:
        raise InputError(
            f"check_passages is {checked}; an encoder's check asks whether a passage keeps its "
            f"nearest neighbour among the others, so give at least {NEIGHBOURS}"
        )
    if passages is None:
        count = PASSAGES if model.causal else ENCODER_PASSAGES
    else:
        count = as_dim(passages, "passages")
    return PlanRequest(
        budget=budget,
        tolerance=tolerance,
        prefix=keys if model.causal else 0,
        length=keys + asked,
        passages=count,
        check_passages=checked,
        draws=1 if model.causal else ENCODER_DRAWS,
        measure=bool(measure),
        seed=as_seed(seed),
        keeping=keeping,
    )


def _queries(model: Outline, asked: int | None, usual: int) -> int:
    """Tokens after a decoder's cache: by default at most a quarter of what it reads."""
    if asked is None:
        return max(1, min(usual, model.max_positions // 4))
    return as_dim(asked, "queries")


def _keys(model: Outline, prefix: int | None, queries: int) -> int:
    """Tokens of a decoder's cache, or of an encoder's passage."""
    longest = model.max_positions - queries
    possible = longest if model.window is None else min(longest, model.window)
    behind = f" and {queries} queries follow it" if queries else ""
    if prefix is None:
        keys = min(PREFIX if model.causal else PASSAGE, possible)
    else:
        keys = as_dim(prefix, "prefix")
    if longest < FEWEST_KEYS:
        fewer = model.max_positions - FEWEST_KEYS
        raise InputError(
            f"{model.name} reads at most {model.max_positions} tokens, and a plan takes a prefix "
            f"of at least {FEWEST_KEYS}; "
            + (f"give at most {fewer} queries" if fewer > 0 else "choose a model that reads more")
        )
    if possible < FEWEST_KEYS:
        raise InputError(
            f"{model.name} has layers with a window of {model.window} tokens, and a plan takes a "
            f"prefix of at least {FEWEST_KEYS}; choose a model with longer windows"
        )
    if keys > longest:
        raise InputError(
            f"prefix is {keys}{behind}, but {model.name} reads at most {model.max_positions} "
            f"tokens at a time; the longest possible prefix is {possible}"
        )
    if keys > possible:
        raise InputError(
            f"prefix is {keys}, but {model.name} has layers with a window of {model.window} "
            f"tokens, which keep no more than that by themselves; give a prefix of at most "
            f"{possible}"
        )
    if keys < FEWEST_KEYS:
        raise InputError(f"prefix is {keys}; budgets need room: give at least {FEWEST_KEYS}")
    return keys
