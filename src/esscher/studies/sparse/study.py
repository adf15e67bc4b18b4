"""The studies: sparse patterns on the heads of a model, and on tokens of a law."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import pairwise
from typing import TYPE_CHECKING, Annotated, Self, TypeAlias

import numpy as np
from msgspec import Meta

from esscher.core.errors import InputError
from esscher.core.options import BY_MODEL, AtMost, Heads, Layers, Seed, option
from esscher.core.streams import random_stream
from esscher.core.validation import as_indices, as_sizes, check_memory
from esscher.engine.models.outline import Outline
from esscher.engine.patterns import PATTERNS, as_patterns
from esscher.engine.sampled.sizes import PREFIX
from esscher.math.heads import WeightHead, law_head
from esscher.math.laws import STANDARD_LAWS, standard_law
from esscher.runs.executors import CellExecutor, Task
from esscher.runs.folder import Cell, CellRun
from esscher.runs.old_model_study import ModelStudy
from esscher.runs.old_study import OneBatch, Study
from esscher.studies.sparse.result import Sparse, SparseCell

if TYPE_CHECKING:
    from esscher.engine.models.choice import AnyModel
    from esscher.engine.models.loaded import LoadedModel


#: Budgets unless they are given: first, number, and the last as a share of the visible keys.
FIRST, COUNT, LAST, SHARE = 32, 7, 2_048, 0.25
#: Largest dimension: a head has matrices of its square.
LARGEST_DIM = 65_536
#: Share for models, whose passages are short.
MODEL_SHARE = 0.5


def default_budgets(
    keys: int, share: float, names: Sequence[str]
) -> tuple[tuple[int, ...] | None, int]:
    """Return budgets up to a share of the keys, and how many keys a curve takes.

    None if there are fewer: the last budget must be at least twice the first.
    """
    smallest = max(2, *(PATTERNS[name].smallest for name in names))
    needed = math.ceil(2 * smallest / share)
    if keys < needed:
        return None, needed
    last = min(LAST, int(share * keys))
    first = FIRST if last >= 4 * FIRST else max(smallest, last // 4)
    return tuple(int(r) for r in np.unique(np.geomspace(first, last, COUNT).round())), needed


def given_budgets(
    budgets: Sequence[int], keys: int, names: Sequence[str], remedy: str
) -> tuple[int, ...]:
    """Return budgets that are given, if they lie below the keys that every query may see."""
    sizes = tuple(int(r) for r in as_sizes(budgets, "budgets"))
    if len(sizes) < 2:
        raise InputError(f"budgets is {list(sizes)}; a curve needs at least 2 of them")
    if sizes[-1] >= keys:
        raise InputError(
            f"budgets go up to {sizes[-1]}, but a query may see only {keys} keys; "
            f"choose budgets below that{remedy}"
        )
    for name in names:
        PATTERNS[name].check(sizes[0])
    return sizes


def model_budgets(
    model: Outline, length: int, names: Sequence[str], given: Sequence[int] | None
) -> tuple[int, ...]:
    """Return budgets for the passages of a model, whose layers may have windows."""
    keys = int(PREFIX * length) + 1 if model.causal else length
    if given is not None:
        remedy = "" if length >= model.max_positions else ", or a longer context"
        return given_budgets(given, keys, names, remedy)
    keys = min(keys, model.window or length)
    budgets, needed = default_budgets(keys, MODEL_SHARE, names)
    if budgets is not None:
        return budgets
    context = math.ceil((needed - 1) / PREFIX) if model.causal else needed
    if (model.window or needed) < needed:
        remedy = f"{model.name} has layers with a window of {model.window} tokens: give budgets"
    elif context <= model.max_positions:
        remedy = f"give a context of at least {context}, or budgets"
    else:
        remedy = f"{model.name} reads at most {model.max_positions} tokens: give budgets"
    raise InputError(
        f"context is {length}, of which a query may see {keys} keys; it takes {needed} for a curve "
        f"of these patterns; {remedy} of your own"
    )


#: Tokens of a passage, and passages, unless they are given.
CONTEXT, PASSAGES = 2_048, 8
#: Fewest replicates of a law, and replicates of a cell.
FEWEST, BLOCK = 8, 4

Patterns: TypeAlias = Annotated[
    tuple[Annotated[str, Meta(max_length=64)], ...],
    option("Patterns, such as window,topk (default: all); random is always measured."),
]
Budgets: TypeAlias = Annotated[
    tuple[Annotated[int, Meta(ge=2, le=10**15)], ...],
    option(
        "Numbers of keys r that a query attends to (default: 7 sizes from 32 on).", metavar="A:B:K"
    ),
]
QueryCount: TypeAlias = Annotated[
    int, option("Queries per sequence at which errors are measured.", ge=1, le=10**9, command=None)
]


@dataclass(frozen=True, kw_only=True)
class SparseStudy(ModelStudy[Sparse]):
    """Compare sparse attention with dense attention in a model.

    For every head: how the error of its output falls as queries attend to more keys. Patterns:
    random, corrected, topk, streaming, window, longformer, bigbird, strided, block, pooled,
    linformer.
    """

    name = "sparse"
    asks = "Which sparse patterns come close to dense attention?"
    next_step = "esscher plan MODEL --check TEXT --budget 0.25"
    unit = "passages"
    cell = SparseCell
    result = Sparse
    examples = (
        "esscher sparse demo:smollm2 --patterns streaming,corrected --out runs/sparse",
        "esscher sparse demo:minilm --layers 0-2 --budgets 16:128:4 --figure sparse.png",
    )
    instead = dict.fromkeys(STANDARD_LAWS, "sparse-law")

    patterns: Patterns = BY_MODEL
    budgets: Budgets = BY_MODEL
    context: Annotated[int, option("Tokens per passage (default: up to 2048).", ge=1, le=10**9)] = (
        BY_MODEL
    )
    passages: Annotated[int, option("Number of passages (default: up to 8).", ge=1, le=10**6)] = (
        BY_MODEL
    )
    layers: Layers = BY_MODEL
    heads: Heads = BY_MODEL
    draws: Annotated[
        int, option("Random choices of each random pattern per passage.", ge=2, le=10**6)
    ] = 2
    query_count: QueryCount = 64
    seed: Seed = 0

    def fill(self, model: Outline) -> SparseStudy:
        """Choose passages, heads and budgets that the model has."""
        context = AtMost.unless(self.context, model.context(self.context, CONTEXT))
        names = as_patterns(self.patterns or "all")
        budgets = model_budgets(model, context, names, self.budgets)
        return replace(
            self,
            context=context,
            passages=AtMost.unless(self.passages, self.passages or PASSAGES),
            patterns=names,
            budgets=self.budgets if isinstance(context, AtMost) else budgets,
            layers=as_indices(self.layers, model.shape.layers, "layers"),
            heads=as_indices(self.heads, model.shape.heads, "heads"),
        )

    def cells(self) -> list[str]:
        """One cell per passage."""
        return [f"passage-{number}" for number in range(self.passages)]

    def read(self, loaded: LoadedModel, model: AnyModel, executor: CellExecutor) -> OneBatch:
        """Cut the text into passages."""
        from esscher.engine.text.packing import first_passages
        from esscher.studies.sparse.measure import passage_cell  # brings torch

        text = first_passages(loaded, self.text, self.passages, self.context, self.column)
        study = self.fitted(text, loaded.outline, context=text.context, passages=len(text))
        study = replace(study, model=loaded.record, text=text.record)
        sent = replace(study, out=None, executor=None)  # an executor stays in this process
        tasks = {
            name: Task(name, passage_cell, (model, passage, sent))
            for name, passage in zip(study.cells(), text, strict=True)
        }
        return OneBatch(study, tasks)

    def assemble(self, cells: Mapping[str, Cell], run: CellRun) -> Sparse:
        """Fit every pattern and compare it with random selection."""
        from esscher.studies.sparse.compare import assemble  # brings torch

        return assemble(self, cells, run)


@dataclass(frozen=True, kw_only=True)
class SparseLawStudy(Study[Sparse]):
    """Compare sparse with dense attention on synthetic tokens.

    Tokens are independent, or a Gaussian AR(1) sequence. Patterns: random, corrected, topk,
    streaming, window, longformer, bigbird, strided, block, pooled, linformer.
    """

    name = "sparse-law"
    asks = "Which sparse patterns come close to dense attention?"
    next_step = "esscher theory --horizon H --sizes 1e3:1e12"
    cell = SparseCell
    result = Sparse
    first = ("law", "horizon", "dim", "spectrum", "tau", "df")
    examples = (
        "esscher sparse-law gaussian --horizon 0.7 --dim 8 --budgets 32:2048:7",
        "esscher sparse-law gaussian --horizon 0.7 --dim 8 --correlation 0.9 --figure ar1.png",
    )

    law: Annotated[
        str, option(f"Law of the tokens: {', '.join(STANDARD_LAWS)}.", metavar="LAW", max_length=64)
    ] = field(kw_only=False)
    horizon: Annotated[
        Annotated[float, Meta(ge=0)] | None,
        option("Attention horizon H, with all singular values equal."),
    ] = None
    dim: Annotated[
        int,
        option(
            "Dimension of the tokens (default: length of the spectrum, or 1).",
            ge=1,
            le=LARGEST_DIM,
        ),
    ] = BY_MODEL
    spectrum: Annotated[
        tuple[float, ...] | None,
        option("Singular values of M instead of a horizon, such as 1.5,0.7,0.2.", metavar="LIST"),
    ] = None
    tau: Annotated[
        tuple[float, ...] | None,
        option("Mean tilt; a single number is along the first axis.", metavar="LIST"),
    ] = None
    df: Annotated[float, option("Degrees of freedom of the law student.", gt=0)] = 5.0
    patterns: Patterns = BY_MODEL
    budgets: Budgets = BY_MODEL
    correlation: Annotated[
        float,
        option(
            "Correlation rho of neighbouring tokens (AR(1)), for the law gaussian.", gt=-1, lt=1
        ),
    ] = 0.0
    tokens: Annotated[int, option("Tokens per sequence.", ge=1, le=10**15)] = 8_192
    replicates: Annotated[int, option("Number of sequences.", ge=FEWEST, le=10**6)] = 32
    query_count: QueryCount = 256
    seed: Seed = 0

    def filled(self) -> Self:
        """Choose budgets that fit into a sequence."""
        check_memory(8 * self.tokens, f"tokens is {self.tokens}; a sequence of that length")
        if (self.horizon is None) == (self.spectrum is None):
            raise InputError("give either a horizon or a spectrum for the law, such as horizon 1.5")
        dim = self.dim or (1 if self.spectrum is None else len(self.spectrum))
        if self.spectrum is not None and len(self.spectrum) != dim:
            raise InputError(f"dim is {dim}, but spectrum has {len(self.spectrum)} values")
        study = replace(self, dim=dim)
        _ = study.head  # says what is wrong with the law before any work is done
        names = as_patterns(self.patterns or "all")
        if self.budgets is not None:
            budgets = given_budgets(self.budgets, self.tokens, names, ", or more tokens")
        else:
            chosen, needed = default_budgets(self.tokens, SHARE, names)
            if chosen is None:
                raise InputError(
                    f"tokens is {self.tokens}; it takes at least {needed} for budgets of these "
                    "patterns: give as many, or budgets of your own"
                )
            budgets = chosen
        return replace(study, patterns=names, budgets=budgets)

    def cells(self) -> list[str]:
        """One cell per block of replicates."""
        return list(self.blocks())

    def blocks(self) -> dict[str, range]:
        """Replicates of each cell: all the same number, the first ones perhaps one more."""
        count = max(1, self.replicates // BLOCK)
        size, more = divmod(self.replicates, count)
        starts = [i * size + min(i, more) for i in range(count + 1)]
        return {f"replicates-{start}": range(start, end) for start, end in pairwise(starts)}

    def prepare(self, executor: CellExecutor) -> OneBatch:
        """Draw the queries, which all replicates share."""
        from esscher.studies.sparse.measure import Sequences, measure_law, query_positions

        tokens, head = self.tokens, self.head
        # away from global tokens and from the ends
        middle = np.arange(tokens // 4, tokens - tokens // 4)
        rng = random_stream(self.seed, "sparse positions")
        positions = query_positions(middle, self.query_count, rng)
        sequences = Sequences.make(head.law, tokens, self.correlation, positions, self.seed)
        source = executor.share((head, sequences))
        tasks = {
            name: Task(
                name, measure_law, (source, self.patterns, self.budgets, replicates, self.seed)
            )
            for name, replicates in self.blocks().items()
        }
        return OneBatch(self, tasks)

    def assemble(self, cells: Mapping[str, Cell], run: CellRun) -> Sparse:
        """Fit every pattern and compare it with random selection."""
        from esscher.studies.sparse.compare import assemble  # brings torch

        return assemble(self, cells, run)

    @property
    def head(self) -> WeightHead:
        """The head that the tokens meet."""
        return law_head(
            standard_law(self.law, self.dim, df=self.df),
            horizon=self.horizon,
            spectrum=self.spectrum,
            tau=self.tau,
        )

    @property
    def subject(self) -> str:
        """Name of the law."""
        return self.law
