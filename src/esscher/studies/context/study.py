"""The study: which options there are, which cells, and how they become a result."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Annotated

import numpy as np
from numpy.typing import NDArray

from esscher.core.errors import InputError
from esscher.core.options import BY_MODEL, AtMost, Seed, option
from esscher.engine.models.outline import Outline
from esscher.runs.executors import CellExecutor
from esscher.runs.folder import Cell, CellRun
from esscher.runs.model_study import ModelStudy
from esscher.studies.context.result import Context, PassageCell, assemble
from esscher.studies.context.saturation import doublings

if TYPE_CHECKING:
    from esscher.engine.models import AnyModel, LoadedModel
    from esscher.studies.context.work import ContextWork

#: Longest context unless one is given, and the shortest one that is tried, where there is room.
CONTEXT, SHORTEST = 4_096, 32
#: The longest context is at least this many times the shortest: two doublings.
DOUBLINGS = 4
#: Fewest tokens of the longest context.
FEWEST = 16
#: Passages unless a number is given.
PASSAGES = 4
#: Queries that are asked unless a number is given; at most a quarter of what the model reads.
QUERIES = 64


@dataclass(frozen=True, kw_only=True)
class ContextStudy(ModelStudy[Context]):
    """Measure how long a context each head of a decoder uses.

    Each head sees the first few tokens of a passage and the most recent ones, twice as many at each
    step, until its output changes by less than the tolerance.
    """

    name = "context"
    asks = "How long a context does each head use?"
    next_step = "esscher plan MODEL --check TEXT --budget 0.25"
    abridged = True
    unit = "passages"
    cell = PassageCell
    result = Context
    examples = (
        "esscher context demo:smollm2 --context 2048 --figure context.png",
        "esscher context ./my-model --text a.txt --tolerance 0.05 --out runs/context",
    )

    tolerance: Annotated[
        float,
        option("Relative change of the output below which a head has seen enough.", gt=0, lt=1),
    ] = 0.1
    context: Annotated[int, option("Longest context (default: up to 4096).", ge=1)] = BY_MODEL
    query_count: Annotated[
        int,
        option("Queries at the end of each passage (default: up to 64).", ge=1, command=None),
    ] = BY_MODEL
    passages: Annotated[
        int,
        option("Number of passages (default: up to 4); intervals are over them.", ge=1, le=10**6),
    ] = BY_MODEL
    seed: Seed = 0

    def fill(self, model: Outline) -> ContextStudy:
        """Choose a context that the model reads."""
        if not model.causal:
            raise InputError(
                f"{model.name!r} is an encoder, which reads passages as a whole; esscher context "
                "is for decoders"
            )
        queries = self.query_count or max(1, min(QUERIES, model.max_positions // 4))
        possible = model.max_positions - queries + 1
        longest = self.context or min(CONTEXT, possible)
        if possible < FEWEST:
            raise InputError(
                f"{model.name} reads at most {model.max_positions} tokens; context lengths take at "
                f"least {FEWEST} and some queries: "
                + ("ask for fewer" if self.query_count else "choose a model that reads more")
            )
        if longest > possible:
            raise InputError(
                f"context is {longest} and {queries} queries share it, but {model.name} reads at "
                f"most {model.max_positions} tokens; the longest possible context is {possible}"
            )
        if longest < FEWEST:
            raise InputError(
                f"context is {longest}; it must be at least {FEWEST}, to be doubled twice"
            )
        return replace(
            self,
            context=AtMost.unless(self.context, longest),
            query_count=AtMost.unless(self.query_count, queries),
            passages=AtMost.unless(self.passages, self.passages or PASSAGES),
        )

    @property
    def length(self) -> int:
        """Tokens of a passage: the first of the queries has the longest context behind it."""
        return AtMost.unless(self.context, self.context + self.query_count - 1)

    @property
    def lengths(self) -> NDArray[np.int64]:
        """Context lengths that are tried."""
        return doublings(self.context, min(SHORTEST, self.context // DOUBLINGS))

    def cells(self) -> list[str]:
        """One cell per passage."""
        return [f"passage-{i}" for i in range(self.passages)]

    def read(self, loaded: LoadedModel, model: AnyModel, executor: CellExecutor) -> ContextWork:
        """Take passages from the beginning of the text."""
        from esscher.studies.context.work import read_text  # brings torch

        return read_text(self, loaded, model)

    def assemble(self, cells: Mapping[str, Cell], run: CellRun) -> Context:
        """Find where every head stops gaining."""
        return assemble(self, cells, run)
