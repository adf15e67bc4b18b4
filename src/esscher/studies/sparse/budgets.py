"""Budgets: how many keys a query attends to, chosen or checked against what it may see."""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np

from esscher.core.errors import InputError
from esscher.core.validation import as_sizes
from esscher.engine.models.outline import Outline
from esscher.engine.patterns import PATTERNS
from esscher.engine.sampled.sizes import PREFIX

#: Budgets unless they are given: first, number, and the last as a share of the visible keys.
FIRST, COUNT, LAST, SHARE = 32, 7, 2_048, 0.25
#: Share for models, whose passages are short.
MODEL_SHARE = 0.5


def model_budgets(
    model: Outline, length: int, names: Sequence[str], given: Sequence[int] | None
) -> tuple[int, ...]:
    """Return budgets for passages of a length; layers of the model may have windows."""
    keys = int(PREFIX * length) + 1 if model.causal else length
    if given is not None:
        remedy = "" if length >= model.max_positions else ", or a longer context"
        return _given(given, keys, names, remedy)
    keys = min(keys, model.window or length)
    budgets, needed = _default(keys, MODEL_SHARE, names)
    if budgets:
        return budgets
    context = math.ceil((needed - 1) / PREFIX) if model.causal else needed
    if (model.window or needed) < needed:
        remedy = f"{model.name} has layers with a window of {model.window} tokens: give budgets"
    elif context <= model.max_positions:
        remedy = f"give a context of at least {context}, or budgets"
    else:
        remedy = f"{model.name} reads at most {model.max_positions} tokens: give budgets"
    raise InputError(
        f"context is {length}, of which a query may see {keys} keys; it takes {needed} for a curve "
        f"of these patterns; {remedy} of your own"
    )


def law_budgets(tokens: int, names: Sequence[str], given: Sequence[int] | None) -> tuple[int, ...]:
    """Return budgets for a sequence of synthetic tokens."""
    if given is not None:
        return _given(given, tokens, names, ", or more tokens")
    budgets, needed = _default(tokens, SHARE, names)
    if not budgets:
        raise InputError(
            f"tokens is {tokens}; it takes at least {needed} for budgets of these "
            "patterns: give as many, or budgets of your own"
        )
    return budgets


def _default(keys: int, share: float, names: Sequence[str]) -> tuple[tuple[int, ...], int]:
    """Budgets up to a share of the keys, none if there are too few; and how many it takes.

    The last budget must be at least twice the first.
    """
    smallest = max(2, *(PATTERNS[name].smallest for name in names))
    needed = math.ceil(2 * smallest / share)
    if keys < needed:
        return (), needed
    last = min(LAST, int(share * keys))
    first = FIRST if last >= 4 * FIRST else max(smallest, last // 4)
    return tuple(int(r) for r in np.unique(np.geomspace(first, last, COUNT).round())), needed


def _given(budgets: Sequence[int], keys: int, names: Sequence[str], remedy: str) -> tuple[int, ...]:
    """Budgets that are given, if they lie below the keys that every query may see."""
    sizes = tuple(int(r) for r in as_sizes(budgets, "budgets"))
    if len(sizes) < 2:
        raise InputError(f"budgets is {list(sizes)}; a curve needs at least 2 of them")
    if sizes[-1] >= keys:
        raise InputError(
            f"budgets go up to {sizes[-1]}, but a query may see only {keys} keys; "
            f"choose budgets below that{remedy}"
        )
    for name in names:
        PATTERNS[name].check(sizes[0])
    return sizes
