"""The limit that errors are measured against, and the errors of one replicate.

A replicate draws tokens, attends in one pass and is compared with the limit at every size. Its
errors are a function of the sweep and its number r, to the bit: the random stream depends on
(seed, r) only, and arithmetic outside the kernel runs on one thread.
"""

from __future__ import annotations

import dataclasses
import hashlib
import re
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from functools import cached_property
from pathlib import Path
from typing import Any, NamedTuple, TypeAlias

import numpy as np
import xarray as xr
from numpy.typing import NDArray

from esscher.core.errors import InputError
from esscher.core.streams import random_stream
from esscher.core.validation import Array
from esscher.math.heads import ArrayHead, Head, Tokens, WeightHead
from esscher.math.laws import Law
from esscher.math.limits import NoLimit, limit_moments, missing_limit
from esscher.math.statistics import LEVEL, resampling_counts
from esscher.runs.executors import CellExecutor, Task, one_blas_thread
from esscher.runs.folder import Run
from esscher.runs.study import Setup
from esscher.studies.sweep.study import (
    LIMIT,
    METRICS,
    PREDICTIONS,
    Limit,
    Replicate,
    SweepSettings,
)

#: Queries for limits that have to be sampled: at least this many, and this many times n_max, so
#: that the reference adds half a percent to the error at n_max.
FEWEST_SAMPLES, SAMPLES_PER_TOKEN = 65_536, 100
#: Queries by which a limit's existence is checked where there is no exact answer.
EXISTENCE_SAMPLES = 65_536
#: Rows of a head from arrays up to which its limit is computed at all of them, once.
ALL_ROWS = 131_072
#: Purpose of the random streams: replicate r draws from that of (seed, "sweep", r).
PURPOSE = "sweep"
#: Queries whose limit is computed at a time: arrays that stay in the cache, half the time.
ROWS = 4096
#: Names of the cells of replicates.
NAME = re.compile(r"replicate-(\d{6,12})")


def cell_name(replicate: int) -> str:
    """Name of the cell of a replicate."""
    return f"replicate-{replicate:06d}"


# -- the head


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


def hash_of(thing: object) -> str:
    """SHA-256 of an object's class and contents, arrays bit for bit."""
    digest = hashlib.sha256()

    def feed(thing: object) -> None:
        """Add an object; what is cached inside it is a function of the rest and left out."""
        kind, items = type(thing).__name__, None
        if thing is None or isinstance(thing, (bool, int, float, str, bytes)):
            digest.update(f"{kind}:{thing!r};".encode())
        elif isinstance(thing, (np.ndarray, np.generic)):
            array = np.ascontiguousarray(thing)
            digest.update(f"array:{array.dtype.str}:{np.shape(thing)};".encode())
            digest.update(array.tobytes())
        elif isinstance(thing, dict):
            kind, items = "dict", thing
        elif isinstance(thing, (list, tuple)):
            kind, items = "list", dict(enumerate(thing))
        elif isinstance(thing, Law):
            items = thing.parameters
        elif dataclasses.is_dataclass(thing):
            items = {f.name: getattr(thing, f.name) for f in dataclasses.fields(thing)}
        else:
            items = {
                name: value
                for name, value in getattr(thing, "__dict__", {"repr": repr(thing)}).items()
                if not isinstance(getattr(type(thing), name, None), cached_property)
            }
        if items is not None:
            digest.update(f"{kind}({len(items)}:".encode())
            for name, value in sorted(items.items(), key=lambda item: str(item[0])):
                digest.update(f"{name}=".encode())
                feed(value)
            digest.update(b")")

    feed(thing)
    return digest.hexdigest()


# -- the limit


def lacks_limit(head: Head, alphas: Iterable[float], seed: int) -> str:
    """Say why there is no infinite-token limit for one of some factors; empty if there is one."""
    reasons = (missing_limit(scaled_head(head, a), EXISTENCE_SAMPLES, seed) for a in alphas)
    return next((str(reason) for reason in reasons if reason), "")


