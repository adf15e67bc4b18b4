"""The studies: sparse patterns on the heads of a model, and on tokens of a law."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from itertools import pairwise
from typing import TYPE_CHECKING, Annotated, TypeAlias

from msgspec import Meta

from esscher.core.codec import Count, Index, Name, Record
from esscher.core.errors import InputError
from esscher.core.options import AtMost, Seed, SomeHeads, SomeLayers, option
from esscher.core.validation import STANDARD_LAWS, as_indices, check_memory
from esscher.core.variables import Data, group, var
from esscher.engine.models.outline import Outline
from esscher.runs.executors import CellExecutor
from esscher.runs.fits import Fit
from esscher.runs.model_study import PassageStudy
from esscher.runs.study import Setup, Study, Work

if TYPE_CHECKING:
    import xarray as xr

    from esscher.engine.models.loaded import LoadedModel
    from esscher.engine.text.packing import Passage
    from esscher.math.heads import WeightHead
    from esscher.runs.result import Result

#: Tokens of a passage, and passages, unless they are given.
CONTEXT, PASSAGES = 2_048, 8
#: Fewest replicates of a law, and replicates of a cell.
FEWEST, BLOCK = 8, 4
#: Largest dimension: a head has matrices of its square.
LARGEST_DIM = 65_536


class LawErrors(Data):
    """A cell: errors of patterns on some sequences of a law, relative to the dense outputs."""

    error = var("pattern metric replicate budget", "relative error", "s3")
    norm = var(help="root mean square norm of dense outputs")
    visible = var(help="keys that a query may see, mean")


class PassageErrors(LawErrors):
    """A cell: errors of patterns in the heads of a model on a passage, mean over draws."""

    error = var("pattern metric layer head replicate budget", "relative error", "s3")


class SparseLawData(Data):
    """The result: errors of patterns, their exponents, and one verdict per pattern.

    Replicates are sequences of a law, or passages of a text. Exponents are those of errors over
    ``sqrt(1 - budget / visible)``, fitted with :func:`esscher.fit_rate`.
    """

    replicate_error = var(
        "pattern metric replicate budget", page=False, help="relative error, mean over the heads"
    )
    error = var("pattern metric budget bound", "relative error", "s3", help="mean of replicates")
    fit = group(Fit, "pattern metric")
    difference = var(
        "pattern metric bound",
        "minus that of random",
        terminal="- random",
        interval="digits",
        help="exponent of the map minus that of random selection, resampled together",
    )
    ratio = var(
        "pattern metric bound",
        "error / random",
        "s3",
        terminal="x random",
        interval="range",
        help="map error over that of random selection, geometric mean over the budgets",
    )
    verdict = var("pattern", kind="U", terminal="verdict")
    norm = var(page=False, help="root mean square norm of dense outputs")
    visible = var(page=False, help="keys that a query may see, mean")


class SparseData(SparseLawData):
    """The result of a model: the same, and the map errors head by head."""

    head_error = var("layer head pattern budget", "relative map error", "s3")
    head_exponent = var(
        "layer head pattern bound",
        "exponent",
        help="exponent of the map error, mean of passages",
    )


class SparseSettings(Record, frozen=True, kw_only=True):
    """Settings of a run on a model; budgets are empty until the text is read."""

    patterns: tuple[Name, ...]
    budgets: tuple[Count, ...]
    context: Count
    passages: Count
    layers: tuple[Index, ...]
    heads: tuple[Index, ...]
    draws: Count
    query_count: Count
    seed: int


class SparseLawSettings(Record, frozen=True, kw_only=True):
    """Settings of a run on a law."""

    law: Name
    horizon: float | None
    dim: Count
    spectrum: tuple[float, ...] | None
    tau: tuple[float, ...] | None
    df: float
    patterns: tuple[Name, ...]
    budgets: tuple[Count, ...]
    tokens: Count
    replicates: Count
    query_count: Count
    seed: int

    @property
    def head(self) -> WeightHead:
        """The head that the tokens meet."""
        from esscher.math.heads import law_head
        from esscher.math.laws import standard_law

        law = standard_law(self.law, self.dim, df=self.df)
        return law_head(law, horizon=self.horizon, spectrum=self.spectrum, tau=self.tau)

    @property
    def blocks(self) -> dict[str, range]:
        """Replicates of each cell: all the same number, the first ones perhaps one more."""
        count = max(1, self.replicates // BLOCK)
        size, more = divmod(self.replicates, count)
        starts = [i * size + min(i, more) for i in range(count + 1)]
        return {f"replicates-{start}": range(start, end) for start, end in pairwise(starts)}


#: A result of either study.
AnySparse: TypeAlias = "Result[SparseSettings] | Result[SparseLawSettings]"

Patterns: TypeAlias = Annotated[
    tuple[Annotated[str, Meta(max_length=64)], ...] | None,
    option("Patterns, such as window,topk (default: all); random is always measured."),
]
Budgets: TypeAlias = Annotated[
    tuple[Annotated[int, Meta(ge=2, le=10**15)], ...] | None,
    option(
        "Numbers of keys r that a query attends to (default: 7 sizes from 32 on).", metavar="A:B:K"
    ),
]
QueryCount: TypeAlias = Annotated[
    int, option("Queries per sequence at which errors are measured.", ge=1, le=10**9, command=None)
]


@dataclass(frozen=True, kw_only=True)
class SparseStudy(PassageStudy[SparseSettings]):
    """Compare sparse attention with dense attention in a model.

    For every head: how the error of its output falls as queries attend to more keys. Patterns:
    random, corrected, topk, streaming, window, longformer, bigbird, strided, block, pooled,
    linformer.
    """

    settings, data, cell = SparseSettings, SparseData, PassageErrors
    asks = "Which sparse patterns come close to dense attention?"
    next_step = "esscher plan MODEL --check TEXT --budget 0.25"
    examples = (
        "esscher sparse demo:smollm2 --patterns streaming,corrected --out runs/sparse",
        "esscher sparse demo:minilm --layers 0-2 --budgets 16:128:4 --figure sparse.png",
    )

    patterns: Patterns = None
    budgets: Budgets = None
    context: Annotated[
        int | None, option("Tokens per passage (default: up to 2048).", ge=1, le=10**9)
    ] = None
    passages: Annotated[
        int | None, option("Number of passages (default: up to 8).", ge=1, le=10**6)
    ] = None
    layers: SomeLayers = None
    heads: SomeHeads = None
    draws: Annotated[
        int, option("Random choices of each random pattern per passage.", ge=2, le=10**6)
    ] = 2
    query_count: QueryCount = 64
    seed: Seed = 0

    def resolve(self, model: Outline) -> SparseSettings:
        """Choose passages, heads and budgets that the model has."""
        from esscher.engine.patterns import as_patterns  # brings torch
        from esscher.studies.sparse.budgets import model_budgets

        context = AtMost.unless(self.context, model.context(self.context, CONTEXT))
        names = as_patterns(self.patterns or "all")
        budgets = model_budgets(model, context, names, self.budgets)
        return self.settings_with(
            patterns=names,
            budgets=(self.budgets or ()) if isinstance(context, AtMost) else budgets,
            context=context,
            passages=AtMost.unless(self.passages, self.passages or PASSAGES),
            layers=as_indices(self.layers, model.shape.layers, "layers"),
            heads=as_indices(self.heads, model.shape.heads, "heads"),
        )

    @staticmethod
    def measure(
        setup: Setup[SparseSettings], loaded: LoadedModel, passage: Passage
    ) -> PassageErrors:
        """Errors of the heads on one passage."""
        from esscher.studies.sparse.measure import measure_passage

        return measure_passage(loaded, passage, setup.settings)

    @staticmethod
    def combine(setup: Setup[SparseSettings], cells: Mapping[str, xr.Dataset]) -> SparseLawData:
        """Fit every pattern, compare it with random selection, and fit every head."""
        from esscher.studies.sparse.compare import combine

        return combine(SparseData, list(cells.values()), setup.settings.seed)


@dataclass(frozen=True, kw_only=True)
class SparseLawStudy(Study[SparseLawSettings]):
    """Compare sparse with dense attention on synthetic tokens.

    Tokens are independent. Patterns: random, corrected, topk, streaming, window, longformer,
    bigbird, strided, block, pooled, linformer.
    """

    settings, data, cell = SparseLawSettings, SparseLawData, LawErrors
    asks = "Which sparse patterns come close to dense attention?"

    law: Annotated[
        str, option(f"Law of the tokens: {', '.join(STANDARD_LAWS)}.", max_length=64)
    ] = field(kw_only=False)
    horizon: Annotated[
        Annotated[float, Meta(ge=0)] | None,
        option("Attention horizon H, with all singular values equal."),
    ] = None
    dim: Annotated[
        int | None,
        option(
            "Dimension of the tokens (default: length of the spectrum, or 1).",
            ge=1,
            le=LARGEST_DIM,
        ),
    ] = None
    spectrum: Annotated[
        tuple[float, ...] | None,
        option("Singular values of M instead of a horizon, such as 1.5,0.7,0.2.", metavar="LIST"),
    ] = None
    tau: Annotated[
        tuple[float, ...] | None,
        option("Mean tilt; a single number is along the first axis.", metavar="LIST"),
    ] = None
    df: Annotated[float, option("Degrees of freedom of the law student.", gt=0)] = 5.0
    patterns: Patterns = None
    budgets: Budgets = None
    tokens: Annotated[int, option("Tokens per sequence.", ge=1, le=10**15)] = 8_192
    replicates: Annotated[int, option("Number of sequences.", ge=FEWEST, le=10**6)] = 32
    query_count: QueryCount = 256
    seed: Seed = 0

    def known(self) -> SparseLawSettings:
        """Choose budgets that fit into a sequence."""
        from esscher.engine.patterns import as_patterns  # brings torch
        from esscher.studies.sparse.budgets import SHARE, choose_budgets

        check_memory(8 * self.tokens, f"tokens is {self.tokens}; a sequence of that length")
        if (self.horizon is None) == (self.spectrum is None):
            raise InputError("give either a horizon or a spectrum for the law, such as horizon 1.5")
        dim = self.dim or (1 if self.spectrum is None else len(self.spectrum))
        if self.spectrum is not None and len(self.spectrum) != dim:
            raise InputError(f"dim is {dim}, but spectrum has {len(self.spectrum)} values")
        names = as_patterns(self.patterns or "all")
        budgets = choose_budgets(
            self.tokens, SHARE, names, self.budgets, lambda needed: f", or at least {needed} tokens"
        )
        settings = self.settings_with(dim=dim, patterns=names, budgets=budgets)
        _ = settings.head  # says what is wrong with the law before any work is done
        return settings

    def prepare(self, executor: CellExecutor) -> Work:
        """Draw the queries, which all replicates share."""
        from esscher.studies.sparse.measure import law_work

        return law_work(self.known(), executor)

    @staticmethod
    def cells(setup: Setup[SparseLawSettings]) -> list[str]:
        """One cell per block of replicates."""
        return list(setup.settings.blocks)

    @staticmethod
    def combine(setup: Setup[SparseLawSettings], cells: Mapping[str, xr.Dataset]) -> SparseLawData:
        """Fit every pattern and compare it with random selection."""
        from esscher.studies.sparse.compare import combine

        return combine(SparseLawData, list(cells.values()), setup.settings.seed)

    @staticmethod
    def subject(setup: Setup[SparseLawSettings]) -> str:
        """Name the law."""
        return setup.settings.law
