"""The studies: a model whose keys are sampled in every layer, and a Gaussian stack."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Annotated, ClassVar, Literal, Self

import numpy as np
from msgspec import Meta

from esscher.core.errors import InputError
from esscher.core.options import BY_MODEL, AtMost, Seed, option
from esscher.core.validation import as_sizes, check_memory
from esscher.engine.models.outline import Outline
from esscher.engine.sampled.sizes import passage_keys
from esscher.runs.executors import CellExecutor, Task
from esscher.runs.folder import Cell, CellRun
from esscher.runs.old_model_study import ModelStudy
from esscher.runs.old_study import OneBatch, Study
from esscher.studies.deep.result import TERCILES, WAYS, Deep, DeepCell

if TYPE_CHECKING:
    from esscher.engine.models.choice import AnyModel
    from esscher.engine.models.loaded import LoadedModel
    from esscher.math.limits import GaussianStack, StackLimit
    from esscher.studies.deep.sampling import DeepWork

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


@dataclass(frozen=True, kw_only=True)
class DeepStudy(ModelStudy[Deep]):
    """Measure how errors of sampled attention grow through layers.

    Every layer attends to n random keys only, and the error is followed to the end of the model;
    then the same for a third of the heads at a time, by horizon.
    """

    name = "deep"
    asks = "What becomes of a model whose layers attend to n keys only?"
    next_step = "esscher plan MODEL --check TEXT --budget 0.25"
    cell = DeepCell
    result = Deep
    examples = (
        "esscher deep demo:smollm2 --sizes 64:384:5 --out runs/deep --figure deep.png",
        "esscher deep demo:minilm --keys shared --terciles none",
    )
    instead: ClassVar[Mapping[str, str]] = {"gaussian": "deep-stack"}

    sizes: Annotated[
        tuple[Annotated[int, Meta(ge=1, le=10**15)], ...],
        option("Numbers of keys n (default: 5 sizes up to half of the keys).", metavar="A:B:K"),
    ] = BY_MODEL
    context: Annotated[
        int, option("Tokens per passage (default: up to 512; decoders 1024).", ge=1, le=10**9)
    ] = BY_MODEL
    passages: Annotated[int, option("Number of passages (default: up to 4).", ge=1, le=10**6)] = (
        BY_MODEL
    )
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

    def fill(self, model: Outline) -> DeepStudy:
        """Choose passages and sizes that the model has."""
        model.check_supported()
        length = model.context(self.context, DECODER_CONTEXT if model.causal else ENCODER_CONTEXT)
        if length < FEWEST_TOKENS:
            too_short = model.max_positions < FEWEST_TOKENS
            raise InputError(
                f"context is {length}; it must be at least {FEWEST_TOKENS} tokens"
                + (f", and {model.name} reads only {model.max_positions}" if too_short else "")
            )
        keys = passage_keys(model, length)
        if self.sizes is None:
            last = int(SHARE * keys)
            grid = np.unique(np.geomspace(max(2, last / RANGE), last, COUNT).round())
        else:
            grid = as_sizes(self.sizes, smallest=1)
            if grid[-1] >= keys:
                raise InputError(
                    f"sizes go up to {grid[-1]:g}, but a context of {length} has only {keys} keys "
                    f"to draw from{' (a decoder asks with its last quarter)' * model.causal}; "
                    f"give sizes below {keys}"
                    + (", or a longer context" if length < model.max_positions else "")
                )
        passages = AtMost.unless(self.passages, self.passages or PASSAGES)
        context = AtMost.unless(self.context, length)
        sizes = self.sizes if isinstance(context, AtMost) else tuple(int(n) for n in grid)
        return replace(self, context=context, passages=passages, sizes=sizes)

    @property
    def ways(self) -> tuple[str, ...]:
        """How the samples of different layers go together: the curves of a layer."""
        return WAYS if self.keys == "both" else (self.keys,)

    @property
    def variants(self) -> tuple[str, ...]:
        """Names of what is measured at every size."""
        return (*self.ways, *(TERCILES if self.terciles != "none" else ()))

    def cells(self) -> list[str]:
        """The horizons, and one cell per passage and way of sampling."""
        names = ["horizons"] if self.terciles != "none" else []
        parts = (*self.ways, *(("terciles",) if names else ()))
        return names + [f"passage-{p}-{part}" for p in range(self.passages) for part in parts]

    def read(self, loaded: LoadedModel, model: AnyModel, executor: CellExecutor) -> DeepWork:
        """Cut the text into passages."""
        from esscher.studies.deep.sampling import read_text  # brings torch

        return read_text(self, loaded, model)

    def assemble(self, cells: Mapping[str, Cell], run: CellRun) -> Deep:
        """Average over passages, and fit rates."""
        from esscher.studies.deep.assemble import assemble_model  # brings torch

        return assemble_model(self, cells, run)


@dataclass(frozen=True, kw_only=True)
class DeepStackStudy(Study[Deep]):
    """Measure how errors grow through a random stack of layers.

    For Gaussian tokens the limit is known exactly, by a recursion, and the measured limit is
    compared with it.
    """

    name = "deep-stack"
    asks = "How does the error grow from layer to layer?"
    next_step = "esscher theory --horizon H --sizes 1e3:1e12"
    unit = "replicates"
    cell = DeepCell
    result = Deep
    examples = (
        "esscher deep-stack --depth 12 --dim 8 --horizon 0.5 --residual 1",
        "esscher deep-stack --depth 24 --sizes 256:8192:6 --out runs/stack --figure stack.png",
    )

    depth: Annotated[int, option("Number of layers.", ge=1, le=10_000)] = 12
    dim: Annotated[int, option("Dimension of the tokens.", ge=1, le=4096)] = 8
    horizon: Annotated[float, option("Horizon of every layer.", gt=0)] = 0.5
    residual: Annotated[float, option("Factor of the residual connection.")] = 1.0
    output_scale: Annotated[float, option("Gain of the attention branch.", gt=0)] = 0.5
    tau: Annotated[float, option("Length of the mean tilt.", ge=0)] = 0.0
    sizes: Annotated[
        tuple[Annotated[int, Meta(ge=2, le=10**15)], ...],
        option("Numbers of tokens n, as first:last:count (default 256:8192:6).", metavar="A:B:K"),
    ] = BY_MODEL
    replicates: Annotated[int, option("Independent samples of tokens.", ge=1, le=10**6)] = 32
    seed: Seed = 0

    def filled(self) -> Self:
        """Fill in the sizes."""
        sizes = SIZES if self.sizes is None else tuple(int(n) for n in as_sizes(self.sizes))
        if len(sizes) < 2:
            raise InputError(f"sizes is {list(sizes)}; a rate and a limit take at least 2 sizes")
        most = f"sizes go up to {sizes[-1]:,}; a sample of that size"
        check_memory(8 * self.dim * sizes[-1], most)
        return replace(self, sizes=sizes)

    def stack(self) -> tuple[GaussianStack, StackLimit]:
        """Draw the stack, and return it with its limit."""
        from esscher.studies.deep.stack import random_stack

        return random_stack(
            self.depth,
            self.dim,
            self.horizon,
            residual=self.residual,
            output_scale=self.output_scale,
            tau=self.tau,
            seed=self.seed,
        )

    def cells(self) -> list[str]:
        """One cell per replicate."""
        return [f"replicate-{number}" for number in range(self.replicates)]

    def prepare(self, executor: CellExecutor) -> OneBatch:
        """Draw the stack, and say so if it is impossible."""
        from esscher.studies.deep.stack import measure_replicate  # brings torch

        source = executor.share(self.stack())
        tasks = {
            name: Task(name, measure_replicate, (source, self.sizes, number, self.seed))
            for number, name in enumerate(self.cells())
        }
        return OneBatch(self, tasks)

    def assemble(self, cells: Mapping[str, Cell], run: CellRun) -> Deep:
        """Average over replicates, fit rates, and compare with the recursion."""
        from esscher.studies.deep.assemble import assemble_stack  # brings torch

        return assemble_stack(self, cells, run)

    @property
    def subject(self) -> str:
        """Law of the tokens."""
        return "gaussian"