def measured_head(head: Head, settings: SweepSettings) -> Head:
    """Return the head whose tokens are drawn: the given one, or tokens drawn from it once."""
    count = settings.reference_tokens
    if count is None:
        return head
    tokens = head.sample(count, random_stream(settings.seed, "reference"))
    return ArrayHead(tokens.tilts, tokens.keys, tokens.values)


def reference_outputs(head: Head, settings: SweepSettings) -> Array | None:
    """The limit's outputs at all rows of a head from arrays, axes [alpha, row, d_v]; else None."""
    if not isinstance(head, ArrayHead) or len(head.keys) > ALL_ROWS:
        return None
    # Imported here: a result that is only read needs none of it.
    from esscher.engine.attention.outputs import attention_outputs

    return attention_outputs(
        head.tilts,
        head.keys,
        head.values,
        scales=settings.alpha,
        dtype=settings.dtype,
        device=settings.device,
    )


def moments_of_rows(outputs: Array) -> tuple[Array, Array]:
    """Mean and covariance over the queries, in float64, of arrays with axes [alpha, query, d_v]."""
    outputs = outputs.astype(np.float64)
    means = outputs.mean(axis=1)
    centred = outputs - means[:, None]
    return means, centred.transpose(0, 2, 1) @ centred / outputs.shape[1]


def limit_cell(head: Head, drawn: Head, outputs: Array | None, settings: SweepSettings) -> Limit:
    """Compute the moments of the limit for every alpha.

    Parameters
    ----------
    head
        The head of the sweep.
    drawn
        The head whose tokens are drawn: see :func:`measured_head`.
    outputs
        What :func:`reference_outputs` returns: their moments are those of the limit, exactly.
    settings
        Those of the sweep. With queries from the population errors are measured against the limit
        at the queries themselves, and the moments are left at 0.
    """
    d, alphas, seed = drawn.value_dim, settings.alpha, settings.seed
    means, covariances = np.zeros((len(alphas), d)), np.zeros((len(alphas), d, d))
    errors, methods = np.zeros((2, len(alphas))), ["at the queries themselves"] * len(alphas)
    if settings.queries == "tokens" and outputs is not None:
        means, covariances = moments_of_rows(outputs)
        methods = [f"attention over all {len(outputs[0])} tokens"] * len(alphas)
    elif settings.queries == "tokens":
        samples = max(SAMPLES_PER_TOKEN * settings.sizes[-1], FEWEST_SAMPLES)
        for s, alpha in enumerate(alphas):
            scaled = scaled_head(drawn, alpha)
            limit = limit_moments(scaled, FEWEST_SAMPLES, seed)
            if not isinstance(limit, NoLimit) and limit.method == "sampling":
                limit = limit_moments(scaled, samples, seed)
            if isinstance(limit, NoLimit):  # reference tokens stand in where this can happen
                raise InputError(
                    f"{limit}; pass reference_tokens to compare with a finite reference"
                )
            means[s], covariances[s], methods[s] = limit.mean, limit.covariance, limit.method
            errors[:, s] = [np.linalg.norm(x) for x in (limit.mean_error, limit.covariance_error)]
    cell = Limit.new(alpha=alphas, row=range(d), column=range(d))
    cell.mean, cell.covariance, cell.method = means, covariances, methods
    cell.limit_mean_error, cell.limit_covariance_error = errors
    reference = settings.reference_tokens is not None
    cell.no_limit = lacks_limit(head, alphas[::-1], seed) if reference else ""
    return cell


# -- replicates


#: What the errors of a replicate depend on, besides its number: the settings of the sweep, the head
#: whose tokens are drawn, mean and covariance of the limit's outputs, [alpha, ...] (used only when
#: the queries are the tokens), and for a head from arrays, among whose rows replicates draw their
#: queries, the limit's outputs at all of them, [alpha, row, d_v].
Source: TypeAlias = tuple[SweepSettings, Head, Array, Array, Array | None]


