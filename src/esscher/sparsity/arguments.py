"""Checks of what is asked of a study, and the configurations that they amount to."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np
from numpy.typing import ArrayLike

from esscher.errors import InputError
from esscher.heads import WeightHead, law_head
from esscher.laws import standard_law
from esscher.models import LoadedModel
from esscher.models.selection import as_indices
from esscher.patterns import PATTERNS, as_patterns
from esscher.sparsity.heads import fewest_keys
from esscher.validation import as_dim, as_sizes

#: Budgets unless they are given: first, number, and the last as a share of the visible keys.
FIRST, COUNT, LAST, SHARE = 32, 7, 2_048, 0.25
#: Share for models, whose passages are short.
MODEL_SHARE = 0.5
#: Laws: tokens of a sequence, replicates, queries.
TOKENS, REPLICATES, LAW_QUERIES = 8_192, 32, 256
#: Models: tokens of a passage, passages, queries, draws of random patterns.
CONTEXT, PASSAGES, MODEL_QUERIES, DRAWS = 2_048, 8, 64, 2
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
        budgets=_as_budgets(budgets, count, SHARE, names, "tokens"),
        seed=_as_seed(seed),
    )
    _ = request.head  # says what is wrong with the law before any work is done
    return request


def make_model_request(
    loaded: LoadedModel,
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
    longest = loaded.max_positions
    length = min(longest, CONTEXT) if context is None else as_dim(context, "context")
    if length > longest:
        raise InputError(
            f"context is {length}, but {loaded.name} reads at most {longest} tokens at a time"
        )
    names = as_patterns(patterns)
    keys = fewest_keys(length, loaded.causal)
    times = as_dim(DRAWS if draws is None else draws, "draws")
    if times < 2:
        raise InputError("draws is 1; it takes at least 2 draws of a pattern to see its bias")
    return ModelRequest(
        context=length,
        passages=as_dim(PASSAGES if passages is None else passages, "passages"),
        layers=as_indices(layers, loaded.shape.layers, "layers"),
        heads=as_indices(heads, loaded.shape.heads, "heads"),
        queries=as_dim(MODEL_QUERIES if queries is None else queries, "queries"),
        draws=times,
        patterns=names,
        budgets=_as_budgets(budgets, keys, MODEL_SHARE, names, "tokens of context"),
        seed=_as_seed(seed),
    )


def _as_budgets(
    budgets: ArrayLike | None, keys: int, share: float, names: tuple[str, ...], what: str
) -> tuple[int, ...]:
    """Budgets below the number of keys that every query may see."""
    if budgets is None:
        last = min(LAST, int(share * keys))
        if last < 4 * FIRST:
            raise InputError(
                f"{keys} keys are too few for budgets from {FIRST} on; ask for at least "
                f"{int(4 * FIRST / share)} {what}, or give budgets of your own"
            )
        return tuple(int(r) for r in np.unique(np.geomspace(FIRST, last, COUNT).round()))
    sizes = tuple(int(r) for r in as_sizes(budgets, "budgets"))
    if len(sizes) < 2:
        raise InputError(f"budgets is {list(sizes)}; a curve needs at least 2 of them")
    if sizes[-1] >= keys:
        raise InputError(
            f"budgets go up to {sizes[-1]}, but a query may see only {keys} keys; "
            f"choose budgets below that, or more {what}"
        )
    for name in names:
        PATTERNS[name].check(sizes[0])
    return sizes


def _as_seed(seed: int) -> int:
    if isinstance(seed, bool) or not isinstance(seed, (int, np.integer)) or seed < 0:
        raise InputError(f"seed is {seed!r}; it must be a whole number of at least 0")
    return int(seed)


def _plain(request: LawRequest | ModelRequest) -> dict[str, Any]:
    return {
        name: list(value) if isinstance(value, tuple) else value
        for name, value in asdict(request).items()
    }
