"""The study: its options, what they amount to, and the variables of its cells and results.

A cell is a layer: its keys, head by head, and the hidden states that enter it. A verdict on a
single head or layer is given only if two halves of the text agree well enough over all of them;
else every one is undecided, and what is said is how many both halves call the same.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated

from esscher.core.codec import Count, Index, Record
from esscher.core.errors import InputError
from esscher.core.options import AtMost, Seed, SomeHeads, SomeLayers, option
from esscher.core.validation import as_indices
from esscher.core.variables import Data, group, var
from esscher.engine.models.outline import Outline
from esscher.runs.executors import CellExecutor
from esscher.runs.model_study import ModelStudy
from esscher.runs.study import Setup, Work

if TYPE_CHECKING:
    import xarray as xr

    from esscher.engine.models.choice import AnyModel
    from esscher.engine.models.loaded import LoadedModel

#: Tokens of a passage, and tokens in all, unless they are given.
CONTEXT, TOKENS = 512, 16_384


class Cloud(Data):
    """Tails of a cloud of tokens along its worst direction: keys of a head, or hidden states.

    ``subset`` of the tokens: ``text``, or ``all`` with delimiters (and first tokens of a decoder);
    ``part`` of the passages: ``both`` halves together, or one of them, judged along the direction
    that the other one found; ``threshold`` by number, the lowest first.
    """

    tokens = var("... subset", format="n0", page=False)
    passages = var("... subset", format="n0", page=False)
    proxy = var(
        "... subset part bound",
        "proxy / variance",
        terminal="proxy",
        interval="digits",
        help="smallest s with ln E exp(t p) <= s t^2/2 along the worst direction p, over its "
        "variance, over the tilts that the sample knows (1: Gaussian)",
    )
    kurtosis = var(
        "... subset bound",
        "excess kurtosis",
        "d0",
        terminal="kurt.",
        interval="digits",
        help="excess kurtosis along the worst direction",
    )
    tau = var(
        "... subset bound",
        "tail power τ",
        terminal="tau",
        interval="range",
        help="of the tail exp(-c x^tau) beyond the threshold that decides (2: Gaussian, 1: "
        "exponential, 13: cut off)",
    )
    beyond = var(
        "... subset", "threshold", "d1", help="threshold that decides, in standard deviations"
    )
    norms_k = var(
        "... subset bound",
        "k-hat of norms",
        terminal="norms",
        interval="digits",
        help="generalised-Pareto k-hat of the norms of the whitened tokens",
    )
    largest = var("... subset", "largest", "d1", help="largest projection, in standard deviations")
    agreement = var(
        "... subset",
        "agreement of directions",
        help="cosine between the worst directions of the two halves",
    )
    verdict = var("... subset", kind="U", help="given if both halves agree enough over all clouds")
    half_verdict = var(
        "... subset half", "half", kind="U", page=False, help="what each half of the text says"
    )
    evidence = var("... subset", kind="U", page=False, help="what the verdict rests on")
    tail_token = var("... rank", kind="U", page=False, help="tokens that reach furthest")
    tail_projection = var("... rank", page=False, help="their standardised projections")
    fit_threshold = var("... subset part threshold", "threshold (standard deviations)", page=False)
    fit_tokens = var("... subset part threshold", page=False, help="tokens beyond it")
    fit_tau = var("... subset part threshold bound", "τ of exp(-c x^τ)", page=False)


class LayerTails(Data):
    """A cell: the tails of a layer's keys, logits and hidden states."""

    keys = group(Cloud, "layer head")
    hidden = group(Cloud, "layer", "hidden_")
    key_head = var("layer head", "key head", "n0", kind="i", page=False)
    logits_k = var(
        "layer head bound",
        "k-hat of logits",
        terminal="logits",
        interval="digits",
        help="generalised-Pareto k-hat of the upper tail of the logits, median over queries",
    )


class TailsData(LayerTails):
    """The result: all layers, and how far two halves of the text agree on them.

    ``group`` is what is compared: keys (every key head once) or hidden states, of text tokens or of
    all tokens.
    """

    clouds = var("group", format="n0", kind="i", terminal="clouds")
    half_tokens = var("group", "tokens in a half", "n0")
    half_counts = var("group half called", format="n0", page=False, help="what each half says")
    both_counts = var("group called", format="n0", page=False, help="what both halves say")
    kappa = var(
        "group bound",
        terminal="kappa",
        interval="digits",
        help="agreement of the halves beyond chance",
    )
    proxy_correlation = var("group bound", "rank correlation of proxies")
    reproducible = var("group", "verdicts given", kind="b", help="on single clouds")


class TailsSettings(Record, frozen=True, kw_only=True):
    """Settings of a run."""

    tokens: Count
    context: Count
    layers: tuple[Index, ...]
    heads: tuple[Index, ...]
    seed: int


@dataclass(frozen=True, kw_only=True)
class TailsStudy(ModelStudy[TailsSettings]):
    """Test whether the keys of a model have light tails.

    Theory assumes that they are sub-Gaussian. For every head: the direction in which its keys have
    the heaviest tail (found on one half of the passages, judged on the other), their sub-Gaussian
    parameter, kurtosis, type of tail, and k-hat of norms and logits.
    """

    settings, data, cell = TailsSettings, TailsData, LayerTails
    asks = "Are the keys sub-Gaussian, as theory assumes?"
    next_step = "esscher probe MODEL --text TEXT"
    unit = "layers"
    examples = (
        "esscher tails demo:minilm --out runs/tails --figure tails.png",
        "esscher tails ./my-model --text corpus.jsonl --column text --layers 0-3",
    )

    tokens: Annotated[
        int | None, option("Tokens to read (default: up to 16384).", ge=500, le=10**15)
    ] = None
    context: Annotated[int | None, option("Tokens per passage (default: up to 512).", ge=1)] = None
    layers: SomeLayers = None
    heads: SomeHeads = None
    seed: Seed = 0

    def resolve(self, model: Outline) -> TailsSettings:
        """Choose passages, layers and heads that the model has."""
        from esscher.math.tails.cloud import FEWEST_PASSAGES

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
        return self.settings_with(
            tokens=tokens,
            context=AtMost.unless(self.context, context),
            layers=as_indices(self.layers, model.shape.layers, "layers"),
            heads=as_indices(self.heads, model.shape.heads, "heads"),
        )

    def read(
        self,
        settings: TailsSettings,
        loaded: LoadedModel,
        model: AnyModel,
        executor: CellExecutor,
    ) -> Work:
        """Cut the text into passages."""
        from esscher.studies.tails.measure import read_text  # brings torch

        return read_text(self, settings, loaded, model, executor)

    @staticmethod
    def cells(setup: Setup[TailsSettings]) -> list[str]:
        """One cell per layer."""
        return [f"layer-{layer}" for layer in setup.settings.layers]

    @staticmethod
    def combine(setup: Setup[TailsSettings], cells: Mapping[str, xr.Dataset]) -> TailsData:
        """Compare the halves, and give the verdicts on single clouds as far as they agree."""
        from esscher.studies.tails.agreement import combine

        return combine(list(cells.values()), setup.settings.seed)
