"""What a sweep stores: its head as text and hash, replicates, the limit, what theory predicts.

The table of a replicate has the columns replicate, scale (its place in the list), alpha, n, and the
errors mean, cov, map (NaN at the sizes above the last of a replicate that a precision made end
early).
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, TypeAlias

import numpy as np

from esscher.core.codec import Index, Record
from esscher.core.errors import InputError
from esscher.core.validation import Array
from esscher.runs.folder import Cell, CellRun
from esscher.studies.sweep.measure import METRICS
from esscher.studies.sweep.predictions import ScalePrediction
from esscher.studies.sweep.reference import Reference

if TYPE_CHECKING:
    from esscher.studies.sweep.study import SweepStudy


import dataclasses
import hashlib
from functools import cached_property
from typing import Annotated

from msgspec import Meta

from esscher.core.codec import Hash, Name
from esscher.math.heads import Head, WeightHead
from esscher.math.laws import Law

#: Names of the cells beside the replicates.
LIMIT, PREDICTIONS = "limit", "predictions"
_NAME = re.compile(r"replicate-(\d{6,12})")


class Replicate(Record, frozen=True, kw_only=True, tag_field="kind", tag="replicate"):
    """One replicate: software that measured it, how long that took, and at how many sizes."""

    versions: dict[str, str | None]
    seconds: float
    depth: Index


class Limit(Record, frozen=True, kw_only=True, tag_field="kind", tag="limit"):
    """Moments of the limit, so that a resumed run compares with the very same numbers.

    The column ``covariance`` of the table has the covariances, axes [scale, i, j].
    """

    means: tuple[tuple[float, ...], ...]
    methods: tuple[str, ...]
    mean_error: tuple[float, ...]
    cov_error: tuple[float, ...]
    notes: tuple[str, ...]


class Predictions(Record, frozen=True, kw_only=True, tag_field="kind", tag="predictions"):
    """Predictions of theory, one entry per scale."""

    scales: tuple[ScalePrediction, ...]


SweepCell: TypeAlias = Replicate | Limit | Predictions


def cell_name(replicate: int) -> str:
    """Name of the cell of a replicate."""
    return f"replicate-{replicate:06d}"


def stored_replicates(run: CellRun) -> dict[int, str]:
    """Replicates that are there, in the order of their numbers, and the names of their cells."""
    found = {int(match[1]): match[0] for match in map(_NAME.fullmatch, run.names()) if match}
    return dict(sorted(found.items()))


def replicate_cell(
    scales: tuple[float, ...], sizes: tuple[int, ...], replicate: int, errors: Array,
    about: Replicate,
) -> Cell:  # fmt: skip
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


def stored_predictions(run: CellRun, study: SweepStudy) -> tuple[ScalePrediction, ...] | None:
    """Return the predictions that a run has stored, if it has.

    Raises
    ------
    InputError
        If they are not for the scales and sizes of this sweep.
    """
    cell = run.read(PREDICTIONS)
    if cell is None:
        return None
    about, scales, sizes = cell.about, study.alpha, study.sizes
    if not isinstance(about, Predictions) or len(about.scales) != len(scales):
        raise run.damaged(PREDICTIONS, f"it is not of {len(scales)} scales")
    for found in about.scales:
        if any(len(errors) != len(sizes) for errors in found.errors.values()):
            raise run.damaged(PREDICTIONS, f"it is not of {len(sizes)} sizes")
        larger = found.beyond_sizes
        if any(len(errors) != len(larger) for errors in found.beyond.values()):
            raise run.damaged(PREDICTIONS, f"it is not of {len(larger)} sizes beyond the sweep's")
        if any(metric not in found.sharp for metric in METRICS):
            raise run.damaged(PREDICTIONS, f"sharp lacks some of {', '.join(METRICS)}")
    return about.scales


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


def _column(cell: Cell, name: str) -> Array:
    column = cell.column(name)
    if column.dtype.kind not in "if":
        raise InputError(f"its column {name!r} holds no numbers")
    return column


_Dim: TypeAlias = Annotated[int, Meta(ge=1, le=10**6)]
_Size: TypeAlias = Annotated[float, Meta(ge=0)]


class HeadRecord(Record, frozen=True, kw_only=True):
    """What a configuration says about a head; the hash covers every number in it."""

    kind: Name
    law: Name | None
    key_dim: _Dim
    value_dim: _Dim
    horizon: _Size
    frobenius: _Size
    sha256: Hash

    @property
    def tokens(self) -> str:
        """What its tokens are called: their law, or the kind of head."""
        return self.law or self.kind


def describe_head(head: Head) -> HeadRecord:
    """Describe a head for the configuration of a run."""
    return HeadRecord(
        kind=type(head).__name__,
        law=head.law.name if isinstance(head, WeightHead) else None,
        key_dim=head.key_dim,
        value_dim=head.value_dim,
        horizon=head.horizon,
        frobenius=head.frobenius,
        sha256=hash_of(head),
    )


def hash_of(thing: object) -> str:
    """SHA-256 of an object's class and contents, arrays bit for bit."""
    digest = hashlib.sha256()
    _feed(digest, thing)
    return digest.hexdigest()


def _feed(digest: Any, thing: object) -> None:
    """Add one object to a hash; what is cached inside it is a function of the rest and left out."""
    if thing is None or isinstance(thing, (bool, int, float, str, bytes)):
        digest.update(f"{type(thing).__name__}:{thing!r};".encode())
    elif isinstance(thing, (np.ndarray, np.generic)):
        array = np.ascontiguousarray(thing)
        digest.update(f"array:{array.dtype.str}:{np.shape(thing)};".encode())
        digest.update(array.tobytes())
    elif isinstance(thing, dict):
        _feed_items(digest, "dict", thing)
    elif isinstance(thing, (list, tuple)):
        _feed_items(digest, "list", dict(enumerate(thing)))
    elif isinstance(thing, Law):
        _feed_items(digest, type(thing).__name__, thing._parameters())
    elif dataclasses.is_dataclass(thing):
        fields = {field.name: getattr(thing, field.name) for field in dataclasses.fields(thing)}
        _feed_items(digest, type(thing).__name__, fields)
    else:
        kind = type(thing)
        kept = {
            name: value
            for name, value in getattr(thing, "__dict__", {"repr": repr(thing)}).items()
            if not isinstance(getattr(kind, name, None), cached_property)
        }
        _feed_items(digest, kind.__name__, kept)


def _feed_items(digest: Any, kind: str, items: dict[Any, object]) -> None:
    digest.update(f"{kind}({len(items)}:".encode())
    for name, value in sorted(items.items(), key=lambda item: str(item[0])):
        digest.update(f"{name}=".encode())
        _feed(digest, value)
    digest.update(b")")
