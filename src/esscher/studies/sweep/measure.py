"""The limit that errors are measured against, and the errors of one replicate.

A replicate draws tokens, attends in one pass and is compared with the limit at every size. Its
errors are a function of the plan and its number r, to the bit: the random stream depends on
(seed, r) only, and arithmetic outside the kernel runs on one thread.

A replicate is a cell. Its table has the columns replicate, scale (its place in the list), alpha, n,
and the errors mean, cov, map (NaN at the sizes above the last of a replicate that a precision made
end early).
"""

from __future__ import annotations

import re
import time
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from esscher.core.codec import Index, Record
from esscher.core.errors import InputError
from esscher.core.streams import random_stream
from esscher.core.validation import Array
from esscher.math.heads import ArrayHead, Head, Tokens, WeightHead
from esscher.math.limits import NoLimit, limit_moments, missing_limit
from esscher.runs.executors import one_blas_thread
from esscher.runs.folder import Cell, CellRun, versions

if TYPE_CHECKING:
    from esscher.studies.sweep.study import SweepStudy


#: Name of the cell of the limit.
LIMIT = "limit"
#: Queries for limits that have to be sampled: at least this many, and this many times n_max, so
#: that the reference adds half a percent to the error at n_max.
FEWEST_SAMPLES, SAMPLES_PER_TOKEN = 65_536, 100
#: Queries by which a limit's existence is checked where there is no exact answer.
EXISTENCE_SAMPLES = 65_536
#: Rows of a head from arrays up to which its limit is computed at all of them, once.
ALL_ROWS = 131_072
#: Errors that a sweep measures: norm of the error of the mean output, Frobenius norm of the error
#: of its covariance, root mean square over the queries of the error of the map.
METRICS = ("mean", "cov", "map")
#: Purpose of the random streams: replicate r draws from that of (seed, "sweep", r).
PURPOSE = "sweep"
#: Queries whose limit is computed at a time: arrays that stay in the cache, half the time.
ROWS = 4096


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
    # Imported here: `import esscher` must not cost the import of torch.
    from esscher.engine.attention.outputs import attention_outputs

    return attention_outputs(
        head.tilts,
        head.keys,
        head.values,
        scales=study.alpha,
        dtype=study.dtype,
        device=study.device,
    )


def moments_of_rows(outputs: Array) -> tuple[Array, Array]:
    """Mean and covariance over the queries, in float64, of arrays with axes [scale, query, d_v]."""
    outputs = outputs.astype(np.float64)
    means = outputs.mean(axis=1)
    centred = outputs - means[:, None]
    return means, centred.transpose(0, 2, 1) @ centred / outputs.shape[1]


class Limit(Record, frozen=True, kw_only=True, tag_field="kind", tag="limit"):
    """Moments of the limit, so that a resumed run compares with the very same numbers.

    The column ``covariance`` of the table has the covariances, axes [scale, i, j].

    Attributes
    ----------
    means
        Mean of the limit's outputs at every scale.
    methods
        How the moments were computed.
    mean_error, cov_error
        Their root-sum-of-squares errors; 0 when exact.
    notes
        What a reader must know.
    """

    means: tuple[tuple[float, ...], ...]
    methods: tuple[str, ...]
    mean_error: tuple[float, ...]
    cov_error: tuple[float, ...]
    notes: tuple[str, ...]


