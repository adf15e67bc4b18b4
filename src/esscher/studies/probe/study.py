"""The study: which options there are, which cells, and how they become a result."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Annotated

from msgspec import Meta

from esscher.core.errors import InputError
from esscher.core.options import BY_MODEL, AtMost, Heads, Layers, Seed, option
from esscher.core.validation import as_indices, as_sizes, check_memory
from esscher.engine.models.outline import Outline
from esscher.engine.sampled.sizes import (
    FEWEST_KEYS,
    Mode,
    default_mode,
    default_sizes,
    needed_context,
    passage_keys,
)
from esscher.runs.executors import CellExecutor
from esscher.runs.folder import Cell, CellRun
from esscher.runs.old_model_study import ModelStudy
from esscher.studies.probe.result import Probe, ProbeCell

if TYPE_CHECKING:
    from esscher.engine.models.choice import AnyModel
    from esscher.engine.models.loaded import LoadedModel
    from esscher.studies.probe.work import ProbeWork

#: Tokens of the cloud unless a number is given: pooled mode, and passages in context mode.
TOKENS, PASSAGES = 9_216, 2
#: Longest passage unless a length is given: pooled mode, and context mode.
POOLED, CONTEXT = 512, 4_096
#: Sizes unless they are given: first, number, and largest.
FIRST, COUNT, LAST = 64, 6, 2_048
#: Most passages in context mode: each is a cell.
MOST_PASSAGES = 100_000


@dataclass(frozen=True, kw_only=True)
class ProbeStudy(ModelStudy[Probe]):
    """Measure how many tokens each head of a model needs.

    A head that sees only n tokens gives another output than with all of them. For every head: how
    large that error is, how fast it falls with n, how many tokens 10% error takes, what one pass
    predicts of all this, and flags where numbers may mislead. For every layer: what the errors of
    its heads have in common.
    """

    name = "probe"
    asks = "How many tokens does each head need?"
    next_step = "esscher plan MODEL --check TEXT --budget 0.25"
    abridged = True
    cell = ProbeCell
    result = Probe
    examples = (
        "esscher probe demo:minilm --text demo:docs --out runs/minilm",
        "esscher probe ./my-model --text corpus.jsonl --column text --tokens 50000",
        "esscher probe demo:smollm2 --context 4096",
        "esscher probe demo:minilm --predict",
    )

    mode: Annotated[
        Mode,
        option(
            "pooled: all tokens as one set; context: real sequences, with positions and causal "
            "masks (default: pooled for encoders, context for decoders)."
        ),
    ] = BY_MODEL
    tokens: Annotated[
        int,
        option(
            "Tokens to read (default: up to 9216; up to 2 passages in context mode).",
            ge=1,
            le=10**15,
        ),
    ] = BY_MODEL
    context: Annotated[
        int,
        option("Tokens per passage (default: up to 512; 4096 in context mode).", ge=1, le=10**15),
    ] = BY_MODEL
    layers: Layers = BY_MODEL
    heads: Heads = BY_MODEL
    sizes: Annotated[
        tuple[Annotated[int, Meta(ge=2, le=10**15)], ...],
        option("Numbers of tokens n, as first:last:count (default 64:2048:6).", metavar="A:B:K"),
    ] = BY_MODEL
    replicates: Annotated[int, option("Random samples of tokens per size.", ge=1, le=10**6)] = 32
    predict: Annotated[bool, option("Predict everything from one pass, and measure nothing.")] = (
        False
    )
    alpha: Annotated[
        float,
        option(
            "Scale the tilts of every head by this factor: H is alpha times, Psi alpha^2 times "
            "that of the model.",
            gt=0,
            le=1e6,
            added=True,
        ),
    ] = 1.0
    seed: Seed = 0

    @property
    def samples(self) -> int:
        """Samples that are drawn."""
        return 0 if self.predict else self.replicates

    def fill(self, model: Outline) -> ProbeStudy:
        """Choose the mode, passages, sizes, layers and heads that suit the model."""
        mode = self.mode or default_mode(model)
        context = model.context(self.context, POOLED if mode == "pooled" else CONTEXT)
        if mode == "context":
            context = AtMost.unless(self.context, context)
        tokens = self.tokens or (TOKENS if mode == "pooled" else PASSAGES * context)
        tokens = AtMost.unless(self.tokens, tokens)
        keys = tokens if mode == "pooled" else passage_keys(model, context)
        settled = not isinstance(tokens if mode == "pooled" else context, AtMost)
        if self.sizes is not None:
            sizes = tuple(int(n) for n in as_sizes(self.sizes))
            check_memory(8 * sizes[-1], f"sizes go up to {sizes[-1]:,}; a sample of that size")
        elif keys >= FEWEST_KEYS:
            sizes = default_sizes(keys, FIRST, COUNT, 2, LAST) if settled else BY_MODEL
        else:
            reason = f"tokens is {tokens}; a curve needs at least {FEWEST_KEYS}"
            if mode == "context":
                needed = needed_context(model)
                reason = f"context is {context}, which leaves {keys} keys; a curve needs "
                reason += f"{FEWEST_KEYS}: give a context of at least {needed}"
                if needed > model.max_positions:
                    reason += f" and a model that reads more than {model.max_positions} tokens, "
                    reason += "or measure it in pooled mode"
            raise InputError(reason)
        study = replace(
            self,
            mode=mode,
            tokens=tokens,
            context=context,
            layers=as_indices(self.layers, model.shape.layers, "layers"),
            heads=as_indices(self.heads, model.shape.heads, "heads"),
            sizes=sizes,
        )
        study.cells()  # refuses too many passages
        return study

    def cells(self) -> list[str]:
        """One cell per layer in pooled mode, one per passage in context mode."""
        if self.mode == "pooled":
            return [f"layer-{layer}" for layer in self.layers]
        # as many passages as the tokens fill, at least one
        count = max(1, self.tokens // self.context)
        if count > MOST_PASSAGES:
            raise InputError(
                f"tokens is {self.tokens} and context {self.context}, which makes {count:,} "
                f"passages; it takes at most {MOST_PASSAGES:,}: give fewer tokens, or a longer "
                "context"
            )
        return [f"passage-{number}" for number in range(count)]

    def read(self, loaded: LoadedModel, model: AnyModel, executor: CellExecutor) -> ProbeWork:
        """Cut the text into passages."""
        from esscher.studies.probe.work import read_text  # brings torch

        return read_text(self, loaded, model, executor)

    def assemble(self, cells: Mapping[str, Cell], run: CellRun) -> Probe:
        """Fit every head and layer."""
        from esscher.studies.probe.assemble import assemble  # brings scipy

        return assemble(self, cells, run)
