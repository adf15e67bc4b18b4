"""The study: errors of attention over tokens of a law, and how fast they fall."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import partial
from typing import TYPE_CHECKING, Annotated, Any, ClassVar, Literal, TypeAlias

from msgspec import Meta

from esscher.core.codec import Count, Hash, Name, Record
from esscher.core.errors import InputError
from esscher.core.options import Seed, option
from esscher.core.validation import as_sizes, check_memory
from esscher.core.variables import Data, group, var
from esscher.runs.executors import CellExecutor
from esscher.runs.fits import Fit
from esscher.runs.folder import Run
from esscher.runs.result import Result
from esscher.runs.study import Setup, Study, Work

if TYPE_CHECKING:
    import xarray as xr

    from esscher.math.heads import Head
    from esscher.math.statistics import Rate

    HeadLike: TypeAlias = Head
else:  # types of options are evaluated, and this one needs numpy
    HeadLike = Any

#: Errors that are measured: norm of the error of the mean output, Frobenius norm of the error of
#: its covariance, root mean square over the queries of the error of the map.
METRICS = ("mean", "cov", "map")
#: Names of the cells of the limit and of the predictions.
LIMIT, PREDICTIONS = "limit", "predictions"
#: Queries of a replicate that are drawn apart from its keys, unless a number is given.
POPULATION_QUERIES = 1024
#: Tokens that stand for a law without limit, as a multiple of the largest size.
REFERENCE_FACTOR = 4
#: Most sizes, and most factors.
MOST = 10_000


class LimitMethod(Data):
    """How the limit is known."""

    method = var("alpha", kind="U", page=False, help="how its moments were computed")
    limit_mean_error = var("alpha", page=False, help="standard error of the mean; 0 when exact")
    limit_covariance_error = var("alpha", page=False, help="of the covariance")
    no_limit = var(kind="U", page=False, help="why tokens stand for a limit; empty if there is one")


class Limit(LimitMethod):
    """A cell: moments of the limit, so that a resumed run compares with the very same numbers."""

    mean = var("alpha row")
    covariance = var("alpha row column")


class Replicate(Data):
    """A cell: errors on the tokens of one replicate."""

    error = var("metric alpha replicate size")


class Predictions(Data):
    """A cell: what theory says about these sizes, and larger ones (``tokens``)."""

    predicted_error = var("metric alpha tokens", page=False)
    asymptotic = var(
        "metric alpha",
        "conjectured",
        "d3",
        terminal="conj.",
        help="asymptotic exponent, conjectured for Gaussian tokens",
    )
    log_burn_in = var("alpha", page=False, help="logarithm of the tokens of the burn-in")
    prediction_note = var("alpha", kind="U", page=False)


class SweepData(LimitMethod, Predictions):
    """The result: errors of every replicate, how fast their mean falls, and what theory says."""

    horizon = var("alpha", "H", "s3", terminal="H", help="horizon of the scaled head")
    replicate_error = var("metric alpha replicate size", page=False, help="error of one replicate")
    error = var(
        "metric alpha size bound",
        "error",
        "s3",
        terminal="error",
        interval="short",
        help="mean over replicates, with 95% interval",
    )
    fit = group(Fit, "metric alpha")
    predicted = var(
        "metric alpha",
        "predicted",
        "d3",
        terminal="predicted",
        help="exponent of the predicted curve on these sizes",
    )
    paper_reference = var(
        "alpha", "reference", "d3", terminal="ref.", help="published reference exponent"
    )
    paper_bound = var("alpha", "bound", "d3", terminal="bound", help="published lower bound")
    verdict = var(
        "metric alpha",
        "law",
        kind="U",
        terminal="law",
        help="as predicted if the ratio to the predicted curve does not change beyond noise, and "
        "a floor of half the last error would have been seen; undecided if such a floor, a power "
        "of ln n or a sum of two powers (n^-1/2 and n^-1) is not excluded: the exponent then "
        "describes these sizes, and nothing says that it goes on",
    )
    floor_share = var(
        "metric alpha",
        "floor, at most",
        "p0",
        terminal="floor <",
        help="95% limit of a floor, as a share of the error at the largest size",
    )
    floor_power = var(
        "metric alpha", "power", "p0", help="how often the test finds a floor of half that error"
    )


class HeadRecord(Record, frozen=True, kw_only=True):
    """Record of a head in a configuration; the hash covers every number in it."""

    kind: Name
    law: Name | None
    key_dim: Annotated[int, Meta(ge=1, le=10**6)]
    value_dim: Annotated[int, Meta(ge=1, le=10**6)]
    horizon: Annotated[float, Meta(ge=0)]
    frobenius: Annotated[float, Meta(ge=0)]
    sha256: Hash

    @property
    def tokens(self) -> str:
        """Name of its tokens: their law, or the kind of head."""
        return self.law or self.kind


class SweepSettings(Record, frozen=True, kw_only=True):
    """Settings of a run."""

    sizes: Annotated[tuple[Count, ...], Meta(min_length=1)]
    replicates: Count
    seed: int
    alpha: Annotated[tuple[float, ...], Meta(min_length=1)]
    queries: Literal["tokens", "population"]
    query_count: Count | None
    dtype: Literal["float32", "float64"]
    device: Name
    reference_tokens: Count | None
    predict: bool

    @property
    def predicted_sizes(self) -> tuple[int, ...]:
        """Numbers of tokens of a predicted curve: the sizes, and larger ones, where it goes on."""
        return (*self.sizes, *(self.sizes[-1] * 4**power for power in range(1, 7)))


class Sweep(Result[SweepSettings]):
    """Errors of attention over n tokens, measured on independent replicates."""

    @property
    def head_record(self) -> HeadRecord:
        """The head that was measured."""
        record: HeadRecord = self.setup.records["head"]
        return record

    @property
    def has_fits(self) -> bool:
        """Whether any rate could be fitted: it takes a replicate and two sizes."""
        return bool(self["exponent"].notnull().any()) if self.cells else False

    def rate(
        self, metric: str = "mean", alpha: float | None = None, *, level: float = 0.95
    ) -> Rate:
        """Fit error ~ C n^-beta to one metric at one scale.

        Parameters
        ----------
        metric
            ``"mean"``, ``"cov"`` or ``"map"``.
        alpha
            Factor of the tilts; may be left out if there is only one.
        level
            Level of the intervals, which come from resampling replicates.

        Returns
        -------
        Rate
            With the published exponents beside it and, if the sweep was made with
            ``predict=True``, the one predicted on the same sizes.

        Raises
        ------
        InputError
            For another metric or alpha, or errors that are 0 at all sizes but one.
        """
        from esscher.studies.sweep.combine import fit_errors

        if metric not in METRICS:
            raise InputError(f"metric is {metric!r}; it must be one of {', '.join(METRICS)}")
        known = self.setup.settings.alpha
        if (len(known) > 1) if alpha is None else (alpha not in known):
            raise InputError(f"alpha is {alpha}; it must be one of {', '.join(map(str, known))}")
        chosen = known[0] if alpha is None else float(alpha)
        return fit_errors(SweepData(self.data), metric, chosen, self.setup.settings.seed, level)


@dataclass(frozen=True, kw_only=True)
class SweepStudy(Study[SweepSettings]):
    """Measure how fast attention over synthetic tokens converges.

    Attention over n tokens estimates an infinite-token limit. Every replicate draws the largest
    number of tokens and measures the errors at all sizes in one pass. The result depends on the
    seed alone: it is the same to the bit for any number of workers, and however often the sweep was
    interrupted.
    """

    settings, data, result = SweepSettings, SweepData, Sweep
    records: ClassVar[Mapping[str, Any]] = {"head": HeadRecord}
    cell: ClassVar = {"replicate": Replicate, LIMIT: Limit, PREDICTIONS: Predictions}
    asks = "How fast does attention over n tokens reach its limit?"
    next_step = "esscher theory --horizon H --sizes 1e3:1e12"
    unit = "replicates"
    sources = frozenset({"head"})
    auxiliary = frozenset({LIMIT, PREDICTIONS})
    command_defaults: ClassVar[Mapping[str, Any]] = {"predict": True}
    examples = (
        "esscher sweep gaussian --dim 8 --horizon 1.5 --sizes 200:20000:10 --out RUN",
        "esscher sweep sphere --dim 8 --horizon 1 --alpha 0.1:10:5 --sizes 100:5000:6 --workers 2",
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
        option("Independent samples of tokens.", changeable=True, ge=1, le=10**9),
    ] = field(default=64, kw_only=False)
    seed: Seed = field(default=0, kw_only=False)
    alpha: Annotated[
        tuple[Annotated[float, Meta(gt=0)], ...],
        option(
            "Factors of the head's tilts, all measured on the same tokens.",
            metavar="A:B:K",
            min_length=1,
            max_length=MOST,
        ),
    ] = (1.0,)
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
    ] = None
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
    ] = None
    predict: Annotated[
        bool,
        option(
            "Also predict the exponents at these sizes (takes seconds per alpha).", changeable=True
        ),
    ] = False

    def known(self) -> SweepSettings:
        """Fill in what depends on the head and on other options."""
        from esscher.math.heads import ArrayHead, as_head
        from esscher.studies.sweep.measure import lacks_limit

        head = as_head(self.head)
        sizes = tuple(int(n) for n in as_sizes(self.sizes))
        if len(set(self.alpha)) < len(self.alpha):
            raise InputError(f"alpha is {list(self.alpha)}; each may occur only once")
        population = self.queries == "population"
        query_count = self.query_count or (POPULATION_QUERIES if population else None)
        if self.device != "cpu":
            from esscher.engine.models.load import as_device  # brings torch

            as_device(self.device)
        tokens = self.reference_tokens
        if tokens is None:
            tokens = (
                REFERENCE_FACTOR * sizes[-1] if lacks_limit(head, self.alpha, self.seed) else None
            )
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
        return self.settings_with(sizes=sizes, query_count=query_count, reference_tokens=tokens)

    def prepare(self, executor: CellExecutor) -> Work:
        """Describe the head; the limit is computed when a replicate needs it."""
        from esscher.math.heads import WeightHead
        from esscher.studies.sweep.measure import hash_of, sweep_batches

        head = self.head
        record = HeadRecord(
            kind=type(head).__name__,
            law=head.law.name if isinstance(head, WeightHead) else None,
            key_dim=head.key_dim,
            value_dim=head.value_dim,
            horizon=head.horizon,
            frobenius=head.frobenius,
            sha256=hash_of(head),
        )
        setup = Setup(self.known(), {"head": record})
        return setup, partial(sweep_batches, setup, head, executor)

    @staticmethod
    def cells(setup: Setup[SweepSettings]) -> list[str]:
        """One cell per replicate."""
        from esscher.studies.sweep.measure import cell_name

        return [cell_name(replicate) for replicate in range(setup.settings.replicates)]

    @classmethod
    def stored(cls, setup: Setup[SweepSettings], run: Run) -> tuple[dict[str, xr.Dataset], bool]:
        """Return the limit, all replicates and the predictions, as far as they are there."""
        from esscher.studies.sweep.measure import stored_cells

        return stored_cells(setup, run)

    @staticmethod
    def combine(setup: Setup[SweepSettings], cells: Mapping[str, xr.Dataset]) -> SweepData:
        """Sum up the errors, and fit rates."""
        from esscher.studies.sweep.combine import combine

        return combine(setup, cells)

    @staticmethod
    def subject(setup: Setup[SweepSettings]) -> str:
        """Name the law of the tokens, or the kind of head."""
        record: HeadRecord = setup.records["head"]
        return record.tokens
