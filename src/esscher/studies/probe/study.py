"""The study: its options, what they amount to, and the variables of its cells and results.

A cell is a layer in pooled mode, and a passage with all layers in context mode: errors of random
samples of the keys, and what one pass says about each head. Of several passages a result has the
mean of each number, and all of their samples.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated

from msgspec import Meta

from esscher.core.codec import Count, Index, Record
from esscher.core.errors import InputError
from esscher.core.options import AtMost, Seed, SomeHeads, SomeLayers, option
from esscher.core.validation import as_indices, as_sizes, check_memory
from esscher.core.variables import Data, group, var
from esscher.engine.models.outline import Outline
from esscher.engine.sampled.sizes import (
    FEWEST_KEYS,
    Mode,
    default_mode,
    needed_context,
    passage_keys,
)
from esscher.runs.executors import CellExecutor
from esscher.runs.fits import Fit
from esscher.runs.model_study import ModelStudy
from esscher.runs.study import Setup, Work

if TYPE_CHECKING:
    import xarray as xr

    from esscher.engine.models.choice import AnyModel
    from esscher.engine.models.loaded import LoadedModel

#: Tokens of the cloud unless a number is given: pooled mode, and passages in context mode.
TOKENS, PASSAGES = 9_216, 2
#: Longest passage unless a length is given: pooled mode, and context mode.
POOLED, CONTEXT = 512, 4_096
#: Sizes unless they are given: first, number, and largest, which is at most a share of the keys.
FIRST, COUNT, LAST, SHARE = 64, 6, 2_048, 0.25
#: Most passages in context mode: each is a cell.
MOST_PASSAGES = 100_000
#: Relative output errors for which the number of tokens is given.
TOLERANCES = (0.05, 0.1, 0.2)


class OnePass(Data):
    """Numbers of every head from one pass."""

    horizon = var(
        "...", "H", terminal="H", help="attention horizon: the largest whitened singular value"
    )
    psi = var(
        "...",
        "Psi",
        terminal="Psi",
        help="H^2, of the covariances of queries and keys: as in the published version of the "
        "paper",
    )
    psi_one_sided = var(
        "...", "Psi, one-sided", page=False, help="its first version: ‖Σ‖ ‖Σ^½ A‖², of tokens alone"
    )
    paper_bound = var(
        "...",
        "exponent, paper",
        "d4",
        terminal="paper",
        help="at least this by the paper's bound, 1/(2(1 + 32 Psi))",
    )
    paper_reference = var("...", "reference, paper", help="the line 1/(2(1 + Psi))")
    sharp = var(
        "... metric",
        "Gaussian exponent",
        page=False,
        help="asymptotic exponent for Gaussian tokens of the same horizon: conjectured",
    )
    frobenius = var("...", "F", page=False, help="root of the sum of squared singular values")
    tau = var("...", page=False, help="norm of the mean tilt")
    spectrum = var("... entry", page=False, help="the largest whitened singular values")
    log_burn_in = var("...", page=False, help="F^2 + tau^2")
    khat = var(
        "... bound",
        "k-hat",
        terminal="k-hat",
        interval="digits",
        help="tail of received attention, a diagnostic: 1/2 and more is heavy",
    )
    ess = var(
        "...",
        "effective tokens",
        "n0",
        terminal="ESS",
        help="tokens that the median query attends, 1 / sum p^2",
    )
    sink_share = var("...", "in sinks", "p0", help="attention that goes to sinks")
    delimiter_share = var(
        "...", "in delimiters", "p0", help="attention to [CLS], [SEP] and the like, in passages"
    )
    sink_token = var("... rank", kind="U", page=False, help="the largest sinks")
    sink_received = var("... rank", page=False, help="attention that each of them receives")
    norm = var("...", page=False, help="root mean square of the outputs")
    keys = var("...", "tokens read", "n0", page=False, help="tokens of the cloud")
    tokens = var(
        "... within bound",
        page=False,
        help="tokens for a relative output error; more than 10^8 if it is not there",
    )
    at_context = var(
        "... bound",
        "error at the context",
        "p1",
        terminal="error",
        interval="range",
        help="relative error of the output at the model's context length",
    )
    predicted_error = var("... metric size", page=False, help="expected norm of the error")
    predicted_standard_error = var("... metric size", page=False)
    curve_exponent = var("... metric", page=False, help="exponent of the predicted errors")
    curve_exponent_error = var("... metric", page=False, help="its standard error")


class Samples(Data):
    """A cell: errors of random samples, and what one pass says."""

    one_pass = group(OnePass, "passage layer head")
    error = var("passage layer head metric replicate size")
    layer_error = var("passage layer metric replicate size", help="of the heads side by side")
    product = var(
        "passage layer errors replicate size pair",
        help="inner products of the heads' errors behind the output projection",
    )
    reference_error = var(
        "passage layer head metric", help="standard error of the reference; NaN: not known"
    )


class ProbeData(Data):
    """The result: every head, and what the heads of each layer have in common.

    ``errors`` of a layer: of the mean output, and of single queries (map).
    """

    one_pass = group(OnePass, "layer head")
    replicate_error = var(
        "layer head metric replicate size", page=False, help="error of every sample"
    )
    error = var("layer head metric size bound", page=False, help="mean over the samples")
    fit = group(Fit, "layer head metric")
    standard_error = var("layer head metric", page=False, help="of the exponent")
    predicted_exponent = var(
        "layer head metric bound",
        "predicted exponent",
        terminal="predicted",
        interval="digits",
        help="the same from one pass, on these sizes; beside a measured one with the weights of "
        "its fit",
    )
    reference_share = var(
        "layer head",
        "error of the reference",
        "p0",
        page=False,
        help="over the error at the largest size: of the mean output or of the covariance",
    )
    flagged = var("layer head flag", kind="b", page=False)
    side_by_side = group(Fit, "layer metric", "side_by_side_")
    correlation = var(
        "layer errors head other", page=False, help="of the errors of two heads, at the largest n"
    )
    effective_heads = var(
        "layer errors size bound",
        "independent heads",
        "d1",
        terminal="effective",
        interval="digits",
        help="number of heads with independent errors, (tr R)^2 / tr R^2 of the correlations R of "
        "errors behind the output projection",
    )
    amplification = var(
        "layer errors size bound",
        terminal="sum",
        interval="digits",
        help="squared error of the sum of heads over the sum of their squared errors (1: "
        "independent)",
    )
    projected = group(Fit, "layer errors", "projected_")


class ProbeSettings(Record, frozen=True, kw_only=True):
    """Settings of a run; sizes are empty until the text is read."""

    mode: Mode
    tokens: Count
    context: Count
    layers: tuple[Index, ...]
    heads: tuple[Index, ...]
    sizes: tuple[Count, ...]
    replicates: Count
    predict: bool
    alpha: float
    seed: int

    @property
    def passages(self) -> int:
        """Passages in context mode: as many as the tokens fill, at least one."""
        return max(1, self.tokens // self.context)

    @property
    def samples(self) -> int:
        """Samples of a cell."""
        if self.predict:
            return 0
        return self.replicates if self.mode == "pooled" else -(-self.replicates // self.passages)


@dataclass(frozen=True, kw_only=True)
class ProbeStudy(ModelStudy[ProbeSettings]):
    """Measure how many tokens each head of a model needs.

    A head that sees only n tokens gives another output than with all of them. For every head: how
    large that error is, how fast it falls with n, how many tokens 10% error takes, what one pass
    predicts of all this, and flags where numbers may mislead. For every layer: what the errors of
    its heads have in common.
    """

    settings, data, cell = ProbeSettings, ProbeData, Samples
    asks = "How many tokens does each head need?"
    next_step = "esscher plan MODEL --check TEXT --budget 0.25"
    examples = (
        "esscher probe demo:minilm --text demo:docs --out runs/minilm",
        "esscher probe ./my-model --text corpus.jsonl --column text --tokens 50000",
        "esscher probe demo:smollm2 --context 4096",
        "esscher probe demo:minilm --predict",
    )

    mode: Annotated[
        Mode | None,
        option(
            "pooled: all tokens as one set; context: real sequences, with positions and causal "
            "masks (default: pooled for encoders, context for decoders)."
        ),
    ] = None
    tokens: Annotated[
        int | None,
        option(
            "Tokens to read (default: up to 9216; up to 2 passages in context mode).",
            ge=1,
            le=10**15,
        ),
    ] = None
    context: Annotated[
        int | None,
        option("Tokens per passage (default: up to 512; 4096 in context mode).", ge=1, le=10**15),
    ] = None
    layers: SomeLayers = None
    heads: SomeHeads = None
    sizes: Annotated[
        tuple[Annotated[int, Meta(ge=2, le=10**15)], ...] | None,
        option("Numbers of tokens n, as first:last:count (default 64:2048:6).", metavar="A:B:K"),
    ] = None
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
        ),
    ] = 1.0
    seed: Seed = 0

    def resolve(self, model: Outline) -> ProbeSettings:
        """Choose the mode, passages, sizes, layers and heads that suit the model."""
        import numpy as np

        mode = self.mode or default_mode(model)
        context = model.context(self.context, POOLED if mode == "pooled" else CONTEXT)
        if mode == "context":
            context = AtMost.unless(self.context, context)
        tokens = self.tokens or (TOKENS if mode == "pooled" else PASSAGES * context)
        tokens = AtMost.unless(self.tokens, tokens)
        keys = tokens if mode == "pooled" else passage_keys(model, context)
        settled = not isinstance(tokens if mode == "pooled" else context, AtMost)
        sizes: tuple[int, ...] = ()
        if self.sizes is not None:
            sizes = tuple(int(n) for n in as_sizes(self.sizes))
            check_memory(8 * sizes[-1], f"sizes go up to {sizes[-1]:,}; a sample of that size")
        elif keys < FEWEST_KEYS:
            reason = f"tokens is {tokens}; a curve needs at least {FEWEST_KEYS}"
            if mode == "context":
                needed = needed_context(model)
                reason = f"context is {context}, which leaves {keys} keys; a curve needs "
                reason += f"{FEWEST_KEYS}: give a context of at least {needed}"
                if needed > model.max_positions:
                    reason += f" and a model that reads more than {model.max_positions} tokens, "
                    reason += "or measure it in pooled mode"
            raise InputError(reason)
        elif settled:
            # in geometric progression up to a share of the keys
            last = min(LAST, int(SHARE * keys))
            first = FIRST if last >= 2 * FIRST else max(2, last // 4)
            sizes = tuple(int(n) for n in np.unique(np.geomspace(first, last, COUNT).round()))
        settings = self.settings_with(
            mode=mode,
            tokens=tokens,
            context=context,
            layers=as_indices(self.layers, model.shape.layers, "layers"),
            heads=as_indices(self.heads, model.shape.heads, "heads"),
            sizes=sizes,
        )
        if mode == "context" and settings.passages > MOST_PASSAGES:
            raise InputError(
                f"tokens is {tokens} and context {context}, which makes {settings.passages:,} "
                f"passages; it takes at most {MOST_PASSAGES:,}: give fewer tokens, or a longer "
                "context"
            )
        return settings

    def read(
        self,
        settings: ProbeSettings,
        loaded: LoadedModel,
        model: AnyModel,
        executor: CellExecutor,
    ) -> Work:
        """Cut the text into passages."""
        from esscher.studies.probe.measure import read_text  # brings torch

        return read_text(self, settings, loaded, model, executor)

    @staticmethod
    def cells(setup: Setup[ProbeSettings]) -> list[str]:
        """One cell per layer in pooled mode, one per passage in context mode."""
        settings = setup.settings
        if settings.mode == "pooled":
            return [f"layer-{layer}" for layer in settings.layers]
        return [f"passage-{number}" for number in range(settings.passages)]

    @staticmethod
    def combine(setup: Setup[ProbeSettings], cells: Mapping[str, xr.Dataset]) -> ProbeData:
        """Fit every head and layer."""
        from esscher.studies.probe.combine import combine  # brings scipy

        return combine(setup, list(cells.values()))
