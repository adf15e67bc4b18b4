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
from esscher.runs.folder import Cell, CellRun
from esscher.runs.provenance import versions

if TYPE_CHECKING:
    from esscher.engine.attention import AttentionStatistics
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


class Limit(Record, frozen=True, kw_only=True, tag_field="kind", tag="limit"):
    """Moments of the limit, so that a resumed run compares with the very same numbers.

    The column ``covariance`` of the table has the covariances, axes [scale, i, j].
    """

    means: tuple[tuple[float, ...], ...]
    methods: tuple[str, ...]
    mean_error: tuple[float, ...]
    cov_error: tuple[float, ...]
    notes: tuple[str, ...]


def limit_cell(reference: Reference) -> Cell:
    """Return the cell of the limit."""
    about = Limit(
        means=tuple(map(tuple, reference.means.tolist())),
        methods=reference.methods,
        mean_error=tuple(reference.mean_error.tolist()),
        cov_error=tuple(reference.cov_error.tolist()),
        notes=reference.notes(),
    )
    return Cell(about, {"covariance": reference.covariances.ravel()})


def stored_limit(run: CellRun, study: SweepStudy) -> Reference | None:
    """Return the limit that a run has stored, if it has.

    Raises
    ------
    InputError
        If it is not of this sweep.
    """
    cell = run.read(LIMIT)
    if cell is None:
        return None
    count, wide = len(study.alpha), study.head_record.value_dim
    about = cell.about
    try:
        if not isinstance(about, Limit):
            raise InputError("it holds something else")
        covariances = _column(cell, "covariance").reshape(count, wide, wide)
        means = np.array(about.means, dtype=np.float64).reshape(count, wide)
        errors = np.array([about.mean_error, about.cov_error]).reshape(2, count)
        if len(about.methods) != count:
            raise InputError(f"it has {len(about.methods)} methods, not {count}")
    except (InputError, ValueError) as error:
        raise run.damaged(LIMIT, error) from error
    return Reference(means, covariances, about.methods, *errors)


def stored_notes(run: CellRun) -> tuple[str, ...]:
    """Return the notes on the limit of a run; none if the limit is not there yet."""
    cell = run.read(LIMIT)
    return cell.about.notes if cell is not None and isinstance(cell.about, Limit) else ()


def _column(cell: Cell, name: str) -> Array:
    column = cell.column(name)
    if column.dtype.kind not in "if":
        raise InputError(f"its column {name!r} holds no numbers")
    return column


#: Errors that a sweep measures: norm of the error of the mean output, Frobenius norm of the error
#: of its covariance, root mean square over the queries of the error of the map.
METRICS = ("mean", "cov", "map")
#: Purpose of the random streams: replicate r draws from that of (seed, "sweep", r).
PURPOSE = "sweep"
#: Queries whose limit is computed at a time: arrays that stay in the cache, half the time.
ROWS = 4096


@dataclass(frozen=True, eq=False)
class Plan:
    """All that the errors of a replicate depend on, besides its number.

    ``means`` and ``covariances`` are those of the limit's outputs, axes [scale, ...]; they are used
    only when the queries are the tokens. ``outputs`` are the limit's outputs at all rows of a head
    from arrays, axes [scale, row, d_v]: replicates draw their queries among those.
    """

    head: Head
    sizes: tuple[int, ...]
    scales: tuple[float, ...]
    seed: int
    queries: str
    query_count: int | None
    dtype: str
    device: str
    means: Array
    covariances: Array
    outputs: Array | None = None

    def up_to(self, depth: int) -> Plan:
        """The plan of a replicate that ends at the size number ``depth``."""
        return self if depth == len(self.sizes) else replace(self, sizes=self.sizes[:depth])


def measure_replicate(plan: Plan, replicate: int) -> Array:
    """Errors of one replicate, axes [metric, scale, size] with the metrics of ``METRICS``."""
    with one_blas_thread():
        rng = random_stream(plan.seed, PURPOSE, replicate)
        tokens, tilts, exact = _draw(plan, rng)
        found = _attend(plan, tilts, tokens.keys, tokens.values, exact)
        means, covariances = plan.means, plan.covariances
        if plan.queries == "population":
            # The error of the limit's own moments over these queries is no error of the keys.
            means, covariances = moments_of_rows(exact)
        mean = np.linalg.norm(found.mean - means[:, None], axis=-1)
        cov = np.linalg.norm(found.covariance - covariances[:, None], axis=(-2, -1))
        assert found.map_square is not None  # a limit was given
        # Rounding can leave a tiny negative square where the error is 0.
        return np.stack([mean, cov, np.sqrt(np.maximum(found.map_square, 0.0))])


def _draw(plan: Plan, rng: np.random.Generator) -> tuple[Tokens, Array, Array]:
    """Tokens, tilts of the queries, and the limit's outputs there, axes [scale, query, d_v]."""
    head, n = plan.head, plan.sizes[-1]
    apart = plan.queries == "population"
    count = plan.query_count or n
    if isinstance(head, ArrayHead) and plan.outputs is not None:
        rows = head.sample_rows(n, rng)
        asking = head.sample_rows(count, rng) if apart else rows[: plan.query_count]
        return head.take(rows), head.tilts[asking], plan.outputs[:, asking]
    tokens = head.sample(n, rng)
    tilts = head.sample(count, rng).tilts if apart else tokens.tilts[: plan.query_count]
    # in the precision of the arithmetic: a float64 limit of many scales would fill the memory
    exact = np.empty((len(plan.scales), len(tilts), tokens.values.shape[1]), np.dtype(plan.dtype))
    for start in range(0, len(tilts), ROWS):
        some = slice(start, start + ROWS)
        for s, alpha in enumerate(plan.scales):
            exact[s, some] = head.limit_map(alpha * tilts[some])
    return tokens, tilts, exact


