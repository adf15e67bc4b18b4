"""The study: which options there are, which cells, and how they become a result."""

from __future__ import annotations

import dataclasses
import hashlib
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import TYPE_CHECKING, Annotated, Any, ClassVar, Literal, TypeAlias

import numpy as np
from msgspec import Meta

from esscher.core.codec import Hash, Name, Record
from esscher.core.errors import InputError
from esscher.core.options import BY_MODEL, Seed, option
from esscher.core.validation import Array, as_sizes, check_memory
from esscher.math.heads import ArrayHead, Head, WeightHead, as_head
from esscher.math.laws import Law
from esscher.math.limits import missing_limit
from esscher.runs.executors import CellExecutor, Task, one_blas_thread
from esscher.runs.folder import Cell, CellRun
from esscher.runs.study import Study
from esscher.studies.sweep.measure import (
    EXISTENCE_SAMPLES,
    LIMIT,
    Limit,
    Plan,
    Reference,
    Replicate,
    cell_name,
    limit_cell,
    measure_cell,
    measured_head,
    reference_moments,
    reference_notes,
    reference_outputs,
    replicate_errors,
    scaled_head,
    stored_limit,
    stored_replicates,
)
from esscher.studies.sweep.predictions import (
    PREDICTIONS,
    Predictions,
    predict_scales,
    stored_predictions,
)
from esscher.studies.sweep.result import Sweep, assemble
from esscher.studies.sweep.schedule import Schedule

SweepCell: TypeAlias = Replicate | Limit | Predictions


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
        _feed_items(digest, type(thing).__name__, thing.parameters)
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


if TYPE_CHECKING:
    HeadLike: TypeAlias = Head | HeadRecord
else:
    # what is stored in the place of a head; see Study.sources
    HeadLike = HeadRecord

#: Queries of a replicate that are drawn apart from its keys, unless a number is given.
POPULATION_QUERIES = 1024
#: Tokens that stand for a law without limit, as a multiple of the largest size.
REFERENCE_FACTOR = 4
#: Replicates that a precision may cost, as a multiple of those it starts with.
PATIENCE = 16
#: Most sizes, and most scales.
MOST = 10_000