def limit_cell(head: Head, drawn: Head, outputs: Array | None, study: SweepStudy) -> Cell:
    """Compute the moments of the limit for every scale.

    Parameters
    ----------
    head
        The head of the sweep.
    drawn
        The head whose tokens are drawn: see :func:`measured_head`.
    outputs
        What :func:`reference_outputs` returns: their moments are those of the limit, exactly.
    study
        The sweep. With queries from the population errors are measured against the limit at the
        queries themselves, and the moments are left at 0.
    """
    d, scales, seed = drawn.value_dim, study.alpha, study.seed
    means, covariances = np.zeros((len(scales), d)), np.zeros((len(scales), d, d))
    errors, methods = np.zeros((2, len(scales))), ["at the queries themselves"] * len(scales)
    if study.queries == "tokens" and outputs is not None:
        means, covariances = moments_of_rows(outputs)
        methods = [f"attention over all {len(outputs[0])} tokens"] * len(scales)
    elif study.queries == "tokens":
        samples = max(SAMPLES_PER_TOKEN * study.sizes[-1], FEWEST_SAMPLES)
        for s, alpha in enumerate(scales):
            scaled = scaled_head(drawn, alpha)
            limit = limit_moments(scaled, FEWEST_SAMPLES, seed)
            if not isinstance(limit, NoLimit) and limit.method == "sampling":
                limit = limit_moments(scaled, samples, seed, "sampling")
            if isinstance(limit, NoLimit):  # reference tokens stand in where this can happen
                raise InputError(
                    f"{limit}; pass reference_tokens to compare with a finite reference"
                )
            means[s], covariances[s], methods[s] = limit.mean, limit.covariance, limit.method
            errors[:, s] = [np.linalg.norm(x) for x in (limit.mean_error, limit.covariance_error)]
    notes = []
    if study.reference_tokens is not None:
        missing = (
            missing_limit(scaled_head(head, alpha), EXISTENCE_SAMPLES, seed)
            for alpha in scales[::-1]
        )
        why = next((f"{reason}: " for reason in missing if reason), "")
        notes.append(
            f"{why}errors are against attention over {study.reference_tokens} tokens drawn once, "
            "whose law the samples follow; exponents describe the approach to those tokens"
        )
    worst = int(np.argmax(errors[1]))
    if errors[1, worst] > 0:
        notes.append(
            f"the limit is known by {methods[worst]}: its mean to {errors[0, worst]:.2g} and its "
            f"covariance to {errors[1, worst]:.2g}; errors below that mean nothing"
        )
    about = Limit(
        means=tuple(map(tuple, means.tolist())),
        methods=tuple(methods),
        mean_error=tuple(errors[0].tolist()),
        cov_error=tuple(errors[1].tolist()),
        notes=tuple(notes),
    )
    return Cell(about, {"covariance": covariances.ravel()})


def limit_arrays(cell: Cell, run: CellRun, study: SweepStudy) -> tuple[Array, Array]:
    """Return means and covariances of the limit from its cell, axes [scale, ...].

    Raises
    ------
    InputError
        If they are not of this sweep.
    """
    count, d = len(study.alpha), study.head_record.value_dim
    try:
        if not isinstance(cell.about, Limit):
            raise InputError("it holds something else")
        means = np.array(cell.about.means, dtype=np.float64).reshape(count, d)
        return means, _column(cell, "covariance").reshape(count, d, d)
    except ValueError as error:
        raise run.damaged(LIMIT, error) from error


def _column(cell: Cell, name: str) -> Array:
    column = cell.column(name)
    if column.dtype.kind not in "if":
        raise InputError(f"its column {name!r} holds no numbers")
    return column


@dataclass(frozen=True, eq=False)
class Plan:
    """All that the errors of a replicate depend on, besides its number.

    Attributes
    ----------
    study
        The sweep.
    head
        The head whose tokens are drawn.
    means, covariances
        Those of the limit's outputs, axes [scale, ...]; used only when the queries are the tokens.
    outputs
        The limit's outputs at all rows of a head from arrays, axes [scale, row, d_v]: replicates
        draw their queries among those.
    """

    study: SweepStudy
    head: Head
    means: Array
    covariances: Array
    outputs: Array | None = None


def measure_replicate(plan: Plan, replicate: int) -> Array:
    """Errors of one replicate, axes [metric, scale, size] with the metrics of ``METRICS``."""
    # Imported here: a result that is only read needs none of it.
    from esscher.engine.attention import attention_statistics

    study = plan.study
    with one_blas_thread():
        tokens, tilts, exact = _draw(plan, random_stream(study.seed, PURPOSE, replicate))
        means, covariances, mask = plan.means, plan.covariances, None
        if study.queries == "population":
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
        if study.device != "cpu":
            import torch

            placed = [None if x is None else torch.from_numpy(x).to(study.device) for x in arrays]
        q, k, v, limit, asking = placed
        outputs = attention_statistics(
            q,
            k,
            v,
            sizes=study.sizes,
            scales=study.alpha,
            queries="separate" if study.queries == "population" else "tokens",
            factor=1.0,
            limit=limit,
            query_mask=asking,
            dtype=study.dtype,
        )
        mean = np.linalg.norm(outputs.mean - means[:, None], axis=-1)
        cov = np.linalg.norm(outputs.covariance - covariances[:, None], axis=(-2, -1))
        assert outputs.map_square is not None  # a limit was given
        # Rounding can leave a tiny negative square where the error is 0.
        return np.stack([mean, cov, np.sqrt(np.maximum(outputs.map_square, 0.0))])