def measure_cell(source: Source, replicate: int, depth: int) -> xr.Dataset:
    """Measure one replicate at the first ``depth`` sizes, in this process or in another one."""
    # Imported here: a result that is only read needs none of it.
    from esscher.engine.attention import attention_statistics

    settings, head, means, covariances, outputs = source
    sizes = settings.sizes[:depth]
    with one_blas_thread():
        rng = random_stream(settings.seed, PURPOSE, replicate)
        tokens, tilts, exact = _draw(settings, head, sizes[-1], outputs, rng)
        mask = None
        if settings.queries == "population":
            # The error of the limit's own moments over these queries is no error of the keys.
            means, covariances = moments_of_rows(exact)
        elif len(tilts) < len(tokens.keys):
            # Queries beyond the first ones are masked; the kernel still wants their rows.
            mask = np.arange(len(tokens.keys)) < len(tilts)
            tilts = np.pad(tilts, ((0, len(tokens.keys) - len(tilts)), (0, 0)))
            exact = np.pad(exact, ((0, 0), (0, len(tokens.keys) - exact.shape[1]), (0, 0)))
        arrays: list[NDArray[Any] | None] = [tilts, tokens.keys, tokens.values, exact, mask]
        placed: list[Any] = arrays
        # on a processor these stay numpy's, so that the compiled kernel need not wait for torch
        if settings.device != "cpu":
            import torch

            placed = [
                None if x is None else torch.from_numpy(x).to(settings.device) for x in arrays
            ]
        q, k, v, limit, asking = placed
        measured = attention_statistics(
            q,
            k,
            v,
            sizes=sizes,
            scales=settings.alpha,
            queries="separate" if settings.queries == "population" else "tokens",
            factor=1.0,
            limit=limit,
            query_mask=asking,
            dtype=settings.dtype,
        )
        mean = np.linalg.norm(measured.mean - means[:, None], axis=-1)
        cov = np.linalg.norm(measured.covariance - covariances[:, None], axis=(-2, -1))
        assert measured.map_square is not None  # a limit was given
        # Rounding can leave a tiny negative square where the error is 0.
        square = np.sqrt(np.maximum(measured.map_square, 0.0))
    cell = Replicate.new(
        metric=METRICS, alpha=settings.alpha, replicate=[replicate], size=settings.sizes
    )
    errors = np.full((len(METRICS), len(settings.alpha), 1, len(settings.sizes)), np.nan)
    errors[:, :, 0, :depth] = mean, cov, square
    cell.error = errors
    return cell.dataset


def _draw(
    settings: SweepSettings, head: Head, n: int, outputs: Array | None, rng: np.random.Generator
) -> tuple[Tokens, Array, Array]:
    """Tokens, tilts of the queries, and the limit's outputs there, axes [alpha, query, d_v]."""
    population = settings.queries == "population"
    count = settings.query_count or n
    if isinstance(head, ArrayHead) and outputs is not None:
        rows = head.sample_rows(n, rng)
        asking = head.sample_rows(count, rng) if population else rows[:count]
        return head.take(rows), head.tilts[asking], outputs[:, asking]
    tokens = head.sample(n, rng)
    tilts = head.sample(count, rng).tilts if population else tokens.tilts[:count]
    # in the precision of the arithmetic: a float64 limit of many alphas would fill the memory
    shape = len(settings.alpha), len(tilts), tokens.values.shape[1]
    exact = np.empty(shape, np.dtype(settings.dtype))
    for start in range(0, len(tilts), ROWS):
        some = slice(start, start + ROWS)
        for s, alpha in enumerate(settings.alpha):
            exact[s, some] = head.limit_map(alpha * tilts[some])
    return tokens, tilts, exact


# -- the schedule: which replicates are measured, and up to which size
#
# Without a precision all replicates go up to the largest size. With one, batches follow the first:
# each goes up to the size at which a second of work lowers the variance of the fitted slope most.
# The mean error at a small size costs next to nothing to know well, so that nearly all the time
# goes to what only large sizes can tell.
#
# With ``R_j`` replicates at size j (those of a larger size count at the smaller ones too), relative
# covariances ``S_jl`` of a replicate's errors and slope ``sum_j c_j log(mean error_j)``,
#
#     Var(slope) = sum_jl c_j c_l S_jl / R_min(j,l).
#
# Every choice is a function of the errors of the batches before it, and of nothing else: a run that
# was killed and resumed, on any number of workers, makes the same ones.

