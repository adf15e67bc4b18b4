"""What errors are measured against: mean and covariance of the outputs in the limit, per scale."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from esscher.errors import InputError
from esscher.heads import ArrayHead, Head, WeightHead
from esscher.limits import NoLimit, limit_moments
from esscher.limits.existence import missing_limit
from esscher.validation import Array

#: Queries for limits that have to be sampled: at least this many, and this many times n_max, so
#: that the reference adds half a percent to the error at n_max.
FEWEST_SAMPLES, SAMPLES_PER_TOKEN = 65_536, 100
#: Queries by which a limit's existence is checked where there is no exact answer.
EXISTENCE_SAMPLES = 65_536


@dataclass(frozen=True, eq=False)
class Reference:
    """Mean and covariance of the limit's outputs, axes [scale, ...], and how they were found.

    ``mean_error`` and ``cov_error`` are root-sum-of-squares errors, one per scale; 0 when exact.
    """

    means: Array
    covariances: Array
    methods: tuple[str, ...]
    mean_error: Array
    cov_error: Array

    def notes(self) -> tuple[str, ...]:
        """What a reader must know about the reference."""
        worst = int(np.argmax(self.cov_error))
        if not self.cov_error[worst] > 0:
            return ()
        return (
            f"the limit is known by {self.methods[worst]}: its mean to {self.mean_error[worst]:.2g}"
            f" and its covariance to {self.cov_error[worst]:.2g}; errors below that mean nothing",
        )


def scaled_head(head: Head, alpha: float) -> Head:
    """Return the head with its tilts multiplied by ``alpha``."""
    if alpha == 1.0:
        return head
    if isinstance(head, WeightHead):
        return head.scaled(alpha)
    if isinstance(head, ArrayHead):
        return ArrayHead(head.tilts * alpha, head.keys, head.values)
    raise InputError(
        f"a {type(head).__name__} cannot be scaled; leave scales out, or use a head from weights "
        "or from arrays"
    )


def reference_moments(
    head: Head, scales: Sequence[float], *, largest: int, seed: int, queries: str
) -> Reference:
    """Moments of the limit for every scale, or an error that says why there is no limit.

    Parameters
    ----------
    head, scales
        The head, and what multiplies its tilts.
    largest
        Largest number of tokens of the sweep; a sampled limit takes many more queries than that.
    seed
        Seed of limits that have to be sampled.
    queries
        With ``"population"`` errors are measured against the limit at the queries themselves, and
        the moments are left at 0.
    """
    d, count = head.value_dim, len(scales)
    means, covariances = np.zeros((count, d)), np.zeros((count, d, d))
    methods, errors = [], np.zeros((2, count))
    for s, alpha in enumerate(scales):
        scaled = scaled_head(head, alpha)
        if queries == "population":
            _refuse(missing_limit(scaled, EXISTENCE_SAMPLES, seed), alpha)
            methods.append("at the queries themselves")
            continue
        found = limit_moments(scaled, FEWEST_SAMPLES, seed)
        samples = SAMPLES_PER_TOKEN * largest
        if not isinstance(found, NoLimit) and found.method == "sampling":
            found = limit_moments(scaled, max(samples, FEWEST_SAMPLES), seed, "sampling")
        if isinstance(found, NoLimit):
            _refuse(found, alpha)
            continue
        means[s], covariances[s] = found.mean, found.covariance
        methods.append(found.method)
        errors[:, s] = [np.linalg.norm(x) for x in (found.mean_error, found.covariance_error)]
    return Reference(means, covariances, tuple(methods), errors[0], errors[1])


def _refuse(missing: NoLimit | None, alpha: float) -> None:
    if missing is not None:
        at = "" if alpha == 1.0 else f" at scale {alpha:g}"
        raise InputError(
            f"{missing}{at}; there is nothing to converge to, so choose another law "
            "(references of finitely many tokens are not available yet)"
        )
