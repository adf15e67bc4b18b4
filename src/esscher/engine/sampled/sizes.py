"""How many keys there are to draw from, and sizes of samples that fit."""

from __future__ import annotations

import math
from typing import Literal, TypeAlias

from esscher.engine.models.outline import Outline

#: Errors that are measured, as in a sweep.
METRICS = ("mean", "cov", "map")
#: The tokens of all passages as one cloud, or real sequences with positions and visibility.
Mode: TypeAlias = Literal["pooled", "context"]
#: Share of a decoder's passage that holds the keys in context mode.
PREFIX = 0.75
#: Fewest keys of a curve: with fewer, a quarter of them is no range of sizes.
FEWEST_KEYS = 40


def default_mode(model: Outline) -> Mode:
    """Mode that suits a model: a decoder's keys mean little without their positions."""
    return "context" if model.causal else "pooled"


def passage_keys(model: Outline, length: int) -> int:
    """Keys of a passage in context mode: a decoder's queries take its last quarter."""
    return int(length * (PREFIX if model.causal else 1.0))


def needed_context(model: Outline) -> int:
    """Shortest passage in context mode that has enough keys."""
    return math.ceil(FEWEST_KEYS / PREFIX) if model.causal else FEWEST_KEYS
