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
from esscher.runs.old_study import Study
from esscher.studies.sweep.measure import (
    EXISTENCE_SAMPLES,
    LIMIT,
    NAME,
    Limit,
    Plan,
    Replicate,
    cell_name,
    limit_arrays,
    limit_cell,
    measure_cell,
    measured_head,
    reference_outputs,
    replicate_errors,
    scaled_head,
)
from esscher.studies.sweep.predictions import (
    PREDICTIONS,
    Predictions,
    predict_scale,
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
    auxiliary = frozenset({LIMIT, PREDICTIONS})
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
        population = self.queries == "population"
        query_count = self.query_count or (POPULATION_QUERIES if population else None)
        most = self.max_replicates
        if self.precision is None and most is not None:
            raise InputError("max_replicates needs a precision; give both, or replicates alone")
        if self.precision is not None:
            if len(sizes) < 2:
                raise InputError("precision needs at least 2 sizes: it is that of a slope")
            most = most or PATIENCE * self.replicates
            if most < self.replicates:
                raise InputError(
                    f"max_replicates is {most}, below replicates, which is {self.replicates}"
                )
        if self.device != "cpu":
            import torch

            try:
                torch.zeros(1, device=self.device)
            except (RuntimeError, AssertionError, ValueError, TypeError) as error:
                reason = str(error).splitlines()[0] if str(error) else type(error).__name__
                raise InputError(f"device {self.device!r} cannot be used: {reason}") from error
        tokens = self.reference_tokens
        if tokens is None:
            heads = (scaled_head(head, alpha) for alpha in self.alpha)
            if any(missing_limit(scaled, EXISTENCE_SAMPLES, self.seed) for scaled in heads):
                tokens = REFERENCE_FACTOR * sizes[-1]
        elif isinstance(head, ArrayHead):
            raise InputError(
                "reference_tokens is for laws; the reference of a head from arrays is all its rows"
            )
        elif tokens < sizes[-1]:
            raise InputError(
                f"reference_tokens is {tokens}, below the largest size, which is {sizes[-1]}"
            )
        for name, count in (
            ("sizes go up to", sizes[-1]),
            ("reference_tokens is", tokens or 0),
            ("query_count is", (query_count or 0) * population),
        ):
            check_memory(8 * head.key_dim * count, f"{name} {count:,}; a sample of that size")
        return replace(
            self,
            head=head,
            sizes=sizes,
            query_count=query_count,
            max_replicates=most,
            reference_tokens=tokens,
        )

    def cells(self) -> list[str]:
        """One cell per replicate; a precision may ask for more."""
        return [cell_name(replicate) for replicate in range(self.replicates)]

    def stored(self, run: CellRun) -> dict[str, Cell]:
        """Return all replicates that are there, in the order of their numbers."""
        numbers = [int(match[1]) for match in map(NAME.fullmatch, run.names()) if match]
        cells = {name: run.read(name) for name in map(cell_name, sorted(numbers))}
        return {name: cell for name, cell in cells.items() if cell is not None}

    def prepare(self, executor: CellExecutor) -> SweepWork:
        """Describe the head; the limit is computed when a replicate needs it."""
        head = as_head(self.head)
        record = HeadRecord(
            kind=type(head).__name__,
            law=head.law.name if isinstance(head, WeightHead) else None,
            key_dim=head.key_dim,
            value_dim=head.value_dim,
            horizon=head.horizon,
            frobenius=head.frobenius,
            sha256=hash_of(head),
        )
        return SweepWork(replace(self, head=record), head, executor)

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


@dataclass(frozen=True, eq=False)
class SweepWork:
    """A sweep that is ready: see :class:`esscher.runs.old_study.Work`.

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
        limit = run.read(LIMIT)
        if limit is None:  # stored: a resumed run compares with the very same numbers
            with one_blas_thread():
                limit = limit_cell(self.head, *self.drawn, study)
            run.write(LIMIT, limit)
        means, covariances = limit_arrays(limit, run, study)
        plan = None
        while (batch := schedule.next_batch(known)) is not None:
            missing = [n for n in range(batch.start, batch.stop) if n not in known]
            if not missing:
                continue
            if plan is None:
                head, outputs = self.drawn
                measured = replace(study, executor=None)  # workers know nothing of who computes
                plan = self.executor.share(Plan(measured, head, means, covariances, outputs))
            yield {
                name: Task(name, measure_cell, (plan, number, batch.depth))
                for number in missing
                for name in [cell_name(number)]
            }
            if study.precision is not None:  # what comes next depends on it
                cells = {name: run.read(name) for name in map(cell_name, missing)}
                new = {name: cell for name, cell in cells.items() if cell is not None}
                known |= replicate_errors(new, study, run)
        schedule.check(known)
        if study.predict and stored_predictions(run, study) is None:
            with one_blas_thread():
                scales = tuple(
                    predict_scale(
                        scaled_head(self.head, alpha), study.sizes, study.queries, study.seed
                    )
                    for alpha in study.alpha
                )
            run.write(PREDICTIONS, Cell(Predictions(scales=scales)))

    @cached_property
    def drawn(self) -> tuple[Head, Array | None]:
        """The head whose tokens are drawn, and the limit's outputs at all of its rows if few."""
        head = measured_head(self.head, self.study)
        with one_blas_thread():
            return head, reference_outputs(head, self.study)
