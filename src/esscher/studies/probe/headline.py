"""The first sentences of a probe: how far off heads are at the model's own context length."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from esscher.core.shown import counted
from esscher.math.statistics.classes import class_counts, class_words
from esscher.studies.probe.records import ProbeHead

#: Output error from which a head is one to leave alone: sampling it is no estimate.
LARGE = 0.5
#: Heads that are named.
NAMED = 5


def headline(heads: Sequence[ProbeHead]) -> str:
    """The answer in a few sentences."""
    if not heads:
        return "Nothing has been measured yet."
    return " ".join([_at_context(heads), _leave_alone(heads), _rates(heads)])


def _at_context(heads: Sequence[ProbeHead]) -> str:
    errors = np.array([head.at_context.error for head in heads])
    worst = heads[int(np.argmax(errors))]
    n = worst.at_context.n
    beyond = any(head.at_context.extrapolated for head in heads)
    return (
        f"At {n:,.0f} tokens, the model's own context length, the output of a typical head is "
        f"{_percent(np.median(errors))} from its limit, that of the worst "
        f"({worst.layer}.{worst.head}) {_percent(worst.at_context.error)}"
        + (", extrapolated beyond the tokens that were read." if beyond else ".")
    )


def _leave_alone(heads: Sequence[ProbeHead]) -> str:
    """Heads whose output is not estimated by a sample of that many tokens."""
    large = sorted(
        (head for head in heads if head.at_context.interval[0] > LARGE),
        key=lambda head: -head.at_context.error,
    )
    if not large:
        return f"No head is surely more than {LARGE:.0%} off."
    names = ", ".join(f"{head.layer}.{head.head}" for head in large[:NAMED])
    more = f" and {len(large) - NAMED} more" if len(large) > NAMED else ""
    return (
        f"{counted(len(large), 'head')} ({names}{more}) "
        f"{'is' if len(large) == 1 else 'are'} more than {LARGE:.0%} off: leave them alone when "
        "tokens are dropped."
    )


def _rates(heads: Sequence[ProbeHead]) -> str:
    counts = class_counts(head.exponent("mean")[1] for head in heads)
    how = "measured" if heads[0].fit is not None else "predicted"
    return f"Exponents of the mean output, {how}: {class_words(counts)}."


def _percent(share: float) -> str:
    return f"{100 * share:.2g}%" if share < 0.1 else f"{share:.0%}"
