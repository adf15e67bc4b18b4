"""Flags: what stands out at a head, for mean, covariance and map apart, with the evidence.

A flag about an exponent is a statement about its interval, and there are as many statements as
heads: p-values (Student's, so that few replicates decide little) are adjusted over all of them
(Holm), so that with 95% probability not one flag of a kind is false. How often those that one pass
gives are right has been measured (documentation, "Flags against measurements").
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import scipy
from msgspec import structs

from esscher.core.validation import Array
from esscher.engine.sampled.sizes import METRICS
from esscher.math.statistics.intervals import family_wise
from esscher.math.theory.cloud import EFFORT
from esscher.studies.probe.records import Flag, ProbeHead

#: Names of the errors in flags.
WORDS = {"mean": "mean", "cov": "covariance", "map": "map"}
#: Level of the flags.
ALPHA = 0.05
#: Errors whose predicted exponents are flagged. That of the covariance was not worth it: it was
#: raised at 10 of 75 heads that were measured to be slow.
PREDICTED = ("mean", "map")
#: Predicted exponents below this are slow: 1/2 less twice the error of predicted exponents.
PREDICTED_SLOW = 0.48
#: Share of reference error in the smallest measured error from which it is worth a flag.
REFERENCE = 0.2


def with_flags(heads: Sequence[ProbeHead]) -> list[ProbeHead]:
    """Return the heads with their flags."""
    found: list[list[Flag]] = [[] for _ in heads]
    for metric in METRICS:
        for i, flag in (
            *_measured_slow(heads, metric),
            *(predicted_slow(heads, metric) if metric in PREDICTED else ()),
            *_disagreeing(heads, metric),
        ):
            found[i].append(flag)
    for i, flag in _against_gaussian(heads):
        found[i].append(flag)
    for head, flags in zip(heads, found, strict=True):
        flags += _of_one(head)
    return [
        structs.replace(head, flags=tuple(flags)) for head, flags in zip(heads, found, strict=True)
    ]


def _measured_slow(heads: Sequence[ProbeHead], metric: str) -> list[tuple[int, Flag]]:
    """Measured exponents below 1/2."""
    values = np.array([_exponent(head, metric) for head in heads])
    slow = _below(values, 0.5)
    return [
        (i, Flag(flag=f"slow {WORDS[metric]}", evidence=_evidence("measured", *values[i][:2])))
        for i in slow
    ]


def predicted_slow(heads: Sequence[ProbeHead], metric: str) -> list[tuple[int, Flag]]:
    """Exponents that one pass predicts below 1/2, beyond what the prediction may be off."""
    values = np.array([_predicted(head, metric) for head in heads])
    slow = _below(values, PREDICTED_SLOW)
    return [
        (
            i,
            Flag(
                flag=f"slow {WORDS[metric]} (predicted)",
                evidence=_evidence("predicted on these sizes", *values[i][:2]),
            ),
        )
        for i in slow
    ]


def _disagreeing(heads: Sequence[ProbeHead], metric: str) -> list[tuple[int, Flag]]:
    """Exponents that were measured other than predicted on the same sizes."""
    measured = np.array([_exponent(head, metric) for head in heads])
    predicted = np.array([_predicted(head, metric) for head in heads])
    predicted[:, 0] = [_number(head.predicted_exponent(metric)) for head in heads]
    noise = np.hypot(measured[:, 1], predicted[:, 1])
    freedom = np.minimum(measured[:, 2], predicted[:, 2])
    apart = _apart(measured[:, 0] - predicted[:, 0], noise, freedom)
    return [
        (
            i,
            Flag(
                flag=f"prediction off ({WORDS[metric]})",
                evidence=f"{_evidence('measured', *measured[i][:2])}, "
                f"{_evidence('predicted', *predicted[i][:2])}",
            ),
        )
        for i in apart
    ]


def _against_gaussian(heads: Sequence[ProbeHead]) -> list[tuple[int, Flag]]:
    """Measured exponents of the mean other than those of Gaussian tokens of the same horizon."""
    values = np.array([_exponent(head, "mean") for head in heads])
    sharp = np.array([head.predicted.sharp.mean for head in heads])
    apart = _apart(values[:, 0] - sharp, values[:, 1], values[:, 2])
    return [
        (
            i,
            Flag(
                flag="not Gaussian",
                evidence=f"{_evidence('measured', *values[i][:2])}, Gaussian tokens of H = "
                f"{heads[i].horizon:.2f} would tend to {sharp[i]:.3f} (conjectured)",
            ),
        )
        for i in apart
    ]


def _of_one(head: ProbeHead) -> list[Flag]:
    """Flags that depend on the head alone."""
    flags = []
    if head.reference.largest_share > REFERENCE:
        share = head.reference.largest_share
        flags.append(
            Flag(
                flag="reference",
                evidence=f"the reference's own error is {share:.0%} of the smallest error measured",
            )
        )
    if head.fit is not None and not head.fit.mean.trusted:
        reasons = "; ".join(head.fit.mean.reasons)
        flags.append(Flag(flag="fit", evidence=f"exponent of the mean: {reasons}"))
    return flags


def _exponent(head: ProbeHead, metric: str) -> tuple[float, float, float]:
    """Measured exponent, standard error and degrees of freedom; nan where there is none."""
    if head.fit is None or head.fit[metric].standard_error is None:
        return np.nan, np.nan, np.nan
    fit = head.fit[metric]
    return fit.exponent, float(fit.standard_error or 0.0), fit.n_replicates - 1.0


def _predicted(head: ProbeHead, metric: str) -> tuple[float, float, float]:
    """Exponent that one pass predicts, its standard error and degrees of freedom."""
    found = head.predicted_error[metric]
    if found.exponent is None or found.exponent_error is None:
        return np.nan, np.nan, np.nan
    return found.exponent, found.exponent_error, EFFORT.groups - 1.0


def _number(value: float | None) -> float:
    return np.nan if value is None else value


def _below(found: Array, bar: float) -> list[int]:
    """Which exponents [head, (value, error, freedom)] are below a bar, over all of them."""
    values, noise, freedom = found.T
    return _adjusted(scipy.special.stdtr(freedom, (values - bar) / _positive(noise)))


def _apart(differences: Array, noise: Array, freedom: Array) -> list[int]:
    """Which differences are not 0, over all of them."""
    return _adjusted(2 * scipy.special.stdtr(freedom, -np.abs(differences) / _positive(noise)))


def _positive(noise: Array) -> Array:
    return np.where(noise > 0, noise, 1e-12) + 0 * noise  # nan stays


def _adjusted(p: Array) -> list[int]:
    """Tests that are significant, all of them taken together."""
    return [i for i, value in enumerate(family_wise(p).tolist()) if value <= ALPHA]


def _evidence(what: str, value: float, noise: float) -> str:
    return f"exponent {what}: {value:.3f} ± {noise:.3f}"
