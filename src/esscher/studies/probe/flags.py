"""Failure signatures: why a head's numbers may not be what they seem, each with its evidence."""

from __future__ import annotations

import numpy as np

from esscher.math.statistics.records import FittedRate
from esscher.math.tails.verdict import HEAVY
from esscher.studies.probe.records import Flag, HeadStatistics, KeyTails

#: Effective tokens of the median query below which a head is called hardmax-like.
HARD = 4.0
#: Share of queries past freezing, of attention in sinks, and of reference error in the smallest
#: measured error, from which each is worth a flag.
FROZEN, SINKS, REFERENCE = 0.1, 0.3, 0.2


def find_flags(
    stats: HeadStatistics,
    tails: KeyTails | None,
    mean: FittedRate,
    largest: int,
    reference_share: float,
) -> tuple[Flag, ...]:
    """Flags of a head.

    Parameters
    ----------
    stats, tails
        What one pass says about the head, and the tails of its keys.
    mean
        Fitted rate of the mean output.
    largest
        Largest size n.
    reference_share
        Standard error of the reference over the error measured at the largest size.
    """
    flags = []

    def add(flag: str, evidence: str) -> None:
        flags.append(Flag(flag=flag, evidence=evidence))

    if stats.horizon > 1:
        add("horizon", f"H = {stats.horizon:.2f} > 1: stable regime, exponent below 1/2")
    if stats.log_burn_in > np.log(largest):
        add(
            "burn-in",
            f"F^2 + tau^2 = {stats.log_burn_in:.1f} exceeds ln n_max = {np.log(largest):.1f}: "
            "no asymptotic exponent shows on this range",
        )
    if stats.ess.median < HARD:
        add("hardmax", f"the median query attends {stats.ess.median:.1f} tokens")
    if stats.frozen_share > FROZEN:
        add("frozen", f"{stats.frozen_share:.0%} of the queries are past freezing at n = {largest}")
    if tails is not None and tails.verdict in HEAVY:
        add("heavy tails", f"{tails.verdict}: {tails.evidence}")
    mass = stats.sinks.share + stats.delimiter_share
    if mass > SINKS:
        add("sinks", f"{mass:.0%} of the attention goes to sinks and delimiters")
    k = stats.khat.k
    if k >= 1:
        add("k-hat", f"k-hat = {k:.2f} >= 1 without sinks: no useful limit")
    elif k > 0.5:
        low, high = stats.khat.interval
        add(
            "slow tail",
            f"k-hat = {k:.2f} ({low:.2f} to {high:.2f}) > 1/2: a few tokens "
            "receive so much attention that the exponent of the mean is below 1/2",
        )
    if reference_share > REFERENCE:
        add(
            "reference",
            f"the reference's own error is {reference_share:.0%} of the smallest error measured",
        )
    if mean.law != "power":
        add("law", f"the error of the mean follows a {mean.law} law, not a power law")
    elif not mean.trusted:
        add("fit", f"exponent of the mean: {'; '.join(mean.reasons)}")
    return tuple(flags)