def _draw(plan: Plan, rng: np.random.Generator) -> tuple[Tokens, Array, Array]:
    """Tokens, tilts of the queries, and the limit's outputs there, axes [scale, query, d_v]."""
    head, study = plan.head, plan.study
    n, population, limit = study.sizes[-1], study.queries == "population", study.query_count
    count = limit or n
    if isinstance(head, ArrayHead) and plan.outputs is not None:
        rows = head.sample_rows(n, rng)
        asking = head.sample_rows(count, rng) if population else rows[:limit]
        return head.take(rows), head.tilts[asking], plan.outputs[:, asking]
    tokens = head.sample(n, rng)
    tilts = head.sample(count, rng).tilts if population else tokens.tilts[:limit]
    # in the precision of the arithmetic: a float64 limit of many scales would fill the memory
    shape = len(study.alpha), len(tilts), tokens.values.shape[1]
    exact = np.empty(shape, np.dtype(study.dtype))
    for start in range(0, len(tilts), ROWS):
        some = slice(start, start + ROWS)
        for s, alpha in enumerate(study.alpha):
            exact[s, some] = head.limit_map(alpha * tilts[some])
    return tokens, tilts, exact


class Replicate(Record, frozen=True, kw_only=True, tag_field="kind", tag="replicate"):
    """One replicate: software that measured it, how long that took, and at how many sizes."""

    versions: dict[str, str | None]
    seconds: float
    depth: Index


#: Names of the cells of replicates.
NAME = re.compile(r"replicate-(\d{6,12})")


def cell_name(replicate: int) -> str:
    """Name of the cell of a replicate."""
    return f"replicate-{replicate:06d}"


def measure_cell(plan: Plan, replicate: int, depth: int) -> Cell:
    """Measure one replicate at the first ``depth`` sizes, in this process or in another one."""
    start, study = time.perf_counter(), plan.study
    if depth < len(study.sizes):
        plan = replace(plan, study=replace(study, sizes=study.sizes[:depth]))
    columns = _grid(study, replicate)
    errors: Array = np.full((len(METRICS), len(study.alpha), len(study.sizes)), np.nan)
    errors[..., :depth] = measure_replicate(plan, replicate)
    columns |= {metric: errors[m].ravel() for m, metric in enumerate(METRICS)}
    about = Replicate(versions=versions(), seconds=time.perf_counter() - start, depth=depth)
    return Cell(about, columns)


def _grid(study: SweepStudy, replicate: int) -> dict[str, NDArray[Any]]:
    """Columns of a replicate before its errors."""
    scales, sizes = len(study.alpha), len(study.sizes)
    return {
        "replicate": np.full(scales * sizes, replicate, dtype=np.int64),
        "scale": np.repeat(np.arange(scales, dtype=np.int64), sizes),
        "alpha": np.repeat(np.asarray(study.alpha, dtype=np.float64), sizes),
        "n": np.tile(np.asarray(study.sizes, dtype=np.int64), scales),
    }


def replicate_errors(
    cells: Mapping[str, Cell], study: SweepStudy, run: CellRun
) -> dict[int, Array]:
    """Return the errors of replicates, axes [metric, scale, size], by their numbers.

    Raises
    ------
    InputError
        If a cell does not hold the replicate of its name.
    """
    shape = len(METRICS), len(study.alpha), len(study.sizes)
    by_replicate = {}
    for name, cell in cells.items():
        replicate = int(name.removeprefix("replicate-"))
        try:
            if not isinstance(cell.about, Replicate):
                raise InputError("it holds something else")
            for column, expected in _grid(study, replicate).items():
                if not np.array_equal(_column(cell, column), expected):
                    raise InputError(f"its rows are not those of replicate {replicate}")
            errors = np.stack([_column(cell, metric) for metric in METRICS]).reshape(shape)
            depth = cell.about.depth
            measured = errors[..., :depth]
            if not (np.all(np.isfinite(measured)) and np.all(measured >= 0)):
                raise InputError(f"it has no errors at its {depth} sizes")
            if not np.all(np.isnan(errors[..., depth:])):
                raise InputError(f"it has errors beyond its {depth} sizes")
        except InputError as error:
            raise run.damaged(name, error) from error
        by_replicate[replicate] = errors
    return by_replicate
