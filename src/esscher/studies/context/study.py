"""The study: its options, what they amount to, and the variables of its cells and results.

A cell is a passage: how much the output of every head changes when its context is doubled. Where
changes stop to matter is decided over all passages together (``saturation.py``).
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated

from esscher.core.codec import Count, Record
from esscher.core.errors import InputError
from esscher.core.options import AtMost, Seed, option
from esscher.core.variables import Data, var
from esscher.engine.models.outline import Outline
from esscher.runs.executors import CellExecutor, Task
from esscher.runs.model_study import ModelStudy
from esscher.runs.study import Setup, Work

if TYPE_CHECKING:
    import xarray as xr

    from esscher.engine.models.choice import AnyModel
    from esscher.engine.models.loaded import LoadedModel

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


class PassageChanges(Data):
    """A cell: how much the outputs of a passage change when the context is doubled."""

    square = var("passage layer head context", help="squared change from this context to twice it")
    norm = var("passage layer head", help="squared norm of the output at the longest context")
    window = var("layer", help="window of the layer in tokens; NaN for a layer without")


class ContextData(Data):
    """The result: the context that every head uses, and the changes that say so."""

    length = var(
        "layer head bound",
        "tokens used",
        "n0",
        terminal="context",
        missing="open",
        last=True,
        help="tokens after which the output changes by less than the tolerance, with 95% interval "
        "over passages; open: it changes by more, and no less than before. Nothing is longer than "
        "the window of the layer or what the model reads",
    )
    exponent = var("layer head", "exponent of changes", help="b of change ~ L^-b")
    limit = var("layer", "at most", "n0", help="the window of the layer, or what the model reads")
    change = var(
        "layer head context",
        "output changes when L is doubled",
        help="relative change of the output when this context is doubled",
    )
    rest = var(
        "layer head context",
        "still to come beyond L",
        help="relative change of the output beyond this context, measured and extrapolated",
    )


class ContextSettings(Record, frozen=True, kw_only=True):
    """Settings of a run."""

    tolerance: float
    context: Count
    query_count: Count
    passages: Count
    seed: int

    @property
    def length(self) -> int:
        """Tokens of a passage: the first of the queries has the longest context behind it."""
        return AtMost.unless(self.context, self.context + self.query_count - 1)

    @property
    def lengths(self) -> list[int]:
        """Context lengths that are tried: the longest, halved down to the shortest."""
        shortest = min(SHORTEST, self.context // DOUBLINGS)
        count = int(math.log2(self.context / shortest)) + 1
        return [self.context >> k for k in reversed(range(count))]


@dataclass(frozen=True, kw_only=True)
class ContextStudy(ModelStudy[ContextSettings]):
    """Measure how long a context each head of a decoder uses.

    Each head sees the first few tokens of a passage and the most recent ones, twice as many at each
    step, until its output changes by less than the tolerance.
    """

    settings, data, cell = ContextSettings, ContextData, PassageChanges
    asks = "How long a context does each head use?"
    next_step = "esscher plan MODEL --check TEXT --budget 0.25"
    unit = "passages"
    examples = (
        "esscher context demo:smollm2 --context 2048 --figure context.png",
        "esscher context ./my-model --text a.txt --tolerance 0.05 --out runs/context",
    )

    tolerance: Annotated[
        float,
        option("Relative change of the output below which a head has seen enough.", gt=0, lt=1),
    ] = 0.1
    context: Annotated[int | None, option("Longest context (default: up to 4096).", ge=1)] = None
    query_count: Annotated[
        int | None,
        option("Queries at the end of each passage (default: up to 64).", ge=1, command=None),
    ] = None
    passages: Annotated[
        int | None,
        option("Number of passages (default: up to 4); intervals are over them.", ge=1, le=10**6),
    ] = None
    seed: Seed = 0

    def resolve(self, model: Outline) -> ContextSettings:
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
        return self.settings_with(
            context=AtMost.unless(self.context, longest),
            query_count=AtMost.unless(self.query_count, queries),
            passages=AtMost.unless(self.passages, self.passages or PASSAGES),
        )

    def read(
        self,
        settings: ContextSettings,
        loaded: LoadedModel,
        model: AnyModel,
        executor: CellExecutor,
    ) -> Work:
        """Take passages from the beginning of the text."""
        from esscher.engine.text.packing import first_passages
        from esscher.studies.context.measure import measure_passage

        text = first_passages(loaded, self.text, settings.passages, settings.length, self.column)
        queries = int(settings.query_count)
        if text.context < settings.length and isinstance(settings.query_count, AtMost):
            queries = min(queries, max(1, text.context // 4))
        settings = self.fitted(
            text,
            loaded.outline,
            context=text.context - queries + 1,
            query_count=queries,
            passages=len(text),
        )
        setup = Setup(settings, {"model": loaded.record, "text": text.record})
        tasks = {
            name: Task(name, measure_passage, (model, passage, number, settings))
            for number, (name, passage) in enumerate(zip(self.cells(setup), text, strict=True))
        }
        return setup, lambda run: [tasks]

    @staticmethod
    def cells(setup: Setup[ContextSettings]) -> list[str]:
        """One cell per passage."""
        return [f"passage-{i}" for i in range(setup.settings.passages)]

    @staticmethod
    def combine(setup: Setup[ContextSettings], cells: Mapping[str, xr.Dataset]) -> ContextData:
        """Find where every head stops gaining."""
        from esscher.studies.context.saturation import combine

        return combine(setup, list(cells.values()))
