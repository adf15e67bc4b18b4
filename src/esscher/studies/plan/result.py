"""The result: token budgets, what they are predicted to cost, and what they did cost."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, Annotated, Any, ClassVar, Literal, TypeAlias

import numpy as np
from msgspec import Meta

from esscher.core.codec import Count, Index, Interval, Name, Record
from esscher.core.errors import InputError
from esscher.engine.cache.budgets import Grid, Keeping, TokenBudgets, TokenGrid
from esscher.engine.models.record import ModelRecord
from esscher.runs.result import Result

if TYPE_CHECKING:
    import pandas as pd

    from esscher.engine.cache.cache import Decode, ReducedCache
    from esscher.engine.models import LoadedModel
    from esscher.studies.plan.study import PlanStudy  # noqa: F401 - of the base class

#: Version of the file; another one is refused.
VERSION = 1
#: Name of the file in the directory of a run.
PLAN = "plan.json"

Verdict: TypeAlias = Literal["better", "worse", "undecided"]
Configuration: TypeAlias = Literal["planned", "uniform", "heavy", "recent"]


class Shapes(Record, frozen=True, kw_only=True):
    """Axes of the arrays in the table of a calibration passage."""

    effect: tuple[Index, ...]
    square: tuple[Index, ...]
    norm: tuple[Index, ...]


class CacheBytes(Record, frozen=True, kw_only=True):
    """Bytes of a decoder's cache that has read the prefix: under the plan, and dense.

    Weights of sampled tokens count, and so do layers with a sliding window, which are in both.
    """

    planned: Count
    dense: Count


class PlanCell(Record, frozen=True, kw_only=True, omit_defaults=True):
    """A cell: a calibration passage (``shapes``), or one of the check (everything else).

    Attributes
    ----------
    shapes
        Axes of the effects in the table.
    sliding
        Layers with a sliding window, which are not reduced.
    passage
        Number of the passage.
    dense_nll
        Surprise of its tokens under dense attention: of a decoder.
    embeddings
        Embeddings of an encoder by configuration and sample.
    cache
        What the plan's cache of a decoder takes.
    """

    shapes: Shapes | None = None
    sliding: tuple[Index, ...] = ()
    passage: Index | None = None
    dense_nll: float | None = None
    embeddings: dict[Name, Grid] | None = None
    cache: CacheBytes | None = None


class Mean(Record, frozen=True, kw_only=True, omit_defaults=True):
    """A mean over passages, with 95% interval; None for one passage."""

    mean: float
    interval: Interval | None
    standard_error: float | None = None


class LayerMeans(Record, frozen=True, kw_only=True):
    """The same for every layer."""

    mean: tuple[float, ...]
    standard_error: tuple[float | None, ...]
    interval: tuple[Interval | None, ...]


class Measures(Record, frozen=True, kw_only=True, omit_defaults=True):
    """How far a configuration is from dense.

    Attributes
    ----------
    kl, top1, perplexity, perplexity_ratio
        Of a decoder.
    cosine, nearest
        Of an encoder; with two passages there is no nearest neighbour.
    error, layer_error
        Relative error of attention outputs, over all layers and by layer.
    """

    kl: Mean | None = None
    top1: Mean | None = None
    perplexity: Mean | None = None
    perplexity_ratio: Mean | None = None
    cosine: Mean | None = None
    nearest: Mean | None = None
    error: Mean
    layer_error: LayerMeans | None = None

    @property
    def end(self) -> Mean | None:
        """What is compared at the end of the model: KL of a decoder, cosine of an encoder."""
        return self.cosine if self.kl is None else self.kl

    @property
    def distance(self) -> Mean:
        """Distance from dense: KL of a decoder, 1 - cosine of an encoder."""
        if self.kl is not None:
            return self.kl
        assert self.cosine is not None
        ends = self.cosine.interval
        return Mean(
            mean=1 - self.cosine.mean,
            interval=None if ends is None else (1 - ends[1], 1 - ends[0]),
        )


class HeadErrors(Record, frozen=True, kw_only=True):
    """Predicted and realised relative errors of heads, and how well they agree."""

    predicted: Grid
    realised: Grid
    factor: float
    within_factor: float | None
    median_ratio: float | None


class Check(Record, frozen=True, kw_only=True, omit_defaults=True):
    """What a plan and others cost on unseen passages, with the same number of tokens.

    Attributes
    ----------
    passages
        How many there are.
    dense, planned, uniform, heavy, recent
        Measures of every configuration; an encoder has no recent tokens.
    ratios, over_best
        Distances from dense over that of the plan, and over that of the closest.
    verdict, earned, passages_needed
        The plan against uniform budgets, and passages that would decide where these do not.
    best
        What is closest to dense; several if they cannot be told apart.
    heads
        Predicted against realised errors of heads.
    cache
        Bytes of a decoder's cache.
    """

    passages: Count
    dense: Measures
    planned: Measures
    uniform: Measures
    heavy: Measures
    recent: Measures | None = None
    ratios: dict[Configuration, Mean]
    verdict: Verdict
    earned: bool
    passages_needed: Annotated[int, Meta(ge=2, le=10**6)] | None
    best: Annotated[tuple[Configuration, ...], Meta(min_length=1)]
    over_best: dict[Configuration, Mean]
    heads: HeadErrors
    cache: CacheBytes | None = None

    @property
    def configurations(self) -> dict[Configuration, Measures]:
        """Measures by name, but for dense."""
        found: dict[Configuration, Measures] = {
            "planned": self.planned, "uniform": self.uniform, "heavy": self.heavy,
        }  # fmt: skip
        return found if self.recent is None else found | {"recent": self.recent}


class Total(Record, frozen=True, kw_only=True):
    """Tokens of all key heads together, and as a share of all; layers with a window apart."""

    tokens: Count
    ratio: float


class Prediction(Record, frozen=True, kw_only=True):
    """What the plan is predicted to cost; see ``predict.py``."""

    unit: Name
    effect: float
    interval: Interval | None
    uniform_effect: float
    head_error: Grid
    price: float | None
    gap: float | None


@dataclass(frozen=True, eq=False, repr=False, kw_only=True)
class Plan(Result["PlanStudy"]):
    """Token budgets of every key head; its file names its model, and is refused for others.

    Attributes
    ----------
    version
        Of the file.
    model, prefix, keeping, budgets, powers
        See :class:`~esscher.engine.cache.budgets.TokenBudgets`.
    ratios
        Budgets as shares of the prefix.
    total, predicted
        What is kept in all, and what it is predicted to cost.
    check
        What it cost on unseen text; None without.
    """

    closed: ClassVar[bool] = True

    version: Index
    model: ModelRecord
    prefix: Count
    keeping: Keeping
    budgets: TokenGrid
    ratios: Grid
    powers: Grid
    total: Total
    predicted: Prediction
    check: Check | None

    def __post_init__(self) -> None:
        """Refuse what is no plan of its model."""
        if self.version != VERSION:
            raise InputError(
                f"it has version {self.version}; this version of Esscher reads {VERSION}"
            )
        shape = (self.token_budgets.model.layers, self.token_budgets.model.heads)
        grids = [self.predicted.head_error]
        if self.check is not None:
            grids += [self.check.heads.predicted, self.check.heads.realised]
            self._check_parts(self.check)
        if any((len(grid), *{len(row) for row in grid}) != shape for grid in grids):
            raise InputError("its errors are not one per layer and head of its model")

    def _check_parts(self, check: Check) -> None:
        names = set(check.configurations)
        measured = [check.dense, *check.configurations.values()]
        causal = check.planned.kl is not None
        if any(m.end is None or (m.kl is not None) != causal for m in measured):
            raise InputError("its check lacks measures")
        if set(check.ratios) != names - {"planned"} or not set(check.best) <= names:
            raise InputError("its check does not compare what it measured")
        if set(check.over_best) != names - {check.best[0]}:
            raise InputError("its check does not compare what it measured")
        for found in check.configurations.values():
            means = found.layer_error
            lists: list[Any] = [] if means is None else [means.mean, means.interval]
            if [len(one) for one in lists] != [self.model.layers] * 2:
                raise InputError("its check is not of all layers")

    @cached_property
    def token_budgets(self) -> TokenBudgets:
        """What it takes to run the model under the plan."""
        return TokenBudgets(
            model=self.model, prefix=self.prefix, keeping=self.keeping, budgets=self.budgets,
            powers=self.powers,
        )  # fmt: skip

    @property
    def verdict(self) -> Verdict | None:
        """What the check found the plan to be against uniform budgets; None without a check.

        "better" or "worse" if the paired interval over passages excludes that they are alike, else
        "undecided".
        """
        return None if self.check is None else self.check.verdict

    @property
    def earned(self) -> bool | None:
        """Whether the check found the plan better than uniform budgets; None without a check."""
        return None if self.check is None else self.check.earned

    @property
    def best(self) -> tuple[Configuration, ...]:
        """What the check found closest to dense; several if they cannot be told apart."""
        return () if self.check is None else self.check.best

    def cache(
        self,
        model: Any,
        *,
        seed: int = 0,
        decode: Decode = "keep",
        length: int | None = None,
        chunk: int | None = None,
    ) -> ReducedCache:
        """Make a cache that holds what the plan keeps; hand it to ``generate`` or to the model.

        The prompt is read by the model's own attention, and each key head keeps its budget of it.
        Used with any other cache the model does what it did before.

        Parameters
        ----------
        model
            The decoder the plan was made for (transformers' own, or as :func:`load_model` returns).
        seed
            Seed of the samples.
        decode
            ``"keep"`` holds all tokens after the prompt. ``"budget"`` lets them share the budgets:
            what was kept and what came since is judged again whenever the newest tokens exceed
            their window.
        length
            Budgets are shares of all tokens seen. With a length they are shares of so many at most:
            ``length=plan.prefix`` keeps the plan's own numbers of tokens, however long the text.
        chunk
            Read prompts in pieces of so many tokens, and reduce them as they come: bounds the
            memory of a long prompt. The model then returns hidden states and logits of the last
            piece alone.

        Raises
        ------
        InputError
            If it is another model, or an encoder.
        """
        from esscher.engine.cache.cache import planned_cache  # brings torch

        return planned_cache(
            self._loaded(model), self.token_budgets, seed=seed, decode=decode, length=length,
            chunk=chunk,
        )  # fmt: skip

    @contextmanager
    def apply(self, model: Any, seed: int = 0, **options: Any) -> Iterator[ReducedCache | None]:
        """Run a transformers model under the plan within a block.

        A decoder uses a cache of the plan wherever it was given an empty one, or none; the block
        begins with that cache. An encoder, which has none, keeps the budgets in every call.

        Parameters
        ----------
        model
            The model the plan was made for (transformers' own, or as :func:`load_model` returns).
        seed
            Seed of the samples.
        options
            Of a decoder: as for :meth:`cache`.

        Raises
        ------
        InputError
            If it is another model.
        """
        loaded = self._loaded(model)
        if loaded.causal:
            from esscher.engine.cache.attachment import cache_by_default

            cache = self.cache(loaded, seed=seed, **options)
            with cache_by_default(loaded, cache):
                yield cache
            return
        if options:
            raise InputError(f"an encoder has no cache, and no {', '.join(sorted(options))}")
        from esscher.engine.cache.encoder import ReducedEncoder
        from esscher.engine.cache.rule import PlannedRule
        from esscher.engine.models import attention_override

        with attention_override(loaded, ReducedEncoder(PlannedRule(self.token_budgets, seed))):
            yield None

    def _loaded(self, model: Any) -> LoadedModel:
        """Return the model, which must be the plan's."""
        from esscher.engine.models import LoadedModel, wrap_model  # brings torch

        loaded = model if isinstance(model, LoadedModel) else wrap_model(model)
        self.token_budgets.check_model(loaded)
        return loaded

    def table(self) -> pd.DataFrame:
        """Return a data frame, one row per key head."""
        tokens = self.token_budgets.tokens
        layers, key_heads = tokens.shape
        errors = np.asarray(self.predicted.head_error)
        worst = errors.reshape(layers, key_heads, -1).max(axis=-1)
        import pandas as pd

        return pd.DataFrame(
            {
                "layer": np.repeat(np.arange(layers), key_heads),
                "key_head": np.tile(np.arange(key_heads), layers),
                "tokens": tokens.ravel(),
                "ratio": self.token_budgets.ratios.ravel(),
                "power": np.asarray(self.powers).ravel(),
                "predicted_error": worst.ravel(),
            }
        )
