"""Checks of what is asked of a study, and the configurations that they amount to."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np
from numpy.typing import ArrayLike

from esscher.core.errors import InputError
from esscher.core.validation import as_dim, as_seed, as_sizes
from esscher.engine.models.outline import Outline
from esscher.engine.models.selection import as_indices
from esscher.engine.patterns import PATTERNS, as_patterns
from esscher.math.heads import WeightHead, law_head
from esscher.math.laws import standard_law

KIND = "sparse"

#: Budgets unless they are given: first, number, and the last as a share of the visible keys.
FIRST, COUNT, LAST, SHARE = 32, 7, 2_048, 0.25
#: Share for models, whose passages are short.
MODEL_SHARE = 0.5
#: Laws: tokens of a sequence, replicates, queries.
TOKENS, REPLICATES, LAW_QUERIES = 8_192, 32, 256
#: Models: tokens of a passage, passages, queries, draws of random patterns.
CONTEXT, PASSAGES, MODEL_QUERIES, DRAWS = 2_048, 8, 64, 2
#: Share of a decoder's passage that lies before the queries.
PREFIX = 0.75
#: Fewest replicates of a law: two cells, so that the bias has a standard error.
FEWEST = 8


@dataclass(frozen=True)
class LawRequest:
    """A study of synthetic tokens."""

    law: str
    horizon: float | None
    dim: int
    spectrum: tuple[float, ...] | None
    tau: tuple[float, ...] | None
    df: float
    correlation: float
    tokens: int
    queries: int
    replicates: int
    patterns: tuple[str, ...]
    budgets: tuple[int, ...]
    seed: int

    def to_dict(self) -> dict[str, Any]:
        """Return the fields as JSON holds them."""
        return _plain(self)

    @property
    def head(self) -> WeightHead:
        """The head that the tokens meet."""
        return law_head(
            standard_law(self.law, self.dim, df=self.df),
            horizon=self.horizon,
            spectrum=self.spectrum,
            tau=self.tau,
        )


@dataclass(frozen=True)
class ModelRequest:
    """A study of a model's heads, apart from model and text."""

    context: int
    passages: int
    layers: tuple[int, ...]
    heads: tuple[int, ...]
    queries: int
    draws: int
    patterns: tuple[str, ...]
    budgets: tuple[int, ...]
    seed: int

    def to_dict(self) -> dict[str, Any]:
        """Return the fields as JSON holds them."""
        return _plain(self)


def make_law_request(
    law: str,
    *,
    horizon: float | None,
    dim: int | None,
    spectrum: ArrayLike | None,
    tau: ArrayLike | float | None,
    df: float | None,
    correlation: float | None,
    tokens: int | None,
    queries: int | None,
    replicates: int | None,
    patterns: str | Iterable[str],
    budgets: ArrayLike | None,
    seed: int,
) -> LawRequest:
    """Check the arguments and fill in what was left out."""
    if (horizon is None) == (spectrum is None):
        raise InputError("give either a horizon or a spectrum for the law, such as horizon 1.0")
    values = None if spectrum is None else tuple(float(s) for s in np.atleast_1d(spectrum))
    size = as_dim(dim, "dim") if dim is not None else 1 if values is None else len(values)
    count = as_dim(TOKENS if tokens is None else tokens, "tokens")
    draws = as_dim(REPLICATES if replicates is None else replicates, "replicates")
    if draws < FEWEST:
        raise InputError(f"replicates is {draws}; it takes at least {FEWEST} for intervals")
    names = as_patterns(patterns)
    request = LawRequest(
        law=law,
        horizon=None if horizon is None else float(horizon),
        dim=size,
        spectrum=values,
        tau=None if tau is None else tuple(float(t) for t in np.atleast_1d(tau)),
        df=5.0 if df is None else float(df),
        correlation=0.0 if correlation is None else float(correlation),
        tokens=count,
        queries=as_dim(LAW_QUERIES if queries is None else queries, "queries"),
        replicates=draws,
        patterns=names,
        budgets=_law_budgets(budgets, count, names),
        seed=as_seed(seed),
    )
    _ = request.head  # says what is wrong with the law before any work is done
    return request


def make_model_request(
    model: Outline,
    *,
    context: int | None,
    passages: int | None,
    layers: Sequence[int] | None,
    heads: Sequence[int] | None,
    queries: int | None,
    draws: int | None,
    patterns: str | Iterable[str],
    budgets: ArrayLike | None,
    seed: int,
) -> ModelRequest:
    """Check the arguments and fill in what was left out."""
    length = model.context(context, CONTEXT)
    names = as_patterns(patterns)
    keys = fewest_keys(length, model.causal)
    times = as_dim(DRAWS if draws is None else draws, "draws")
    if times < 2:
        raise InputError("draws is 1; it takes at least 2 draws of a pattern to see its bias")
    return ModelRequest(
        context=length,
        passages=as_dim(PASSAGES if passages is None else passages, "passages"),
        layers=as_indices(layers, model.shape.layers, "layers"),
        heads=as_indices(heads, model.shape.heads, "heads"),
        queries=as_dim(MODEL_QUERIES if queries is None else queries, "queries"),
        draws=times,
        patterns=names,
        budgets=(
            _default_model_budgets(model, length, names)
            if budgets is None
            else _as_budgets(budgets, keys, names, _longer(model, length))
        ),
        seed=as_seed(seed),
    )


def fewest_keys(context: int, causal: bool) -> int:
    """Keys that every query of a passage may see."""
    return int(PREFIX * context) + 1 if causal else context


def _default_model_budgets(model: Outline, length: int, names: tuple[str, ...]) -> tuple[int, ...]:
    """Budgets for the passages of a model, whose layers may have windows."""
    keys = min(fewest_keys(length, model.causal), model.window or length)
    found = _default_budgets(keys, MODEL_SHARE, names)
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


def _default_budgets(keys: int, share: float, names: tuple[str, ...]) -> tuple[int, ...] | None:
    """Budgets up to a share of the keys; None if there is no room for them."""
    if keys < _fewest(share, names):
        return None
    last = min(LAST, int(share * keys))
    first = FIRST if last >= 4 * FIRST else max(_smallest(names), last // 4)
    return tuple(int(r) for r in np.unique(np.geomspace(first, last, COUNT).round()))


def _smallest(names: tuple[str, ...]) -> int:
    """Smallest budget of all patterns, at least 2."""
    return max(2, *(PATTERNS[name].smallest for name in names))


def _fewest(share: float, names: tuple[str, ...]) -> int:
    """Fewest keys for a curve: its last budget is at least twice the first."""
    return math.ceil(2 * _smallest(names) / share)


def _longer(model: Outline, length: int) -> str:
    """How there could be more keys."""
    return "" if length >= model.max_positions else ", or a longer context"


def _law_budgets(budgets: ArrayLike | None, tokens: int, names: tuple[str, ...]) -> tuple[int, ...]:
    if budgets is not None:
        return _as_budgets(budgets, tokens, names, ", or more tokens")
    found = _default_budgets(tokens, SHARE, names)
    if found is None:
        raise InputError(
            f"tokens is {tokens}; it takes at least {_fewest(SHARE, names)} for budgets of these "
            "patterns: give as many, or budgets of your own"
        )
    return found


def _as_budgets(
    budgets: ArrayLike, keys: int, names: tuple[str, ...], otherwise: str
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


def _plain(request: LawRequest | ModelRequest) -> dict[str, Any]:
    return {
        name: list(value) if isinstance(value, tuple) else value
        for name, value in asdict(request).items()
    }
