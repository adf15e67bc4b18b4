"""The studies: a model whose keys are sampled in every layer, and a Gaussian stack."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated, Any, ClassVar, Literal, TypeAlias

from msgspec import Meta

from esscher.core.codec import Count, Record
from esscher.core.errors import InputError
from esscher.core.options import AtMost, Seed, option
from esscher.core.validation import as_sizes, check_memory
from esscher.core.variables import Data, group, var
from esscher.engine.models.outline import Outline
from esscher.runs.executors import CellExecutor
from esscher.runs.fits import Fit
from esscher.runs.model_study import ModelStudy
from esscher.runs.study import Setup, Study, Work

if TYPE_CHECKING:
    import xarray as xr

    from esscher.engine.models.choice import AnyModel
    from esscher.engine.models.loaded import LoadedModel
    from esscher.runs.result import Result

#: Names of the thirds of the heads, by increasing horizon.
TERCILES = ("low", "middle", "high")
#: Curves of a layer: errors of a Gaussian stack, and ways in which a model's keys are drawn.
STACK_CURVES, WAYS = ("map", "mean", "cov"), ("independent", "shared")
#: Sizes of a Gaussian stack, unless they are given.
SIZES = (256, 512, 1024, 2048, 4096, 8192)
#: Longest passage of encoders and decoders unless a length is given.
ENCODER_CONTEXT, DECODER_CONTEXT = 512, 1024
#: Sizes of a model unless they are given: their number, the share of the keys that the last one is,
#: and how many times the first one it is.
COUNT, SHARE, RANGE = 5, 0.5, 8
#: Passages unless a number is given.
PASSAGES = 4
#: Shortest passage: fewer queries and keys say nothing.
FEWEST_TOKENS = 16


#: Numbers of a model's end, of which an encoder has others than a decoder.
END: dict[str, Any] = {"optional": True, "interval": "short"}


class Horizons(Data):
    """A cell: the horizon of every head of a model."""

    horizon = var("layer head", "H", terminal="H", help="horizon of the dense model")


class PassageErrors(Data):
    """A cell: one passage, with samples of its keys, in all heads or in a third of them."""

    error = var("sampled passage draw layer size", help="of the tokens behind a layer, relative")
    kl = var("sampled passage draw size", optional=True, help="KL to the dense model")
    top1 = var("sampled passage draw size", optional=True, help="same most likely token")
    nll = var("sampled passage draw size", optional=True, help="mean surprise")
    cosine = var("sampled passage draw size", optional=True, help="of embeddings, to dense")
    dense_nll = var("passage", optional=True, help="mean surprise of the dense model")
    eligible = var("passage", kind="i", format="n0", help="keys that can be drawn")


class Replicate(Data):
    """A cell: errors of a Gaussian stack on one sample of tokens, and the limit it points to."""

    error = var("curve replicate layer size", help="relative")
    limit = var("replicate layer entry", help="means and covariances, extrapolated to n = infinity")


class DepthData(Data):
    """The result of both studies: errors behind every layer, and how they grow.

    A ``curve`` is an error of a stack (map, mean, cov), or a way of drawing a model's keys.
    Replicates are samples of tokens, or passages; of a single passage, its draws.
    """

    replicate_error = var("curve replicate layer size", page=False, help="relative error")
    error = var(
        "curve layer size bound",
        "relative error",
        "s3",
        terminal="error",
        interval="short",
        help="relative error of the tokens behind the layer",
    )
    growth = var(
        "curve layer size bound",
        terminal="growth",
        interval="digits",
        help="ratio of the error to that of the layer before",
    )
    growth_per_layer = var("curve size bound", help="geometric mean over all layers")
    fit = group(Fit, "curve layer")


class StackData(DepthData):
    """The result of a stack: also its measured limit against the exact recursion, by layer."""

    horizon = var("layer", "H", terminal="H", help="horizon of the layer")
    measured = var("layer entry", page=False)
    exact = var("layer entry", page=False)
    standard_error = var("layer entry", page=False)
    largest = var(
        "layer",
        "largest deviation",
        "d1",
        terminal="largest",
        help="largest deviation of the measured limit from the recursion, in standard errors",
    )
    largest_bound = var(
        "layer",
        "95% bound of it",
        "d1",
        terminal="bound",
        help="what the largest of so many stays below with probability 0.95, if the recursion is "
        "right (Student, Bonferroni)",
    )
    rms = var("layer", "root mean square", help="of the deviations; 1 for pure noise")
    resolution = var(
        "layer", format="p2", help="median standard error over the mean variance of a coordinate"
    )
    agreement = var("layer", "limit", kind="U", terminal="limit")
    doubt = var("layer", kind="U", page=False, help="why there is no verdict")


class DeepData(DepthData):
    """The result of a model: also what becomes of its end.

    ``sampled`` is a way of drawing keys in all heads, or the third of the heads that sees a sample.
    """

    eligible = var("passage", kind="i", format="n0", page=False, help="keys that can be drawn")
    kl = var("sampled size bound", "KL (nats)", "s3", **END, terminal="KL")
    top1 = var("sampled size bound", "same top token", "s3", **END, terminal="same top")
    perplexity = var("sampled size bound", "perplexity", "s3", **END, terminal="perplexity")
    ratio = var("sampled size bound", "over dense", "s3", **END, terminal="over dense")
    cosine = var("sampled size bound", "cosine", "d3", **END, terminal="cosine")
    dense_perplexity = var("bound", format="s3", page=False, optional=True)
    replicate_damage = var(
        "sampled replicate size", page=False, help="KL to the dense model, or 1 - cosine"
    )
    damage = group(Fit, "sampled", "damage_")
    horizon = var("layer head", "H", terminal="H", optional=True, help="horizon, dense model")
    tercile = var("layer head", kind="U", terminal="third", optional=True)
    high_over_low = var(
        "size bound", page=False, optional=True, help="damage of the highest third over the lowest"
    )


class DeepSettings(Record, frozen=True, kw_only=True):
    """Settings of a run on a model; sizes are empty until the text is read."""

    sizes: tuple[Count, ...]
    context: Count
    passages: Count
    draws: Count
    keys: Literal["independent", "shared", "both"]
    terciles: Literal["model", "layer", "none"]
    seed: int

    @property
    def ways(self) -> tuple[str, ...]:
        """How the samples of different layers go together: the curves of a layer."""
        return WAYS if self.keys == "both" else (self.keys,)

    @property
    def cells(self) -> list[str]:
        """Names of the passages."""
        return [f"passage-{number}" for number in range(self.passages)]


class DeepStackSettings(Record, frozen=True, kw_only=True):
    """Settings of a run on a stack."""

    depth: Count
    dim: Count
    horizon: float
    residual: float
    output_scale: float
    tau: float
    sizes: tuple[Count, ...]
    replicates: Count
    seed: int


#: A result of either study.
AnyDeep: TypeAlias = "Result[DeepSettings] | Result[DeepStackSettings]"


@dataclass(frozen=True, kw_only=True)
class DeepStudy(ModelStudy[DeepSettings]):
    """Measure how errors of sampled attention grow through layers.

    Every layer attends to n random keys only, and the error is followed to the end of the model;
    then the same for a third of the heads at a time, by horizon.
    """

    settings, data = DeepSettings, DeepData
    cell: ClassVar = {"horizons": Horizons, "passage": PassageErrors}
    asks = "What becomes of a model whose layers attend to n keys only?"
    next_step = "esscher plan MODEL --check TEXT --budget 0.25"
    examples = (
        "esscher deep demo:smollm2 --sizes 64:384:5 --out runs/deep --figure deep.png",
        "esscher deep demo:minilm --keys shared --terciles none",
    )

    sizes: Annotated[
        tuple[Annotated[int, Meta(ge=1, le=10**15)], ...] | None,
        option("Numbers of keys n (default: 5 sizes up to half of the keys).", metavar="A:B:K"),
    ] = None
    context: Annotated[
        int | None,
        option("Tokens per passage (default: up to 512; decoders 1024).", ge=1, le=10**9),
    ] = None
    passages: Annotated[
        int | None, option("Number of passages (default: up to 4).", ge=1, le=10**6)
    ] = None
    draws: Annotated[int, option("Random samples per size and passage.", ge=1, le=10**6)] = 2
    keys: Annotated[
        Literal["independent", "shared", "both"],
        option("Draw new keys in every layer, the same in all layers, or both ways."),
    ] = "both"
    terciles: Annotated[
        Literal["model", "layer", "none"],
        option(
            "Also sample a third of the heads at a time, by horizon: of the model, or per layer.",
            command=None,
        ),
    ] = "model"
    seed: Seed = 0

    def resolve(self, model: Outline) -> DeepSettings:
        """Choose passages and sizes that the model has."""
        import numpy as np

        from esscher.engine.sampled.sizes import passage_keys

        model.check_supported()
        length = model.context(self.context, DECODER_CONTEXT if model.causal else ENCODER_CONTEXT)
        if length < FEWEST_TOKENS:
            raise InputError(f"context is {length}; it must be at least {FEWEST_TOKENS} tokens")
        keys = passage_keys(model, length)
        if self.sizes is None:
            last = int(SHARE * keys)
            grid = np.unique(np.geomspace(max(2, last / RANGE), last, COUNT).round())
        else:
            grid = as_sizes(self.sizes, smallest=1)
            if grid[-1] >= keys:
                raise InputError(
                    f"sizes go up to {grid[-1]:g}, but a context of {length} has only {keys} keys "
                    f"to draw from; give sizes below {keys}"
                    + (", or a longer context" if length < model.max_positions else "")
                )
        context = AtMost.unless(self.context, length)
        known = not isinstance(context, AtMost)
        return self.settings_with(
            context=context,
            passages=AtMost.unless(self.passages, self.passages or PASSAGES),
            sizes=tuple(int(n) for n in grid) if known else self.sizes or (),
        )

    def read(
        self,
        settings: DeepSettings,
        loaded: LoadedModel,
        model: AnyModel,
        executor: CellExecutor,
    ) -> Work:
        """Cut the text into passages."""
        from esscher.studies.deep.sampling import read_text  # brings torch

        return read_text(self, settings, loaded, model)

    @staticmethod
    def cells(setup: Setup[DeepSettings]) -> list[str]:
        """The horizons, and one cell per passage."""
        horizons = ["horizons"] if setup.settings.terciles != "none" else []
        return horizons + setup.settings.cells

    @staticmethod
    def combine(setup: Setup[DeepSettings], cells: Mapping[str, xr.Dataset]) -> DeepData:
        """Average over passages, and fit rates."""
        from esscher.studies.deep.combine import combine_passages

        return combine_passages(setup, cells)


@dataclass(frozen=True, kw_only=True)
class DeepStackStudy(Study[DeepStackSettings]):
    """Measure how errors grow through a random stack of layers.

    For Gaussian tokens the limit is known exactly, by a recursion, and the measured limit is
    compared with it.
    """

    settings, data, cell = DeepStackSettings, StackData, Replicate
    asks = "How does the error grow from layer to layer?"
    unit = "replicates"

    depth: Annotated[int, option("Number of layers.", ge=1, le=10_000)] = 12
    dim: Annotated[int, option("Dimension of the tokens.", ge=1, le=4096)] = 8
    horizon: Annotated[float, option("Horizon of every layer.", gt=0)] = 0.5
    residual: Annotated[float, option("Factor of the residual connection.")] = 1.0
    output_scale: Annotated[float, option("Gain of the attention branch.", gt=0)] = 0.5
    tau: Annotated[float, option("Length of the mean tilt.", ge=0)] = 0.0
    sizes: Annotated[
        tuple[Annotated[int, Meta(ge=2, le=10**15)], ...] | None,
        option("Numbers of tokens n, as first:last:count (default 256:8192:6).", metavar="A:B:K"),
    ] = None
    replicates: Annotated[int, option("Independent samples of tokens.", ge=1, le=10**6)] = 32
    seed: Seed = 0

    def known(self) -> DeepStackSettings:
        """Fill in the sizes."""
        sizes = SIZES if self.sizes is None else tuple(int(n) for n in as_sizes(self.sizes))
        if len(sizes) < 2:
            raise InputError(f"sizes is {list(sizes)}; a rate and a limit take at least 2 sizes")
        most = f"sizes go up to {sizes[-1]:,}; a sample of that size"
        check_memory(8 * self.dim * sizes[-1], most)
        return self.settings_with(sizes=sizes)

    def prepare(self, executor: CellExecutor) -> Work:
        """Draw the stack, and say so if it is impossible."""
        from esscher.studies.deep.stack import stack_work  # brings torch

        return stack_work(self.known(), executor)

    @staticmethod
    def cells(setup: Setup[DeepStackSettings]) -> list[str]:
        """One cell per replicate."""
        return [f"replicate-{number}" for number in range(setup.settings.replicates)]

    @staticmethod
    def combine(setup: Setup[DeepStackSettings], cells: Mapping[str, xr.Dataset]) -> StackData:
        """Average over replicates, fit rates, and compare with the recursion."""
        from esscher.studies.deep.combine import combine_replicates

        return combine_replicates(setup.settings, list(cells.values()))

    @staticmethod
    def subject(setup: Setup[DeepStackSettings]) -> str:
        """Name the law of the tokens."""
        return "gaussian"
