"""The first sentences of a probe: how far off heads are at the model's own context length."""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np

from esscher.core.shown import counted, rates_said, two_digits
from esscher.math.statistics.records import class_counts
from esscher.studies.probe.records import ProbeHead

#: Output error from which a head is one to leave alone: sampling it is no estimate.
LARGE = 0.5
#: Output error whose tokens are told first.
WANTED = 0.1
#: Heads that are named.
NAMED = 5


def headline(heads: Sequence[ProbeHead]) -> str:
    """The answer in a few sentences."""
    if not heads:
        return "Nothing has been measured yet."
    return " ".join([_needed(heads), _at_context(heads), _keep_all(heads), _rates(heads)])


def _needed(heads: Sequence[ProbeHead]) -> str:
    """Tokens for 10% output error, of the typical head and of the one that needs most."""
    tokens = np.array([_tokens(head) for head in heads])
    keys = np.array([head.keys for head in heads])
    most = int(np.argmax(tokens))
    worst = f"{heads[most].layer}.{heads[most].head}"
    typical = float(np.median(tokens))
    return (
        f"For {WANTED:.0%} output error a typical head needs "
        f"{_count(typical, float(np.median(keys)))}, the neediest ({worst}) "
        f"{_count(float(tokens[most]), float(keys[most]))}."
    )


def _tokens(head: ProbeHead) -> float:
    found = head.tokens_for.percent_10
    return math.inf if found is None else found


def _count(tokens: float, read: float) -> str:
    """A number of tokens; beyond those that were read it is extrapolated, and says so."""
    if not math.isfinite(tokens):
        return "more tokens than can be predicted"
    shown = two_digits(max(tokens, 1.0)) if tokens >= 10 else f"{tokens:.0f}"
    return f"~{shown} tokens (extrapolated)" if tokens > read else f"{shown} tokens"


def _at_context(heads: Sequence[ProbeHead]) -> str:
    errors = np.array([head.at_context.error for head in heads])
    worst = heads[int(np.argmax(errors))]
    n = worst.at_context.n
    beyond = any(head.at_context.extrapolated for head in heads)
    return (
        f"At {n:,.0f} tokens, the model's own context length, a typical head is "
        f"{_percent(np.median(errors))} off its limit, the worst ({worst.layer}.{worst.head}) "
        f"{_percent(worst.at_context.error)}" + (" (extrapolated)." if beyond else ".")
    )


def _keep_all(heads: Sequence[ProbeHead]) -> str:
    """Heads whose output is not estimated by a sample of that many tokens."""
    large = sorted(
        (head for head in heads if head.at_context.interval[0] > LARGE),
        key=lambda head: -head.at_context.error,
    )
    if not large:
        return f"No head is certainly more than {LARGE:.0%} off."
    names = ", ".join(f"{head.layer}.{head.head}" for head in large[:NAMED])
    more = f" and {len(large) - NAMED} more" if len(large) > NAMED else ""
    return (
        f"{counted(len(large), 'head')} ({names}{more}) "
        f"{'is' if len(large) == 1 else 'are'} more than {LARGE:.0%} off: keep all tokens there."
    )


def _rates(heads: Sequence[ProbeHead]) -> str:
    counts = class_counts(head.exponent("mean")[1] for head in heads)
    how = "measured" if heads[0].fit is not None else "predicted"
    return f"The error of the mean output falls {rates_said(counts, 'head')} ({how})."


def _percent(share: float) -> str:
    return f"{100 * share:.2g}%" if share < 0.1 else f"{share:.0%}"
