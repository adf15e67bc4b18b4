"""Budgets of a study: those that are given, checked, or a curve that fits."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise
from typing import TYPE_CHECKING, Annotated, Self, TypeAlias

import numpy as np
from msgspec import Meta

from esscher.core.errors import InputError
from esscher.core.options import BY_MODEL, AtMost, Heads, Layers, Seed, option
from esscher.core.shown import counted
from esscher.core.validation import as_indices, as_sizes, check_memory
from esscher.engine.models.outline import Outline
from esscher.engine.patterns import PATTERNS, as_patterns
from esscher.math.laws import STANDARD_LAWS
from esscher.runs.executors import CellExecutor
from esscher.runs.folder import Cell, CellRun
from esscher.runs.law_study import LawStudy
from esscher.runs.model_study import ModelStudy
from esscher.studies.sparse.result import Sparse, SparseCell

if TYPE_CHECKING:
    from esscher.engine.models import AnyModel, LoadedModel
    from esscher.runs.study import OneBatch


#: Budgets unless they are given: first, number, and the last as a share of the visible keys.
FIRST, COUNT, LAST, SHARE = 32, 7, 2_048, 0.25
#: Share for models, whose passages are short.
MODEL_SHARE = 0.5
#: Share of a decoder's passage that lies before the queries.
PREFIX = 0.75


def model_budgets(
    model: Outline, length: int, names: Sequence[str], asked: Sequence[int] | None
) -> tuple[int, ...]:
    """Budgets for the passages of a model, whose layers may have windows."""
    keys = int(PREFIX * length) + 1 if model.causal else length
    if asked is not None:
        longer = "" if length >= model.max_positions else ", or a longer context"
        return _checked(asked, keys, names, longer)
    keys = min(keys, model.window or length)
    found = _default(keys, MODEL_SHARE, names)
    if found is not None:
        return found
    needed = _fewest(MODEL_SHARE, names)
    context = math.ceil((needed - 1) / PREFIX) if model.causal else needed
    what = f"context is {length}, of which a query may see {keys} keys; it takes {needed}"
    if (model.window or needed) < needed:
        remedy = f"{model.name} has layers with a window of {model.window} tokens: give budgets"
    elif context <= model.max_positions:
        remedy = f"give a context of at least {context}, or budgets"
    else:
        remedy = f"{model.name} reads at most {model.max_positions} tokens: give budgets"
    raise InputError(f"{what} for a curve of these patterns; {remedy} of your own")


def law_budgets(tokens: int, names: Sequence[str], asked: Sequence[int] | None) -> tuple[int, ...]:
    """Budgets for sequences of synthetic tokens."""
    if asked is not None:
        return _checked(asked, tokens, names, ", or more tokens")
    found = _default(tokens, SHARE, names)
    if found is None:
        raise InputError(
            f"tokens is {tokens}; it takes at least {_fewest(SHARE, names)} for budgets of these "
            "patterns: give as many, or budgets of your own"
        )
    return found


def _checked(
    budgets: Sequence[int], keys: int, names: Sequence[str], otherwise: str
) -> tuple[int, ...]:
    """Budgets below the number of keys that every query may see."""
    sizes = tuple(int(r) for r in as_sizes(budgets, "budgets"))
    if len(sizes) < 2:
        raise InputError(f"budgets is {list(sizes)}; a curve needs at least 2 of them")
    if sizes[-1] >= keys:
        raise InputError(
            f"budgets go up to {sizes[-1]}, but a query may see only {keys} keys; "
            f"choose budgets below that{otherwise}"
        )
    for name in names:
        PATTERNS[name].check(sizes[0])
    return sizes


def _default(keys: int, share: float, names: Sequence[str]) -> tuple[int, ...] | None:
    """Budgets up to a share of the keys; None if there is no room for them."""
    if keys < _fewest(share, names):
        return None
    last = min(LAST, int(share * keys))
    first = FIRST if last >= 4 * FIRST else max(_smallest(names), last // 4)
    return tuple(int(r) for r in np.unique(np.geomspace(first, last, COUNT).round()))


def _smallest(names: Sequence[str]) -> int:
    """Smallest budget of all patterns, at least 2."""
    return max(2, *(PATTERNS[name].smallest for name in names))


def _fewest(share: float, names: Sequence[str]) -> int:
    """Fewest keys for a curve: its last budget is at least twice the first."""
    return math.ceil(2 * _smallest(names) / share)


# The studies: patterns on the heads of a model, and on tokens of a law.

#: Tokens of a passage, and passages, unless they are given.
CONTEXT, PASSAGES = 2_048, 8
#: Fewest replicates of a law: two cells, so that the bias has a standard error.
FEWEST = 8
#: Replicates of a cell: as many as it takes for an estimate of the bias inside it.
BLOCK = 4

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
        from esscher.studies.sparse.measure import read_text  # brings torch

        return read_text(self, loaded, model)

    def assemble(self, cells: Mapping[str, Cell], run: CellRun) -> Sparse:
        """Fit every pattern and compare it with random selection."""
        from esscher.studies.sparse.compare import assemble  # brings torch

        return assemble(self, cells, run)

    @property
    def in_words(self) -> str:
        """What is measured."""
        heads = counted(len(self.layers) * len(self.heads), "head")
        return (
            f"{self.model_record.name} on {self.text_record.source}, {heads}, "
            f"{counted(self.passages, 'passage')} of {self.context} tokens"
        )


@dataclass(frozen=True, kw_only=True)
class SparseLawStudy(LawStudy[Sparse]):
    """Compare sparse with dense attention on synthetic tokens.

    Tokens are independent, or a Gaussian AR(1) sequence. Where the infinite-token limit is known,
    errors are measured against it too. Patterns: random, corrected, topk, streaming, window,
    longformer, bigbird, strided, block, pooled, linformer.
    """

    name = "sparse-law"
    asks = "Which sparse patterns come close to dense attention?"
    next_step = "esscher theory --horizon H --sizes 1e3:1e12"
    cell = SparseCell
    result = Sparse
    examples = (
        "esscher sparse-law gaussian --horizon 0.7 --dim 8 --budgets 32:2048:7",
        "esscher sparse-law gaussian --horizon 0.7 --dim 8 --correlation 0.9 --figure ar1.png",
    )

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
        study = super().filled()
        names = as_patterns(self.patterns or "all")
        budgets = law_budgets(self.tokens, names, self.budgets)
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
        """Draw the queries."""
        from esscher.studies.sparse.measure import draw_queries  # brings torch

        return draw_queries(self, executor)

    def assemble(self, cells: Mapping[str, Cell], run: CellRun) -> Sparse:
        """Fit every pattern and compare it with random selection."""
        from esscher.studies.sparse.compare import assemble  # brings torch

        return assemble(self, cells, run)

    @property
    def in_words(self) -> str:
        """What is measured."""
        kind = f"AR(1) with rho = {self.correlation:g}" if self.correlation else "independent"
        horizon = (
            f"spectrum {list(self.spectrum or ())}"
            if self.horizon is None
            else f"H = {self.horizon:g}"
        )
        return (
            f"{self.law} tokens, {kind}, {horizon}, d = {self.dim}, N = {self.tokens:,}, "
            f"{counted(self.replicates, 'replicate')}"
        )
