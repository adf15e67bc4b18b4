"""The study: which options there are, which cells, and how they become a result."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Annotated, Any, ClassVar, Literal, TypeAlias

from msgspec import Meta

from esscher.core.errors import InputError
from esscher.core.options import BY_MODEL, Seed, option
from esscher.core.validation import as_sizes, check_memory
from esscher.math.heads import ArrayHead, Head, as_head
from esscher.math.limits import missing_limit
from esscher.runs.executors import CellExecutor
from esscher.runs.folder import Cell, CellRun
from esscher.runs.study import Study
from esscher.studies.sweep.cells import (
    LIMIT,
    PREDICTIONS,
    HeadRecord,
    SweepCell,
    cell_name,
    describe_head,
    stored_replicates,
)
from esscher.studies.sweep.reference import EXISTENCE_SAMPLES, scaled_head
from esscher.studies.sweep.result import Sweep, assemble

if TYPE_CHECKING:
    from esscher.studies.sweep.work import SweepWork

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
        from esscher.studies.sweep.work import SweepWork

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
