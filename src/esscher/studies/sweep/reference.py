"""The reference of the errors: mean and covariance of the limit's outputs, per scale."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from esscher.core.errors import InputError
from esscher.core.streams import random_stream
from esscher.core.validation import Array
from esscher.math.heads import ArrayHead, Head, WeightHead
from esscher.math.limits import NoLimit, limit_moments, missing_limit

if TYPE_CHECKING:
    from esscher.studies.sweep.study import SweepStudy

#: Queries for limits that have to be sampled: at least this many, and this many times n_max, so
#: that the reference adds half a percent to the error at n_max.
FEWEST_SAMPLES, SAMPLES_PER_TOKEN = 65_536, 100
#: Queries by which a limit's existence is checked where there is no exact answer.
EXISTENCE_SAMPLES = 65_536
#: Rows of a head from arrays up to which its limit is computed at all of them, once.
ALL_ROWS = 131_072


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
    extra_notes: tuple[str, ...] = ()

    def notes(self) -> tuple[str, ...]:
        """Say how the limit is known, and how well."""
        worst = int(np.argmax(self.cov_error))
        if not self.cov_error[worst] > 0:
            return self.extra_notes
        return (
            *self.extra_notes,
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
        f"a {type(head).__name__} cannot be scaled; leave alpha out, or use a head from weights "
        "or from arrays"
    )


def measured_head(head: Head, study: SweepStudy) -> Head:
    """Return the head whose tokens are drawn: the given one, or tokens drawn from it once."""
    count = study.reference_tokens
    if count is None:
        return head
    tokens = head.sample(count, random_stream(study.seed, "reference"))
    return ArrayHead(tokens.tilts, tokens.keys, tokens.values)


def reference_outputs(head: Head, study: SweepStudy) -> Array | None:
    """The limit's outputs at all rows of a head from arrays, axes [scale, row, d_v]; else None."""
    if not isinstance(head, ArrayHead) or len(head.keys) > ALL_ROWS:
        return None
    scales = study.alpha
    # Imported here: `import esscher` must not cost the import of torch.
    from esscher.engine.attention.outputs import attention_outputs

    return attention_outputs(
        head.tilts,
        head.keys,
        head.values,
        scales=scales,
        dtype=study.dtype,
        device=study.device,
    )


def reference_moments(head: Head, outputs: Array | None, study: SweepStudy) -> Reference:
    """Moments of the limit for every scale.

    Parameters
    ----------
    head
        The head whose tokens are drawn.
    outputs
        What :func:`reference_outputs` found: their moments are those of the limit, exactly.
    study
        The sweep. With queries from the population errors are measured against the limit at the
        queries themselves, and the moments are left at 0.
    """
    d, scales = head.value_dim, study.alpha
    means, covariances = np.zeros((len(scales), d)), np.zeros((len(scales), d, d))
    errors = np.zeros((2, len(scales)))
    if study.queries == "population":
        methods = ["at the queries themselves"] * len(scales)
        return Reference(means, covariances, tuple(methods), *errors)
    if outputs is not None:
        means, covariances = moments_of_rows(outputs)
        methods = [f"attention over all {len(outputs[0])} tokens"] * len(scales)
        return Reference(means, covariances, tuple(methods), *errors)
    methods = []
    samples = max(SAMPLES_PER_TOKEN * study.sizes[-1], FEWEST_SAMPLES)
    for s, alpha in enumerate(scales):
        scaled, seed = scaled_head(head, alpha), study.seed
        found = limit_moments(scaled, FEWEST_SAMPLES, seed)
        if not isinstance(found, NoLimit) and found.method == "sampling":
            found = limit_moments(scaled, samples, seed, "sampling")
        if isinstance(found, NoLimit):  # reference tokens stand in where this can happen
            raise InputError(f"{found}; pass reference_tokens to compare with a finite reference")
        means[s], covariances[s] = found.mean, found.covariance
        methods.append(found.method)
        errors[:, s] = [np.linalg.norm(x) for x in (found.mean_error, found.covariance_error)]
    return Reference(means, covariances, tuple(methods), *errors)


def moments_of_rows(outputs: Array) -> tuple[Array, Array]:
    """Mean and covariance over the queries, in float64, of arrays with axes [scale, query, d_v]."""
    outputs = outputs.astype(np.float64)
    means = outputs.mean(axis=1)
    centred = outputs - means[:, None]
    return means, centred.transpose(0, 2, 1) @ centred / outputs.shape[1]


def reference_notes(head: Head, study: SweepStudy) -> tuple[str, ...]:
    """Say that tokens stand for the law, and why."""
    count = study.reference_tokens
    if count is None:
        return ()
    seed = study.seed
    missing = next(
        (
            found
            for alpha in study.alpha[::-1]
            if (found := missing_limit(scaled_head(head, alpha), EXISTENCE_SAMPLES, seed))
        ),
        None,
    )
    why = "" if missing is None else f"{missing}: "
    return (
        f"{why}errors are against attention over {count} tokens drawn once, whose law the samples "
        "follow; exponents describe the approach to those tokens",
    )
