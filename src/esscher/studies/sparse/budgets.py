"""Budgets: how many keys a query attends to, chosen or checked against what it may see."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence

import numpy as np

from esscher.core.errors import InputError
from esscher.core.validation import as_sizes
from esscher.engine.models.outline import Outline
from esscher.engine.patterns import PATTERNS
from esscher.engine.sampled.sizes import PREFIX

#: Budgets unless they are given: first, number, and the last as a share of the visible keys.
FIRST, COUNT, LAST, SHARE = 32, 7, 2_048, 0.25
#: The share for models, whose passages are short.
MODEL_SHARE = 0.5


def model_budgets(
    model: Outline, length: int, names: Sequence[str], given: Sequence[int] | None
) -> tuple[int, ...]:
    """Return budgets for passages of a length; layers of the model may have windows."""
    keys = int(PREFIX * length) + 1 if model.causal else length
    window = model.window if given is None and model.window is not None else math.inf

    def remedy(needed: int) -> str:
        """A length at which a query sees enough keys, if there is one."""
        shortest = math.ceil((needed - 1) / PREFIX) if model.causal else needed
        possible = needed <= window and shortest <= model.max_positions
        return f", or a context of at least {shortest}" if possible else ""

    return choose_budgets(int(min(keys, window)), MODEL_SHARE, names, given, remedy)


def choose_budgets(
    keys: int,
    share: float,
    names: Sequence[str],
    given: Sequence[int] | None,
    remedy: Callable[[int], str],
) -> tuple[int, ...]:
    """Return budgets up to a share of the keys that a query may see, or those that are given.

    The last one is at least twice the first. If there are too few keys, ``remedy`` takes how many
    are needed and says how to have them.
    """
    if given is not None:
        return _given(given, keys, names, remedy)
    smallest = max(2, *(PATTERNS[name].smallest for name in names))
    needed = math.ceil(2 * smallest / share)
    if keys < needed:
        raise InputError(
            f"a query may see only {keys} keys, and a curve of these patterns takes {needed}; give "
            f"budgets of your own{remedy(needed)}"
        )
    last = min(LAST, int(share * keys))
    first = FIRST if last >= 4 * FIRST else max(smallest, last // 4)
    return tuple(int(r) for r in np.unique(np.geomspace(first, last, COUNT).round()))


def _given(
    budgets: Sequence[int], keys: int, names: Sequence[str], remedy: Callable[[int], str]
) -> tuple[int, ...]:
    """Budgets that are given, if they lie below the keys that every query may see."""
    sizes = tuple(int(r) for r in as_sizes(budgets, "budgets"))
    if len(sizes) < 2:
        raise InputError(f"budgets is {list(sizes)}; a curve needs at least 2 of them")
    if sizes[-1] >= keys:
        raise InputError(
            f"budgets go up to {sizes[-1]}, but a query may see only {keys} keys; "
            f"choose budgets below that{remedy(sizes[-1] + 1)}"
        )
    for name in names:
        PATTERNS[name].check(sizes[0])
    return sizes
