"""The limit that errors are measured against, and the errors of one replicate.

A replicate draws tokens, attends in one pass and is compared with the limit at every size. Its
errors are a function of the sweep and its number r, to the bit: the random stream depends on
(seed, r) only, and arithmetic outside the kernel runs on one thread.
"""

from __future__ import annotations

import dataclasses
import hashlib
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from functools import cached_property
from typing import Any, TypeAlias

import numpy as np
import xarray as xr
from numpy.typing import NDArray

from esscher.core.errors import InputError
from esscher.core.streams import random_stream
from esscher.core.validation import Array
from esscher.math.heads import ArrayHead, Head, Tokens, WeightHead
from esscher.math.laws import Law
from esscher.math.limits import NoLimit, limit_moments, missing_limit
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


def measure_cell(source: Source, replicate: int) -> xr.Dataset:
    """Measure one replicate at all sizes, in this process or in another one."""
    # Imported here: a result that is only read needs none of it.
    from esscher.engine.attention import attention_statistics

    settings, head, means, covariances, outputs = source
    with one_blas_thread():
        rng = random_stream(settings.seed, PURPOSE, replicate)
        tokens, tilts, exact = _draw(settings, head, settings.sizes[-1], outputs, rng)
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
            sizes=settings.sizes,
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
    cell.error = np.stack([mean, cov, square])[:, :, None]
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


def replicate_cells(settings: SweepSettings, run: Run) -> dict[int, xr.Dataset]:
    """Return the cells of the replicates that are there, by their numbers, in order.

    Raises
    ------
    InputError
        If a cell does not hold the replicate of its name.
    """
    labels = {"metric": METRICS, "alpha": settings.alpha, "size": settings.sizes}
    cells = {}
    for number in sorted(int(match[1]) for match in map(NAME.fullmatch, run.names()) if match):
        cell = read_cell(run, cell_name(number), replicate=[number], **labels)
        if cell is None:
            continue
        if not np.all(cell["error"].values >= 0):
            raise run.damaged(cell_name(number), "an error is missing or below 0")
        cells[number] = cell
    return cells


def other_cells(setup: Setup[SweepSettings], run: Run) -> dict[str, xr.Dataset]:
    """Return the limit and the predictions, by name, as far as they are asked for and there."""
    settings, dims = setup.settings, range(setup.records["head"].value_dim)
    wanted: dict[str, dict[str, Any]] = {LIMIT: {"row": dims, "column": dims}}
    if settings.predict:
        wanted[PREDICTIONS] = {"metric": METRICS, "tokens": settings.predicted_sizes}
    read = {name: read_cell(run, name, alpha=settings.alpha, **wanted[name]) for name in wanted}
    return {name: cell for name, cell in read.items() if cell is not None}


def stored_cells(setup: Setup[SweepSettings], run: Run) -> tuple[dict[str, xr.Dataset], bool]:
    """Return the cells that a result is made of, and whether they are all that was asked for."""
    settings = setup.settings
    replicates, cells = replicate_cells(settings, run), other_cells(setup, run)
    complete = len(cells) == 1 + settings.predict
    complete = complete and all(number in replicates for number in range(settings.replicates))
    cells |= {cell_name(number): cell for number, cell in replicates.items()}
    return (cells if replicates else {}), complete


def sweep_batches(
    setup: Setup[SweepSettings], head: Head, executor: CellExecutor, run: Run
) -> Iterator[Mapping[str, Task]]:
    """Yield the replicates. The limit is stored before them, predictions after them."""
    settings = setup.settings
    known = replicate_cells(settings, run)
    if known and max(known) >= settings.replicates:
        raise InputError(
            f"{run.folder} holds {len(known)} replicates, more than the {settings.replicates} "
            f"asked for now; ask for at least {max(known) + 1}, or choose another directory"
        )
    others = other_cells(setup, run)
    limit = others.get(LIMIT)
    missing = [number for number in range(settings.replicates) if number not in known]
    if missing or limit is None:
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
        yield {name: Task(name, measure_cell, (source, number)) for number, name in names.items()}
    if settings.predict and PREDICTIONS not in others:
        from esscher.studies.sweep.combine import predict

        with one_blas_thread():
            heads = [scaled_head(head, alpha) for alpha in settings.alpha]
            run.write(PREDICTIONS, predict(heads, settings).dataset)
