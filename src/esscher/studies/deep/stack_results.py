"""From the replicates of a Gaussian stack to errors, growth and exponents, and to its limit.

The limit is measured, against the exact recursion. Moments of n tokens are biased by b/n plus
higher orders. Two sizes cancel the first: in every replicate ``(n2 m2 - n1 m1)/(n2 - n1)``. Over
replicates these have a mean and a standard error, and each number is compared with the recursion in
units of the latter.

A bias of b/n takes ``H^2 < 1/2``, where the mean squared error of the map falls like 1/n, and sizes
past the burn-in ``e^{F^2 + tau^2}``. Otherwise the samples may be far from their limit whatever it
is: then no verdict is given. Nor is one when layers have amplified the error of a token to the size
of the token itself: the noise would then agree with any recursion. For the same reason the measured
limit agrees only if the intervals of ALL entries (together at 95%) end within a tenth of a variance
of the recursion: with fewer replicates they end beyond it, and the verdict is undecided.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np
import pandas as pd
import scipy
from msgspec.structs import replace

from esscher.core.shown import counted
from esscher.core.validation import Array
from esscher.math.heads import WeightHead
from esscher.math.limits import GaussianStack, StackLimit
from esscher.math.statistics import LEVEL
from esscher.math.theory import exponents
from esscher.runs.folder import Cell, CellRun
from esscher.studies.deep.headlines import NOTHING, SAME, stack_headline
from esscher.studies.deep.intervals import fitted, growth_factors, means
from esscher.studies.deep.records import DeepLayer, LayerLimit
from esscher.studies.deep.result import Deep
from esscher.studies.deep.stack import METRICS, RESOLUTION, moment_entries
from esscher.studies.deep.study import DeepStackStudy

#: Fields of the asymptotic exponents that belong to the metrics.
_SHARP = {"map": "map_rms", "mean": "mean", "cov": "cov"}


def assemble(study: DeepStackStudy, cells: Mapping[str, Cell], run: CellRun) -> Deep:
    """Return layers, overall growth and the measured limit."""
    if not cells:
        return Deep.of(run, study, 0, NOTHING, sizes=study.sizes)
    tables = [_checked(name, cell, study, run) for name, cell in cells.items()]
    errors, moments = _arrays(tables, study)
    stack, exact = study.stack()
    pair = (study.sizes[-2], study.sizes[-1])
    doubt = doubts(stack, pair[0], errors["map"][:, :, -2].mean(axis=0).tolist())
    growth = {
        metric: [
            growth_factors(errors[metric][:, :, j], study.seed) for j in range(len(study.sizes))
        ]
        for metric in METRICS
    }
    asymptotic = exponents(study.horizon)
    burn_in = np.exp(np.maximum.accumulate([h.frobenius**2 + h.tau @ h.tau for h in _heads(stack)]))
    layers = tuple(
        DeepLayer(
            layer=i,
            horizon=float(exact.horizons[i][0]),
            error={m: means(errors[m][:, i], 0.0) for m in METRICS},
            growth={m: tuple(found.steps[i] for found in growth[m]) for m in METRICS},
            fit={
                m: fitted(
                    errors[m][:, i], study.sizes, study.seed,
                    sharp=getattr(asymptotic, _SHARP[m]), resolution=RESOLUTION,
                    burn_in=float(burn_in[i]),
                )
                for m in METRICS
            },
        )
        for i in range(study.depth)
    )  # fmt: skip
    overall = {m: tuple(found.overall for found in growth[m]) for m in METRICS}
    limit = compare_with_recursion(moments, pair, exact, doubt)
    return Deep.of(
        run,
        study,
        len(cells),
        stack_headline(study.sizes, layers, overall["map"][-1], limit[-1]),
        sizes=study.sizes,
        layers=layers,
        growth=overall,
        limit=limit,
    )


def _heads(stack: GaussianStack) -> list[WeightHead]:
    """The one head of every layer, over the law that reaches it."""
    return [layer.heads[0] for layer in stack.layers]


def _checked(name: str, cell: Cell, study: DeepStackStudy, run: CellRun) -> pd.DataFrame:
    """The table of a replicate, if it has a value for every metric, size and layer."""
    try:
        found = cell.table["quantity"].value_counts()
        wanted = len(study.sizes) * study.depth
        rows = {metric: int(found[metric]) for metric in METRICS}
        if any(count != wanted for count in rows.values()) or found["moment"] % (2 * study.depth):
            raise ValueError(f"it does not have {counted(wanted, 'value')} of each error")
        cell.table["value"].astype(np.float64)
    except (ValueError, LookupError, TypeError) as error:
        raise run.damaged(name, error) from error
    return cell.table


def _arrays(
    tables: Sequence[pd.DataFrame], study: DeepStackStudy
) -> tuple[dict[str, Array], Array]:
    """Errors by metric, [replicate, layer, size], and moments, [replicate, size, layer, entry]."""
    table = pd.concat(
        [found.assign(replicate=i) for i, found in enumerate(tables)], ignore_index=True
    )
    shape = (len(tables), len(study.sizes), study.depth)
    errors = {}
    for metric in METRICS:
        own = table[table["quantity"] == metric].sort_values(["replicate", "n", "layer"])
        errors[metric] = own["value"].to_numpy().reshape(shape).transpose(0, 2, 1)
    own = table[table["quantity"] == "moment"].sort_values(["replicate", "n", "layer", "entry"])
    moments = own["value"].to_numpy().reshape(len(tables), 2, study.depth, -1)
    return errors, np.asarray(moments)


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
            bound = float(scipy.stats.t.ppf(1 - (1 - LEVEL) / (2 * entries), count - 1))
            largest = float(np.abs(scores).max())
            variance = float(np.trace(limit.covariances[i + 1])) / limit.means.shape[1]
            agrees, why = _agrees(measured[:, i] - exact, error, bound, variance)
            found = replace(
                found,
                standard_error=tuple(error.tolist()),
                largest=largest,
                rms=float(np.sqrt(np.mean(scores**2))),
                resolution=float(np.median(error)) / variance,
                bound=bound,
                agrees=None if found.doubt else agrees,
                doubt=found.doubt or why,
            )
        out.append(found)
    return tuple(out)


def _agrees(
    deviations: Array, error: Array, bound: float, variance: float
) -> tuple[bool | None, str | None]:
    """Whether a measured limit is the recursion, and why that is undecided.

    Parameters
    ----------
    deviations
        Measured minus exact, [replicate, entry].
    error, bound
        Standard errors, and how many of them hold all entries together.
    variance
        Mean variance of a coordinate.
    """
    off = np.abs(deviations.mean(axis=0))
    if np.any(off > bound * error):
        return False, None
    reach = float(np.max(off + bound * error)) / variance
    if reach <= SAME:
        return True, None
    count = len(deviations)
    # if the recursion is right, deviations are noise, and fall with the standard errors
    needed = int(np.ceil(count * (reach / SAME) ** 2))
    return None, (
        f"the intervals of its {len(off)} entries reach {100 * reach:.3g}% of a variance from it, "
        f"and {100 * SAME:g}% is the margin; about {needed:,} replicates instead of {count} would "
        "do, if it is right"
    )
