"""Budgets of a study: those that are given, checked, or a curve that fits."""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np

from esscher.core.errors import InputError
from esscher.core.validation import as_sizes
from esscher.engine.models.outline import Outline
from esscher.engine.patterns import PATTERNS

#: Budgets unless they are given: first, number, and the last as a share of the visible keys.
FIRST, COUNT, LAST, SHARE = 32, 7, 2_048, 0.25
#: Share for models, whose passages are short.
MODEL_SHARE = 0.5
#: Share of a decoder's passage that lies before the queries.
PREFIX = 0.75


def model_budgets(
    model: Outline, length: int, names: Sequence[str], asked: Sequence[int] | None
) -> tuple[int, ...]:
    """Budgets for the passages of a model, whose layers may have windows."""
    keys = int(PREFIX * length) + 1 if model.causal else length
    if asked is not None:
        longer = "" if length >= model.max_positions else ", or a longer context"
        return _checked(asked, keys, names, longer)
    keys = min(keys, model.window or length)
    found = _default(keys, MODEL_SHARE, names)
    if found is not None:
        return found
    needed = _fewest(MODEL_SHARE, names)
    context = math.ceil((needed - 1) / PREFIX) if model.causal else needed
    what = f"context is {length}, of which a query may see {keys} keys; it takes {needed}"
    if (model.window or needed) < needed:
        remedy = f"{model.name} has layers with a window of {model.window} tokens: give budgets"
    elif context <= model.max_positions:
        remedy = f"give a context of at least {context}, or budgets"
    else:
        remedy = f"{model.name} reads at most {model.max_positions} tokens: give budgets"
    raise InputError(f"{what} for a curve of these patterns; {remedy} of your own")


def law_budgets(tokens: int, names: Sequence[str], asked: Sequence[int] | None) -> tuple[int, ...]:
    """Budgets for sequences of synthetic tokens."""
    if asked is not None:
        return _checked(asked, tokens, names, ", or more tokens")
    found = _default(tokens, SHARE, names)
    if found is None:
        raise InputError(
            f"tokens is {tokens}; it takes at least {_fewest(SHARE, names)} for budgets of these "
            "patterns: give as many, or budgets of your own"
        )
    return found


def _checked(
    budgets: Sequence[int], keys: int, names: Sequence[str], otherwise: str
) -> tuple[int, ...]:
    """Budgets below the number of keys that every query may see."""
    sizes = tuple(int(r) for r in as_sizes(budgets, "budgets"))
    if len(sizes) < 2:
        raise InputError(f"budgets is {list(sizes)}; a curve needs at least 2 of them")
    if sizes[-1] >= keys:
        raise InputError(
            f"budgets go up to {sizes[-1]}, but a query may see only {keys} keys; "
            f"choose budgets below that{otherwise}"
        )
    for name in names:
        PATTERNS[name].check(sizes[0])
    return sizes


def _default(keys: int, share: float, names: Sequence[str]) -> tuple[int, ...] | None:
    """Budgets up to a share of the keys; None if there is no room for them."""
    if keys < _fewest(share, names):
        return None
    last = min(LAST, int(share * keys))
    first = FIRST if last >= 4 * FIRST else max(_smallest(names), last // 4)
    return tuple(int(r) for r in np.unique(np.geomspace(first, last, COUNT).round()))


def _smallest(names: Sequence[str]) -> int:
    """Smallest budget of all patterns, at least 2."""
    return max(2, *(PATTERNS[name].smallest for name in names))


def _fewest(share: float, names: Sequence[str]) -> int:
    """Fewest keys for a curve: its last budget is at least twice the first."""
    return math.ceil(2 * _smallest(names) / share)