@dataclass(frozen=True, kw_only=True)
class SweepStudy(Study[Sweep]):
    """Measure how fast attention over synthetic tokens converges.

    Attention over n tokens estimates an infinite-token limit. Every replicate draws the largest
    number of tokens and measures the errors at all sizes in one pass. The result depends on the
    seed alone: it is the same to the bit for any number of workers, and however often the sweep was
    interrupted.
    """

    name = "sweep"
    asks = "How fast does attention over n tokens reach its limit?"
    next_step = "esscher theory --horizon H --sizes 1e3:1e12"
    unit = "replicates"
    cell = SweepCell
    result = Sweep
    sources = frozenset({"head"})
    beside = frozenset({LIMIT, PREDICTIONS})
    command_defaults: ClassVar[Mapping[str, Any]] = {"predict": True}
    examples = (
        "esscher sweep gaussian --dim 8 --horizon 1.5 --sizes 200:20000:10 --out RUN",
        "esscher sweep sphere --dim 8 --horizon 1 --alpha 0.1:10:5 --sizes 100:5000:6 --workers 2",
        "esscher sweep gaussian --horizon 0.5 --sizes 100:3000:6 --precision 0.02",
    )

    head: Annotated[
        HeadLike,
        option(
            "Any head. Laplace and Student tokens have no limit: they are compared with attention "
            "over many tokens."
        ),
    ] = field(kw_only=False)
    sizes: Annotated[
        tuple[Annotated[int, Meta(ge=1, le=10**18)], ...],
        option("Numbers of tokens n, as first:last:count.", metavar="A:B:K", max_length=MOST),
    ] = field(kw_only=False)
    replicates: Annotated[
        int,
        option(
            "Independent samples of tokens; with a precision, how many to start with.",
            changeable=True,
            ge=1,
            le=10**9,
        ),
    ] = field(default=64, kw_only=False)
    seed: Seed = field(default=0, kw_only=False)
    alpha: Annotated[
        tuple[Annotated[float, Meta(gt=0)], ...],
        option(
            "Factors of the head's tilts, all measured on the same tokens.",
            metavar="A:B:K",
            key="scales",
            min_length=1,
            max_length=MOST,
        ),
    ] = (1.0,)
    precision: Annotated[
        float | None,
        option(
            "Sample until the exponent of the mean is known to within +- this (95% interval).",
            changeable=True,
            gt=0,
        ),
    ] = None
    max_replicates: Annotated[
        int | None,
        option(
            "With a precision: stop after this much work, in replicates of the largest size "
            "(default: 16 times the replicates).",
            changeable=True,
            ge=1,
            le=10**12,
            command=None,
        ),
    ] = BY_MODEL
    queries: Annotated[
        Literal["tokens", "population"],
        option("Queries: the tokens themselves, or independent of the keys."),
    ] = "tokens"
    query_count: Annotated[
        int | None,
        option(
            "Number of queries (default: all tokens, or 1024 independent ones).",
            ge=1,
            le=10**15,
            command=None,
        ),
    ] = BY_MODEL
    dtype: Annotated[
        Literal["float32", "float64"],
        option("Precision of logits and weights; sums are always float64.", command=None),
    ] = "float32"
    device: Annotated[
        str, option("Device of PyTorch, such as cpu or cuda.", max_length=256, command=None)
    ] = "cpu"
    reference_tokens: Annotated[
        int | None,
        option(
            "Compare with attention over this many tokens, drawn once (default for laws without a "
            "limit: 4 times the largest size).",
            command=None,
            ge=1,
            le=10**15,
        ),
    ] = BY_MODEL
    predict: Annotated[
        bool,
        option(
            "Also predict the exponents at these sizes (takes seconds per alpha).", changeable=True
        ),
    ] = False

    def filled(self) -> SweepStudy:
        """Fill in what depends on the head and on other options."""
        head = as_head(self.head)
        sizes = tuple(int(n) for n in as_sizes(self.sizes))
        if len(set(self.alpha)) < len(self.alpha):
            raise InputError(f"alpha is {list(self.alpha)}; each may occur only once")
        count = POPULATION_QUERIES if self.queries == "population" else None
        study = replace(
            self,
            head=head,
            sizes=sizes,
            query_count=self.query_count or count,
            max_replicates=self._most(sizes),
        )
        _check_device(study.device)
        study = replace(study, reference_tokens=study._reference_tokens(head))
        for name, most in (
            ("sizes go up to", sizes[-1]),
            ("reference_tokens is", study.reference_tokens or 0),
            ("query_count is", (study.query_count or 0) * (self.queries == "population")),
        ):
            check_memory(8 * head.key_dim * most, f"{name} {most:,}; a sample of that size")
        return study

    def cells(self) -> list[str]:
        """One cell per replicate; a precision may ask for more."""
        return [cell_name(replicate) for replicate in range(self.replicates)]

    def stored(self, run: CellRun) -> dict[str, Cell]:
        """Return all replicates that are there."""
        found = {name: run.read(name) for name in stored_replicates(run).values()}
        return {name: cell for name, cell in found.items() if cell is not None}

    def prepare(self, executor: CellExecutor) -> SweepWork:
        """Describe the head; the limit is computed when a replicate needs it."""
        head = as_head(self.head)
        return SweepWork(replace(self, head=describe_head(head)), head, executor)

    def assemble(self, cells: Mapping[str, Cell], run: CellRun) -> Sweep:
        """Sum up the errors."""
        return assemble(self, cells, run)

    @property
    def head_record(self) -> HeadRecord:
        """The head of a sweep that has been run."""
        assert isinstance(self.head, HeadRecord)
        return self.head

    @property
    def subject(self) -> str:
        """Law of the tokens, or kind of the head."""
        return self.head_record.tokens

    def _most(self, sizes: tuple[int, ...]) -> int | None:
        """Replicates that a precision may cost."""
        if self.precision is None:
            if self.max_replicates is not None:
                raise InputError("max_replicates needs a precision; give both, or replicates alone")
            return None
        if len(sizes) < 2:
            raise InputError("precision needs at least 2 sizes: it is that of a slope")
        most = self.max_replicates or PATIENCE * self.replicates
        if most < self.replicates:
            raise InputError(
                f"max_replicates is {most}, below replicates, which is {self.replicates}"
            )
        return most

    def _reference_tokens(self, head: Head) -> int | None:
        """Tokens that stand for the law: those asked for, or enough of them if it has no limit."""
        asked, largest = self.reference_tokens, self.sizes[-1]
        if asked is not None:
            if isinstance(head, ArrayHead):
                raise InputError(
                    "reference_tokens is for laws; the reference of a head from arrays is all its "
                    "rows"
                )
            if asked < largest:
                raise InputError(
                    f"reference_tokens is {asked}, below the largest size, which is {largest}"
                )
            return asked
        missing = any(
            missing_limit(scaled_head(head, alpha), EXISTENCE_SAMPLES, self.seed)
            for alpha in self.alpha
        )
        return REFERENCE_FACTOR * largest if missing else None


