"""Rates of a sweep beside their predictions, and what they say about laws and about theory.

Everything is counted in three classes: what is decided one way, what is decided the other way, and
what these replicates cannot decide. Fewer replicates give more of the last, never of the first.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace

import numpy as np

from esscher.core.validation import Array
from esscher.math.statistics import Rate, fit_rate, joint_law
from esscher.math.statistics.records import Agreement, FittedRate, SharedLaw, agreement
from esscher.math.theory import exponents
from esscher.studies.sweep.predictions import ScalePrediction

#: Classes of agreement with a prediction in the order in which they are told.
AGREEMENTS: tuple[Agreement, ...] = ("agrees", "differs", "undecided")
#: Verdicts on laws by the class in which they are counted.
VERDICTS = {
    "power": "straight or as predicted",
    "as predicted": "straight or as predicted",
    "floor": "bent",
    "logarithmic": "bent",
    "two powers": "bent",
    "bent": "bent",
    "undecided": "undecided",
}


def compared_rate(
    errors: Array,
    sizes: Sequence[int],
    metric: str,
    horizon: float,
    known: ScalePrediction | None,
    *,
    summary: str,
    level: float,
    seed: int,
) -> Rate:
    """Fit a rate and put it beside what theory says.

    Predicted curves are those of the mean error: a median is compared with their slope alone.
    """
    if known is None:
        found = fit_rate(errors, sizes, summary=summary, level=level, seed=seed)
        published = exponents(horizon)
        return found.with_predictions(
            paper_reference=published.paper_reference, paper_bound=published.paper_bound
        )
    curve = known.errors.get(metric)
    found = fit_rate(
        errors,
        sizes,
        summary=summary,
        level=level,
        seed=seed,
        burn_in=float(np.exp(min(known.log_burn_in, 700.0))),
        predicted=curve if summary == "mean" else None,
    )
    used = np.isin(sizes, found.sizes)
    return replace(found, predicted_curve=known.curve(metric, sizes)).with_predictions(
        predicted=None if curve is None else found.slope_of(np.asarray(curve)[used]),
        sharp=known.sharp[metric],
        paper_reference=known.paper_reference,
        paper_bound=known.paper_bound,
    )


def shared_law(
    errors: Mapping[str, Array], sizes: Sequence[int], known: ScalePrediction | None, seed: int
) -> SharedLaw:
    """Test the errors of one scale together, against their predictions too if there are any."""
    return joint_law(errors, sizes, seed=seed, predicted=None if known is None else known.errors)


def agreement_counts(fits: Iterable[FittedRate]) -> dict[str, int]:
    """How many predicted exponents agree with the measured ones, differ, or are undecided."""
    known = [fit for fit in fits if fit.predicted is not None]
    found = Counter(agreement(fit.interval, fit.predicted or 0.0) for fit in known)
    return {str(name): found[name] for name in AGREEMENTS} if known else {}


def floor_seen(fit: FittedRate) -> tuple[float | None, float | None]:
    """Limit of the floor and power of the test: against the prediction where that decides."""
    law = fit.selection
    if law.verdict == "as predicted" and law.predicted is not None:
        return law.predicted.floor_share, law.predicted.floor_power
    return law.floor_share, law.power.get("floor")


def law_counts(verdicts: Iterable[str]) -> dict[str, int]:
    """How many laws are decided, bent, and undecided."""
    found = Counter(VERDICTS[verdict] for verdict in verdicts)
    return {name: found[name] for name in dict.fromkeys(VERDICTS.values())}


def extrapolates(fit: FittedRate) -> bool:
    """Whether an exponent may be taken beyond the sizes: trusted, and a power law is decided."""
    return fit.trusted and fit.selection.verdict == "power"


def count_words(counts: Mapping[str, int]) -> str:
    """The counts as words, such as ``4 agree, 1 differs, 7 undecided``."""
    plural = {"agrees": "agree", "differs": "differ"}
    return ", ".join(
        f"{count} {name if count == 1 else plural.get(name, name)}"
        for name, count in counts.items()
    )