#: Work of one token, in units of one pair of tokens: sampling it, projecting it, its limit.
TOKEN_WORK = 500.0
#: A batch takes at most this share of the work before it, so that judgements stay rare.
SHARE = 0.5


class Batch(NamedTuple):
    """Replicates ``start`` to ``stop - 1``, measured at the first ``depth`` sizes."""

    start: int
    stop: int
    depth: int


def replicate_work(sizes: Array, queries: int | None) -> Array:
    """Work of a replicate that goes up to each size, in units of one up to the largest.

    ``queries`` is the number of queries of a replicate, ``None`` when all tokens ask.
    """
    asking = sizes if queries is None else np.minimum(sizes, queries)
    work = asking * sizes + TOKEN_WORK * sizes
    return np.asarray(work / work[-1])


def spent(batches: list[Batch], work: Array) -> float:
    """Work of some batches."""
    return float(sum((b.stop - b.start) * work[b.depth - 1] for b in batches))


def counts_at(batches: list[Batch], sizes: int) -> Array:
    """Number of replicates at each size."""
    counts = np.zeros(sizes)
    for batch in batches:
        counts[: batch.depth] += batch.stop - batch.start
    return counts


def slope_weights(log_sizes: Array, counts: Array) -> Array:
    """Coefficients ``c_j`` of a least-squares slope whose points weigh as their counts."""
    weights = counts / counts.sum()
    centred = log_sizes - weights @ log_sizes
    return np.asarray(weights * centred / (weights @ centred**2))


def slope_variance(log_sizes: Array, counts: Array, covariance: Array) -> float:
    """``Var(slope)`` above."""
    weights = slope_weights(log_sizes, counts)
    j = np.arange(len(counts))
    shared = counts[np.minimum(j[:, None], j[None, :])]
    return float(weights @ (covariance / shared) @ weights)


def next_batch(
    batches: list[Batch], log_sizes: Array, covariance: Array, work: Array, left: float
) -> Batch | None:
    """The batch that lowers the variance of the slope most for its work; ``None`` if none fits.

    Parameters
    ----------
    batches
        What is there already.
    log_sizes
        Logarithms of the sizes.
    covariance
        Relative covariance of a replicate's errors between the sizes.
    work, left
        What replicates up to each size cost, and how much may still be spent.
    """
    counts = counts_at(batches, len(log_sizes))
    now = slope_variance(log_sizes, counts, covariance)
    before, start = spent(batches, work), batches[-1].stop
    best, gain = None, 0.0
    for depth in range(1, len(log_sizes) + 1):
        each = float(work[depth - 1])
        # never more than doubling a count: the gain of the next ones is then another one
        most = min(int(min(SHARE * before, left) / each + 1e-9), int(counts[depth - 1]))
        if most < 1:
            if each > left + 1e-9:
                continue
            most = 1
        more = counts.copy()
        more[:depth] += most
        lower = (now - slope_variance(log_sizes, more, covariance)) / (most * each)
        if lower > gain:
            best, gain = Batch(start, start + most, depth), lower
    return best


#: Resamples behind an interval.
RESAMPLES = 1000


