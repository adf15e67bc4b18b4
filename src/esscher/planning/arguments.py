"""Checks of what is asked of a plan."""

from __future__ import annotations

from dataclasses import dataclass

from esscher.errors import InputError
from esscher.models import LoadedModel
from esscher.planning.calibrate import DECODER, ENCODER, Keeping
from esscher.reading import check_supported
from esscher.validation import as_dim

#: Longest cache of a decoder, and longest passage of an encoder, unless a length is given.
PREFIX, PASSAGE = 4_096, 512
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


def check_goal(budget: float | None, tolerance: float | None) -> None:
    """Refuse both or neither; asked before a model is loaded, which takes long."""
    if (budget is None) == (tolerance is None):
        raise InputError("give either a budget, such as 0.25, or a tolerance, such as 0.1")


def make_request(
    loaded: LoadedModel,
    *,
    budget: float | None,
    tolerance: float | None,
    prefix: int | None,
    queries: int,
    passages: int | None,
    check_passages: int | None,
    measure: bool,
    seed: int,
) -> PlanRequest:
    """Check the arguments and fill in what was left out."""
    check_supported(loaded)
    check_goal(budget, tolerance)
    longest = loaded.max_positions
    asked = as_dim(queries, "queries") if loaded.causal else 0
    if prefix is None:
        keys = min(PREFIX if loaded.causal else PASSAGE, longest - asked)
    else:
        keys = as_dim(prefix, "prefix")
    if keys + asked > longest:
        raise InputError(
            f"prefix is {keys}{f' and {asked} queries follow it' if asked else ''}, but "
            f"{loaded.name} reads at most {longest} tokens at a time; the longest possible prefix "
            f"is {longest - asked}"
        )
    keeping = DECODER if loaded.causal else ENCODER
    least = keeping.count + 1
    if keys < 2 * least:
        raise InputError(
            f"prefix is {keys}; every head keeps {keeping.count} tokens for certain, so give at "
            f"least {2 * least}"
        )
    if budget is not None and not least / keys <= budget <= 1:
        raise InputError(
            f"budget is {budget:g}; every head keeps {keeping.count} tokens of {keys} for certain "
            f"and at least one more, so the smallest possible budget is {least / keys:.4g}, the "
            "largest 1"
        )
    if tolerance is not None and not SMALLEST_TOLERANCE <= tolerance < 1:
        raise InputError(
            f"tolerance is {tolerance:g}; errors below {SMALLEST_TOLERANCE:g} cannot be told from "
            f"rounding, so the smallest possible tolerance is {SMALLEST_TOLERANCE:g}, and it must "
            "be below 1"
        )
    windows = getattr(loaded.family.config(loaded.model), "sliding_window", None)
    if windows is not None and windows < keys:
        raise InputError(
            f"{loaded.name} has layers with a window of {windows} tokens, which keep no more than "
            f"that by themselves; give a prefix of at most {windows}"
        )
    if seed < 0:
        raise InputError(f"seed is {seed!r}; it must be a whole number of at least 0")
    checked = 0 if check_passages is None else as_dim(check_passages, "check_passages")
    if not loaded.causal and 0 < checked < NEIGHBOURS:
        raise InputError(
            f"check_passages is {checked}; an encoder's check asks whether a passage keeps its "
            f"nearest neighbour among the others, so give at least {NEIGHBOURS}"
        )
    if passages is None:
        count = PASSAGES if loaded.causal else ENCODER_PASSAGES
    else:
        count = as_dim(passages, "passages")
    return PlanRequest(
        budget=budget,
        tolerance=tolerance,
        prefix=keys if loaded.causal else 0,
        length=keys + asked,
        passages=count,
        check_passages=checked,
        draws=1 if loaded.causal else ENCODER_DRAWS,
        measure=bool(measure),
        seed=int(seed),
        keeping=keeping,
    )