def _attend(
    plan: Plan, tilts: Array, keys: Array, values: Array, exact: Array
) -> AttentionStatistics:
    """Statistics of the outputs at every scale and size, from one pass."""
    # Imported here: a result that is only read needs none of it.
    from esscher.engine.attention import attention_statistics

    separate, mask = plan.queries == "population", None
    if not separate and len(tilts) < len(keys):
        # Queries beyond the first ones are masked; the kernel still wants their rows.
        mask = np.arange(len(keys)) < len(tilts)
        tilts = np.pad(tilts, ((0, len(keys) - len(tilts)), (0, 0)))
        exact = np.pad(exact, ((0, 0), (0, len(keys) - exact.shape[1]), (0, 0)))
    # on a processor these stay numpy's, so that the compiled kernel need not wait for torch
    q, k, v, limit, chosen = (_on(plan.device, x) for x in (tilts, keys, values, exact, mask))
    return attention_statistics(
        q,
        k,
        v,
        sizes=plan.sizes,
        scales=plan.scales,
        queries="separate" if separate else "tokens",
        factor=1.0,
        limit=limit,
        query_mask=chosen,
        dtype=plan.dtype,
    )


def _on(device: str, x: NDArray[Any] | None) -> Any:
    """An array for a pass on a device."""
    if device == "cpu" or x is None:
        return x
    import torch

    return torch.from_numpy(x).to(device)


_NAME = re.compile(r"replicate-(\d{6,12})")


class Replicate(Record, frozen=True, kw_only=True, tag_field="kind", tag="replicate"):
    """One replicate: software that measured it, how long that took, and at how many sizes."""

    versions: dict[str, str | None]
    seconds: float
    depth: Index


def cell_name(replicate: int) -> str:
    """Name of the cell of a replicate."""
    return f"replicate-{replicate:06d}"


def stored_replicates(run: CellRun) -> dict[int, str]:
    """Replicates that are there, in the order of their numbers, and the names of their cells."""
    found = {int(match[1]): match[0] for match in map(_NAME.fullmatch, run.names()) if match}
    return dict(sorted(found.items()))


def replicate_cell(
    scales: tuple[float, ...],
    sizes: tuple[int, ...],
    replicate: int,
    errors: Array,
    about: Replicate,
) -> Cell:
    """Return the cell of a replicate with errors of axes [metric, scale, size]."""
    columns: dict[str, Any] = {
        "replicate": np.full(len(scales) * len(sizes), replicate, dtype=np.int64)
    }
    columns |= _grid(scales, sizes)
    columns |= dict(zip(METRICS, _rows(errors), strict=True))
    return Cell(about, columns)


def replicate_errors(
    cells: Mapping[str, Cell], study: SweepStudy, run: CellRun
) -> dict[int, Array]:
    """Return the errors of replicates, axes [metric, scale, size], by their numbers.

    Raises
    ------
    InputError
        If a cell does not hold the replicate of its name.
    """
    grid = _grid(study.alpha, study.sizes)
    found = {}
    for name, cell in cells.items():
        match = _NAME.fullmatch(name)
        assert match is not None
        try:
            found[int(match[1])] = _errors(cell, int(match[1]), grid, study)
        except InputError as error:
            raise run.damaged(name, error) from error
    return found


def _grid(scales: tuple[float, ...], sizes: tuple[int, ...]) -> dict[str, Any]:
    """Columns that all replicates have in common."""
    return {
        "scale": np.repeat(np.arange(len(scales), dtype=np.int64), len(sizes)),
        "alpha": np.repeat(np.asarray(scales, dtype=np.float64), len(sizes)),
        "n": np.tile(np.asarray(sizes, dtype=np.int64), len(scales)),
    }


def _rows(errors: Array) -> list[Array]:
    return [np.asarray(part, dtype=np.float64).ravel() for part in errors]


def _errors(cell: Cell, replicate: int, grid: Mapping[str, Any], study: SweepStudy) -> Array:
    about, rows = cell.about, len(study.alpha) * len(study.sizes)
    if not isinstance(about, Replicate):
        raise InputError("it holds something else")
    same = len(_column(cell, "replicate")) == rows and all(
        np.array_equal(_column(cell, name), wanted) for name, wanted in grid.items()
    )
    if not same or np.any(_column(cell, "replicate") != replicate):
        raise InputError(f"its rows are not those of replicate {replicate}")
    shape = len(METRICS), len(study.alpha), len(study.sizes)
    errors = np.stack([_column(cell, metric) for metric in METRICS]).reshape(shape)
    deep = errors[..., : about.depth]
    if not (np.all(np.isfinite(deep)) and np.all(deep >= 0)):
        raise InputError(f"it has no errors at its {about.depth} sizes")
    if not np.all(np.isnan(errors[..., about.depth :])):
        raise InputError(f"it has errors beyond its {about.depth} sizes")
    return errors


def measure_cell(plan: Plan, replicate: int, depth: int) -> Cell:
    """Measure one replicate at the first ``depth`` sizes, in this process or in another one."""
    start = time.perf_counter()
    errors: Array = np.full((len(METRICS), len(plan.scales), len(plan.sizes)), np.nan)
    errors[..., :depth] = measure_replicate(plan.up_to(depth), replicate)
    about = Replicate(versions=versions(), seconds=time.perf_counter() - start, depth=depth)
    return replicate_cell(plan.scales, plan.sizes, replicate, errors, about)
