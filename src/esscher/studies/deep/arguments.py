"""Checks of what is asked of ``deep``, and the configurations that they amount to."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Any

import numpy as np
from numpy.typing import ArrayLike

from esscher.core.errors import InputError
from esscher.core.validation import as_array, as_dim, as_nonnegative, as_positive, as_seed, as_sizes
from esscher.engine.models.outline import Outline
from esscher.engine.sampled.sizes import passage_keys

KIND = "deep"
#: The name that stands for a Gaussian stack instead of a model.
GAUSSIAN = "gaussian"
#: How samples of different layers go together.
MODES = ("independent", "shared")
#: Names of the terciles, by increasing horizon.
TERCILES = ("low", "middle", "high")
#: What terciles are taken over: all heads of the model, or those of each layer.
SCOPES = ("model", "layer")
#: Defaults of a Gaussian stack.
DEPTH, DIM, HORIZON, RESIDUAL, OUTPUT_SCALE, REPLICATES = 12, 8, 0.5, 1.0, 0.5, 32
SIZES = (256, 512, 1024, 2048, 4096, 8192)
#: Longest passage of encoders and decoders unless a length is given.
ENCODER_CONTEXT, DECODER_CONTEXT = 512, 1024
#: Passages, and samples of each budget, unless they are given.
PASSAGES, DRAWS = 4, 2
#: Budgets unless they are given: their number, the share of the keys that the last one is, and
#: how many times the first one it is.
COUNT, SHARE, RANGE = 5, 0.5, 8
#: Shortest passage: fewer queries and keys say nothing.
FEWEST_TOKENS = 16


@dataclass(frozen=True)
class StackRequest:
    """A Gaussian stack and how it is measured."""

    depth: int
    dim: int
    horizon: float
    residual: float
    output_scale: float
    tau: float
    sizes: tuple[int, ...]
    replicates: int
    seed: int

    def to_dict(self) -> dict[str, Any]:
        """Return the fields as JSON holds them."""
        return {"stack": "gaussian"} | asdict(self) | {"sizes": list(self.sizes)}

    @property
    def cells(self) -> list[str]:
        """Names of the cells of the run."""
        return [f"replicate-{number}" for number in range(self.replicates)]


@dataclass(frozen=True)
class ModelRequest:
    """How a real model is measured."""

    budgets: tuple[int, ...]
    context: int
    passages: int
    draws: int
    modes: tuple[str, ...]
    terciles: str
    seed: int

    def to_dict(self) -> dict[str, Any]:
        """Return the fields as JSON holds them."""
        return asdict(self) | {"budgets": list(self.budgets), "modes": list(self.modes)}

    @property
    def tercile_mode(self) -> str:
        """How the samples of the terciles are drawn."""
        return self.modes[0]

    @property
    def cells(self) -> list[str]:
        """Names of the cells of the run."""
        names = ["horizons"] if self.terciles != "none" else []
        parts = (*self.modes, *(("terciles",) if names else ()))
        return names + [f"passage-{p}-{part}" for p in range(self.passages) for part in parts]

    @property
    def variants(self) -> tuple[str, ...]:
        """Names of what is measured at every budget."""
        return (*self.modes, *(TERCILES if self.terciles != "none" else ()))


def make_stack_request(
    *,
    depth: int | None,
    dim: int | None,
    horizon: float | None,
    residual: float | None,
    output_scale: float | None,
    tau: float | None,
    sizes: ArrayLike | None,
    replicates: int | None,
    seed: int,
) -> StackRequest:
    """Check the arguments of a Gaussian stack and fill in what was left out."""
    n = tuple(int(x) for x in as_sizes(SIZES if sizes is None else sizes))
    if len(n) < 2:
        raise InputError(f"sizes is {list(n)}; a rate and a limit take at least 2 sizes")
    scale = OUTPUT_SCALE if output_scale is None else as_positive(output_scale, "output_scale")
    factor = RESIDUAL if residual is None else float(as_array(residual, "residual", 0))
    return StackRequest(
        depth=DEPTH if depth is None else as_dim(depth, "depth"),
        dim=DIM if dim is None else as_dim(dim, "dim"),
        horizon=HORIZON if horizon is None else as_positive(horizon, "horizon"),
        residual=factor,
        output_scale=scale,
        tau=0.0 if tau is None else as_nonnegative(tau, "tau"),
        sizes=n,
        replicates=REPLICATES if replicates is None else as_dim(replicates, "replicates"),
        seed=as_seed(seed),
    )


def make_model_request(
    model: Outline,
    *,
    budgets: ArrayLike | None,
    context: int | None,
    passages: int | None,
    draws: int | None,
    mode: str | None,
    terciles: str | None,
    seed: int,
) -> ModelRequest:
    """Check the arguments of a real model and fill in what was left out."""
    model.check_supported()
    chosen = "both" if mode is None else mode
    if chosen not in (*MODES, "both"):
        raise InputError(f"mode is {chosen!r}; it must be one of {', '.join(MODES)}, both")
    scope = "model" if terciles is None else terciles
    if scope not in (*SCOPES, "none"):
        raise InputError(f"terciles is {scope!r}; it must be one of {', '.join(SCOPES)}, none")
    length = model.context(context, DECODER_CONTEXT if model.causal else ENCODER_CONTEXT)
    if length < FEWEST_TOKENS:
        too_short = model.max_positions < FEWEST_TOKENS
        raise InputError(
            f"context is {length}; it must be at least {FEWEST_TOKENS} tokens"
            + (f", and {model.name} reads only {model.max_positions}" if too_short else "")
        )
    keys = passage_keys(model, length)
    if budgets is None:
        last = int(SHARE * keys)
        grid = np.unique(np.geomspace(max(2, last / RANGE), last, COUNT).round())
    else:
        grid = as_sizes(budgets, "budgets", smallest=1)
        if grid[-1] >= keys:
            raise InputError(
                f"budgets go up to {grid[-1]:g}, but a context of {length} has only {keys} keys to "
                f"draw from{' (a decoder asks with its last quarter)' if model.causal else ''}; "
                f"give budgets below {keys}"
                + (", or a longer context" if length < model.max_positions else "")
            )
    return ModelRequest(
        budgets=tuple(int(n) for n in grid),
        context=length,
        passages=PASSAGES if passages is None else as_dim(passages, "passages"),
        draws=DRAWS if draws is None else as_dim(draws, "draws"),
        modes=MODES if chosen == "both" else (chosen,),
        terciles=scope,
        seed=as_seed(seed),
    )


def check_budgets(budgets: tuple[int, ...], eligible: list[int]) -> None:
    """Refuse budgets that leave nothing out in some passage."""
    fewest = min(eligible)
    if budgets[-1] >= fewest:
        where = eligible.index(fewest)
        raise InputError(
            f"budgets go up to {budgets[-1]}, but passage {where} has only {fewest} keys to draw "
            f"from (all but the first one, delimiters and a decoder's last quarter); give budgets "
            f"below {fewest}"
        )


def refuse(given: dict[str, object], what: str, instead: str) -> None:
    """Refuse options that belong to the other kind of stack."""
    for name, value in given.items():
        if value is not None:
            raise InputError(f"{name} is for {what}; {instead}")