def slope_half_widths(errors: Array, sizes: Array, seed: int) -> Array:
    """Half the width of the 95% interval of the log-log slope of the mean error, per scale.

    Parameters
    ----------
    errors
        Axes [scale, replicate, size]; ``nan`` at the sizes above the last of a replicate.
    sizes
        Numbers of tokens, at least two.
    seed
        Seed of the resampling. Replicates that end at the same size are resampled among themselves.

    Returns
    -------
    Array
        Infinite where there is no slope (one replicate, or errors that vanish).
    """
    scales, replicates, n = errors.shape
    depths = np.isfinite(errors[0]).sum(axis=1)
    if np.sum(depths == n) < 2 or n < 2:
        return np.full(scales, np.inf)
    rng = random_stream(seed, "slope", replicates)
    counts = np.array([np.sum(depths > j) for j in range(n)], dtype=np.float64)
    means = np.zeros((scales, RESAMPLES, n))
    for depth in np.unique(depths):
        chosen = errors[:, depths == depth, :depth]
        members = chosen.shape[1]
        times = resampling_counts(members, RESAMPLES, rng)
        means[:, :, :depth] += times @ chosen / counts[:depth]
    if not np.all(means > 0):
        return np.full(scales, np.inf)
    slopes = np.log(means) @ slope_weights(np.log(sizes), counts)
    low, high = np.quantile(slopes, [(1 - LEVEL) / 2, (1 + LEVEL) / 2], axis=1)
    return np.asarray(high - low) / 2


def relative_covariance(errors: Array) -> Array:
    """Relative covariance of the errors [replicate, size] between sizes, from whole replicates."""
    whole = errors[np.isfinite(errors).all(axis=1)]
    relative = whole / whole.mean(axis=0)
    centred = relative - 1.0
    return np.asarray(centred.T @ centred / max(len(whole) - 1, 1))


def following_batch(
    settings: SweepSettings, batches: list[Batch], parts: Mapping[int, Array], folder: Path
) -> Batch | None:
    """Return the batch after some others; ``None`` at the end. Some replicates may be there.

    Parameters
    ----------
    settings
        Those of the sweep.
    batches
        The batches before.
    parts
        Errors of the replicates that are there, [metric, alpha, size]: all of the batches before.
    folder
        Directory of the run, for messages.

    Raises
    ------
    InputError
        If replicates of the batch are there that go up to other sizes.
    """
    sizes, batch = np.asarray(settings.sizes, dtype=np.float64), None
    if not batches:
        batch = Batch(0, settings.replicates, len(sizes))
    elif settings.precision is not None:
        errors = np.stack(
            [parts[r][METRICS.index("mean")] for r in range(batches[-1].stop)], axis=1
        )
        with one_blas_thread():
            widths = slope_half_widths(errors, sizes, settings.seed)
            widest = int(np.argmax(widths))
            if widths[widest] <= settings.precision:
                return None
            covariance = relative_covariance(errors[widest])
            work = replicate_work(sizes, settings.query_count)
            left = settings.most_work - spent(batches, work)
            batch = next_batch(batches, np.log(sizes), covariance, work, left)
    for replicate in (r for r in parts if batch and batch.start <= r < batch.stop):
        depth = int(np.isfinite(parts[replicate][0, 0]).sum())
        if batch and depth != batch.depth:
            raise InputError(
                f"{folder} holds replicate {replicate} up to size number {depth}, "
                f"not {batch.depth}: it was begun with another number of replicates before "
                "precision was judged; give the same one, or choose another directory"
            )
    return batch


def check_end(end: int, parts: Collection[int], folder: Path) -> None:
    """Refuse replicates beyond those that are asked for."""
    if parts and max(parts) >= end:
        raise InputError(
            f"{folder} holds {len(parts)} replicates, more than the {end} asked for now; "
            f"ask for at least {max(parts) + 1}, or choose another directory"
        )


# -- cells of a run


def read_cell(run: Run, name: str, **labels: Sequence[Any]) -> xr.Dataset | None:
    """Return a cell, or None if it is not there.

    Raises
    ------
    InputError
        If it is damaged, or its axes have other labels.
    """
    cell = run.read(name)
    if cell is not None:
        for axis, wanted in labels.items():
            if not np.array_equal(cell[axis].values, wanted):
                raise run.damaged(name, f"it is not of the labels of {axis!r} of this run")
    return cell


