"""The infinite-token limit as the samples measure it, against the exact recursion.

Moments of n tokens are biased by b/n plus higher orders. Two sizes cancel the first: in every
replicate ``(n2 m2 - n1 m1)/(n2 - n1)``. Over replicates these have a mean and a standard error,
and each number is compared with the recursion in units of the latter.

A bias of b/n takes ``H^2 < 1/2``, where the mean squared error of the map falls like 1/n, and sizes
past the burn-in ``e^{F^2 + tau^2}``. Otherwise the samples may be far from their limit whatever it
is: then no verdict is given. Nor is one when layers have amplified the error of a token to the size
of the token itself: the noise would then agree with any recursion.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from msgspec.structs import replace
from scipy import stats

from esscher.core.validation import Array
from esscher.math.limits import GaussianStack, StackLimit
from esscher.math.statistics import LEVEL
from esscher.studies.deep.records import LayerLimit
from esscher.studies.deep.simulate import moment_entries

#: Squared horizon from which on the map's mean squared error no longer falls like 1/n.
LARGEST_SQUARE = 0.5
#: Relative error of a token, at the smaller size, from which on there is no verdict.
LARGEST_ERROR = 0.3


def extrapolate(moments: Array, sizes: tuple[int, int]) -> Array:
    """Richardson's extrapolation of moments with axes [replicate, size, ...] to infinite n."""
    small, large = sizes
    return np.asarray((large * moments[:, 1] - small * moments[:, 0]) / (large - small))


def doubts(stack: GaussianStack, size: int, errors: Sequence[float]) -> list[str | None]:
    """Why samples of a size cannot be extrapolated, by layer; None where they can.

    A layer inherits the doubts about those before it.

    Parameters
    ----------
    stack
        The stack, its heads over the laws that reach them.
    size
        The smaller of the two sizes.
    errors
        Relative error of a token at that size, after every layer.
    """
    out: list[str | None] = []
    doubt: str | None = None
    for i, layer in enumerate(stack.layers):
        for head in layer.heads:
            log_burn_in = head.frobenius**2 + float(head.tau @ head.tau)
            if doubt is None and head.horizon**2 >= LARGEST_SQUARE:
                doubt = (
                    f"layer {i} has H = {head.horizon:.3g}, and from H^2 = {LARGEST_SQUARE} on the "
                    "bias does not fall like 1/n"
                )
            elif doubt is None and np.log(size) < log_burn_in:
                doubt = f"n = {size} is below the burn-in of layer {i}, e^{log_burn_in:.3g} tokens"
        if doubt is None and errors[i] > LARGEST_ERROR:
            doubt = (
                f"at n = {size} a token is off by {100 * errors[i]:.3g}% after layer {i}; from "
                f"{100 * LARGEST_ERROR:g}% on the noise would agree with anything"
            )
        out.append(doubt)
    return out


def compare_with_recursion(
    moments: Array,
    sizes: tuple[int, int],
    limit: StackLimit,
    doubt: Sequence[str | None] | None = None,
) -> tuple[LayerLimit, ...]:
    """Measured limit of every layer against the recursion.

    Parameters
    ----------
    moments
        Axes [replicate, size, layer, entry]: two sizes, entries as ``moment_entries`` has them.
    sizes
        The two sizes.
    limit
        The exact recursion.
    doubt
        By layer, why there is no verdict; see :func:`doubts`.
    """
    measured = extrapolate(moments, sizes)
    count, _, entries = measured.shape
    out = []
    for i in range(limit.depth):
        exact = moment_entries(limit.means[i + 1], limit.covariances[i + 1])
        found = LayerLimit(
            layer=i,
            entries=entries,
            measured=tuple(measured[:, i].mean(axis=0).tolist()),
            exact=tuple(exact.tolist()),
            doubt=None if doubt is None else doubt[i],
        )
        if count > 1:
            error = measured[:, i].std(axis=0, ddof=1) / np.sqrt(count)
            scores = (measured[:, i].mean(axis=0) - exact) / error
            bound = float(stats.t.ppf(1 - (1 - LEVEL) / (2 * entries), count - 1))
            largest = float(np.abs(scores).max())
            found = replace(
                found,
                standard_error=tuple(error.tolist()),
                largest=largest,
                rms=float(np.sqrt(np.mean(scores**2))),
                resolution=float(
                    np.median(error) / (np.trace(limit.covariances[i + 1]) / limit.means.shape[1])
                ),
                bound=bound,
                agrees=None if found.doubt else bool(largest <= bound),
            )
        out.append(found)
    return tuple(out)