def _check_device(device: str) -> None:
    if device == "cpu":
        return
    import torch

    try:
        torch.zeros(1, device=device)
    except (RuntimeError, AssertionError, ValueError, TypeError) as error:
        reason = str(error).splitlines()[0] if str(error) else type(error).__name__
        raise InputError(f"device {device!r} cannot be used: {reason}") from error


@dataclass(frozen=True, eq=False)
class SweepWork:
    """A sweep that is ready: see :class:`esscher.runs.study.Work`.

    Attributes
    ----------
    study
        The sweep, with a record of its head.
    head
        The head.
    executor
        Who computes.
    """

    study: SweepStudy
    head: Head
    executor: CellExecutor

    def batches(self, run: CellRun) -> Iterator[Mapping[str, Task]]:
        """Yield replicates; with a precision, further batches follow from what was measured.

        The limit is stored before the first of them, predictions after the last.
        """
        study = self.study
        schedule = Schedule(study, run.folder)
        known = replicate_errors(study.stored(run), study, run)
        schedule.check(known)
        limit = stored_limit(run, study) or self._limit(run)
        plan = None
        while (batch := schedule.next_batch(known)) is not None:
            missing = [n for n in range(batch.start, batch.stop) if n not in known]
            if not missing:
                continue
            if plan is None:
                plan = self.executor.share(self._plan(limit))
            names = [cell_name(number) for number in missing]
            yield {
                name: Task(name, measure_cell, (plan, number, batch.depth))
                for name, number in zip(names, missing, strict=True)
            }
            if study.precision is not None:  # what comes next depends on it
                new = {name: cell for name in names if (cell := run.read(name)) is not None}
                known |= replicate_errors(new, study, run)
        schedule.check(known)
        if study.predict and stored_predictions(run, study) is None:
            with one_blas_thread():
                found = predict_scales(self.head, study)
            run.write(PREDICTIONS, Cell(Predictions(scales=found)))

    @cached_property
    def drawn(self) -> Head:
        """The head whose tokens are drawn."""
        return measured_head(self.head, self.study)

    @cached_property
    def outputs(self) -> Array | None:
        """The limit's outputs at all rows of a head from arrays."""
        with one_blas_thread():
            return reference_outputs(self.drawn, self.study)

    def _limit(self, run: CellRun) -> Reference:
        """Compute the limit and store it: a resumed run compares with the very same numbers."""
        with one_blas_thread():
            notes = reference_notes(self.head, self.study)
            found = reference_moments(self.drawn, self.outputs, self.study)
        limit = replace(found, extra_notes=notes)
        run.write(LIMIT, limit_cell(limit))
        return limit

    def _plan(self, limit: Reference) -> Plan:
        study = self.study
        return Plan(
            head=self.drawn,
            sizes=study.sizes,
            scales=study.alpha,
            seed=study.seed,
            queries=study.queries,
            query_count=study.query_count,
            dtype=study.dtype,
            device=study.device,
            means=limit.means,
            covariances=limit.covariances,
            outputs=self.outputs,
        )