def replicate_errors(settings: SweepSettings, run: Run, names: Iterable[str]) -> dict[int, Array]:
    """Return the errors of the replicates among some cells, [metric, alpha, size], by number.

    Raises
    ------
    InputError
        If a cell does not hold the replicate of its name.
    """
    labels = {"metric": METRICS, "alpha": settings.alpha, "size": settings.sizes}
    by_number = {}
    for number in sorted(int(match[1]) for match in map(NAME.fullmatch, names) if match):
        cell = read_cell(run, cell_name(number), replicate=[number], **labels)
        if cell is None:
            continue
        errors = cell["error"].values[:, :, 0]
        depth = np.isfinite(errors[0, 0]).sum()
        if not (depth and np.all(errors[..., :depth] >= 0) and np.isnan(errors[..., depth:]).all()):
            raise run.damaged(cell_name(number), f"it has no errors at its first {depth} sizes")
        by_number[number] = errors
    return by_number


def limit_and_predictions(
    setup: Setup[SweepSettings], run: Run
) -> tuple[xr.Dataset | None, xr.Dataset | None]:
    """Return the cells beside the replicates, as far as they are there."""
    settings, head = setup.settings, setup.records["head"]
    dims, alphas, sizes = range(head.value_dim), settings.alpha, settings.predicted_sizes
    limit = read_cell(run, LIMIT, alpha=alphas, row=dims, column=dims)
    if not settings.predict:
        return limit, None
    return limit, read_cell(run, PREDICTIONS, metric=METRICS, alpha=alphas, tokens=sizes)


def stored_cells(setup: Setup[SweepSettings], run: Run) -> tuple[dict[str, xr.Dataset], bool]:
    """Return the cells that a result is made of, and whether they are all that was asked for."""
    settings = setup.settings
    errors = replicate_errors(settings, run, run.names())
    complete, batches = bool(errors), list[Batch]()
    while complete and (batch := following_batch(settings, batches, errors, run.folder)):
        batches.append(batch)
        complete = all(number in errors for number in range(batch.start, batch.stop))
    limit, predictions = limit_and_predictions(setup, run)
    names = [LIMIT, PREDICTIONS, *map(cell_name, errors)]
    known = [limit, predictions, *(run.read(name) for name in names[2:])]
    cells = {name: cell for name, cell in zip(names, known, strict=True) if cell is not None}
    complete = complete and limit is not None and (predictions is not None) == settings.predict
    return (cells if errors else {}), complete


def sweep_batches(
    setup: Setup[SweepSettings], head: Head, executor: CellExecutor, run: Run
) -> Iterator[Mapping[str, Task]]:
    """Yield replicates; with a precision, further batches follow from what was measured.

    The limit is stored before them, predictions after them.
    """
    settings, batches = setup.settings, list[Batch]()
    known = replicate_errors(settings, run, run.names())
    if settings.precision is None:  # otherwise the end is not known yet
        check_end(settings.replicates, known, run.folder)
    limit, predictions = limit_and_predictions(setup, run)
    source = None
    while batch := following_batch(settings, batches, known, run.folder):
        batches.append(batch)
        missing = [n for n in range(batch.start, batch.stop) if n not in known]
        if not missing and limit is not None:
            continue
        if source is None:
            # the head whose tokens are drawn, and the limit's outputs at all of its rows if few
            with one_blas_thread():
                drawn = measured_head(head, settings)
                outputs = reference_outputs(drawn, settings)
                if limit is None:  # stored: a resumed run compares with the very same numbers
                    limit = limit_cell(head, drawn, outputs, settings).dataset
                    run.write(LIMIT, limit)
            moments = limit["mean"].values, limit["covariance"].values
            source = executor.share((settings, drawn, *moments, outputs))
        names = {number: cell_name(number) for number in missing}
        yield {
            name: Task(name, measure_cell, (source, number, batch.depth))
            for number, name in names.items()
        }
        if settings.precision is not None:  # what comes next depends on it
            known |= replicate_errors(settings, run, names.values())
    check_end(batches[-1].stop, known, run.folder)
    if settings.predict and predictions is None:
        from esscher.studies.sweep.combine import predict

        with one_blas_thread():
            heads = [scaled_head(head, alpha) for alpha in settings.alpha]
            run.write(PREDICTIONS, predict(heads, settings).dataset)
