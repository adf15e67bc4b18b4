"""The study: which options there are, which cells, and how they become a result."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Annotated

from esscher.core.errors import InputError
from esscher.core.options import BY_MODEL, AtMost, Heads, Layers, Seed, option
from esscher.core.validation import as_indices
from esscher.engine.models.outline import Outline
from esscher.math.tails.cloud import FEWEST
from esscher.math.tails.directions import FEWEST as FEWEST_PASSAGES
from esscher.runs.executors import CellExecutor
from esscher.runs.folder import Cell, CellRun
from esscher.runs.model_study import ModelStudy
from esscher.studies.tails.result import LayerTails, Tails, assemble

if TYPE_CHECKING:
    from esscher.engine.models import AnyModel, LoadedModel
    from esscher.studies.tails.work import TailsWork

#: Tokens of a passage, and tokens in all, unless they are given.
CONTEXT, TOKENS = 512, 16_384


@dataclass(frozen=True, kw_only=True)
class TailsStudy(ModelStudy[Tails]):
    """Test whether the keys of a model have light tails.

    Theory assumes that they are sub-Gaussian. For every head: the direction in which its keys have
    the heaviest tail (found on one half of the passages, judged on the other), their sub-Gaussian
    parameter, kurtosis, type of tail, and k-hat of norms and logits.
    """

    name = "tails"
    asks = "Are the keys sub-Gaussian, as theory assumes?"
    next_step = "esscher probe MODEL --text TEXT"
    abridged = True
    unit = "layers"
    cell = LayerTails
    result = Tails
    examples = (
        "esscher tails demo:minilm --out runs/tails --figure tails.png",
        "esscher tails ./my-model --text corpus.jsonl --column text --layers 0-3",
    )

    tokens: Annotated[
        int, option("Tokens to read (default: up to 16384).", ge=FEWEST, le=10**15)
    ] = BY_MODEL
    context: Annotated[int, option("Tokens per passage (default: up to 512).", ge=1)] = BY_MODEL
    layers: Layers = BY_MODEL
    heads: Heads = BY_MODEL
    seed: Seed = 0

    def fill(self, model: Outline) -> TailsStudy:
        """Choose passages, layers and heads that the model has."""
        # the last passage may hold more than what is left of the tokens
        tokens = AtMost.unless(self.tokens, self.tokens or TOKENS)
        longest = (tokens - 1) // (FEWEST_PASSAGES - 1)
        context = model.context(self.context, min(CONTEXT, longest))
        if context > longest:
            raise InputError(
                f"tokens is {tokens} and context {context}; at least {FEWEST_PASSAGES} "
                "passages are needed, half of them to judge what was found in the others: give "
                f"at least {(FEWEST_PASSAGES - 1) * context + 1} tokens, or a context of at most "
                f"{longest}"
            )
        return replace(
            self,
            tokens=tokens,
            context=AtMost.unless(self.context, context),
            layers=as_indices(self.layers, model.shape.layers, "layers"),
            heads=as_indices(self.heads, model.shape.heads, "heads"),
        )

    def cells(self) -> list[str]:
        """One cell per layer."""
        return [f"layer-{layer}" for layer in self.layers]

    def read(self, loaded: LoadedModel, model: AnyModel, executor: CellExecutor) -> TailsWork:
        """Cut the text into passages."""
        from esscher.studies.tails.work import read_text  # brings torch

        return read_text(self, loaded, model, executor)

    def assemble(self, cells: Mapping[str, Cell], run: CellRun) -> Tails:
        """Judge every head and layer."""
        return assemble(self, [cell.about for cell in cells.values()], run)
