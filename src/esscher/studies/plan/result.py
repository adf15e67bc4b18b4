"""What is stored about plans: cells, measures of a check, answers to questions, predictions."""

from __future__ import annotations

import io
import json
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, ClassVar, Literal, TypeAlias

import numpy as np
from msgspec import Meta, field

from esscher.core.atomic import write_output
from esscher.core.codec import Count, Index, Interval, Name, Record
from esscher.core.errors import InputError
from esscher.core.shown import shortened
from esscher.core.validation import as_path
from esscher.engine.cache.budgets import (
    Grid,
    Keeping,
    Score,
    SelectionKind,
    TokenBudgets,
    TokenGrid,
)
from esscher.engine.models.record import ModelRecord
from esscher.runs.old_result import Result

if TYPE_CHECKING:
    import pandas as pd

    from esscher.engine.cache.cache import Decode, ReducedCache
    from esscher.engine.models.loaded import LoadedModel
    from esscher.engine.text.documents import TextSource
    from esscher.studies.plan.study import PlanStudy  # noqa: F401 - of the base class


#: Version of the file of a plan; another one is refused.
VERSION = 3
#: Name of the file in the directory of a run.
PLAN = "plan.json"
#: Stands for the end of the model where the tables of cells have the number of a layer.
END = -1

Verdict: TypeAlias = Literal["better", "worse", "undecided"]
#: What is compared with dense: ``planned``, ``uniform``, and others by the names of their rules.
Configuration: TypeAlias = Name


class CacheBytes(Record, frozen=True, kw_only=True):
    """Bytes of a decoder's cache that has read the prefix: under the plan, and dense.

    Weights of sampled tokens count, and so do layers with a sliding window, which are in both.
    """

    planned: Count
    dense: Count


class PlanCell(Record, frozen=True, kw_only=True, omit_defaults=True):
    """A cell: a calibration passage, one of the check, or an item of a task.

    Attributes
    ----------
    sliding
        Layers with a sliding window, which are not reduced.
    passage
        Number of the passage.
    dense_nll
        Surprise of its tokens under dense attention: of a decoder.
    cache
        What the plan's cache of a decoder takes.
    kept
        Tokens that each configuration keeps of a decoder's prompt, in all heads together.
    task, haystack, answer, answers
        Of an item: its task, what its needles are hidden in, the right answer, and what the dense
        model and every configuration answered.
    """

    sliding: tuple[Index, ...] = ()
    passage: Index | None = None
    dense_nll: float | None = None
    cache: CacheBytes | None = None
    kept: dict[Name, Count] | None = None
    task: Name | None = None
    haystack: Name | None = None
    answer: Name | None = None
    answers: dict[Name, Name] | None = None


class Mean(Record, frozen=True, kw_only=True, omit_defaults=True):
    """A mean over passages, with 95% interval; None for one passage."""

    mean: float
    interval: Interval | None
    standard_error: float | None = None


class Measures(Record, frozen=True, kw_only=True, omit_defaults=True):
    """How far a configuration is from dense.

    Attributes
    ----------
    kl, top1, perplexity, perplexity_ratio
        Of the next-token distributions.
    error, layer_error
        Relative error of attention outputs, over all layers and by layer.
    kept
        Tokens that the key heads keep together.
    """

    kl: Mean
    top1: Mean
    perplexity: Mean
    perplexity_ratio: Mean | None = None
    error: Mean
    layer_error: tuple[Mean, ...] = ()
    kept: Count | None = None


class HeadErrors(Record, frozen=True, kw_only=True):
    """Predicted and realised relative errors of heads, and how well they agree."""

    predicted: Grid
    realised: Grid
    factor: float
    within_factor: float | None
    median_ratio: float | None


class TaskScore(Record, frozen=True, kw_only=True, omit_defaults=True):
    """What a configuration answered to the items of a task.

    Attributes
    ----------
    score, interval
        Mean share of right answers (exact match), with Wilson's 95% interval.
    n
        Number of items.
    log_probability, log_probability_interval
        Mean over the items of the right answer's log-probability, in nats per token, and Student's
        95% interval.
    of_dense
        Mean over the items of the same minus that of the dense model, with interval.
    noise, text
        Score of the items in repeated noise, and in the text of the check.
    """

    score: float
    interval: Interval
    n: Count
    log_probability: float
    log_probability_interval: Interval | None = None
    of_dense: Mean | None = None
    noise: float | None = None
    text: float | None = None


#: Scores of every configuration, dense included.
TaskScores: TypeAlias = dict[Configuration, TaskScore]
#: Published rules by the names that ``--against`` takes.
PUBLISHED = ("streaming", "snapkv", "expected", "adakv", "kvzip")


class Check(Record, frozen=True, kw_only=True, omit_defaults=True):
    """What a plan and others cost on unseen passages, with the same number of tokens.

    Attributes
    ----------
    passages
        How many there are.
    measures
        Of every configuration: ``dense``, ``planned``, ``uniform``, and published rules, as far as
        they were compared.
    ratios, over_best
        Distances from dense over that of the plan, and over that of the closest.
    verdict, passages_needed
        The plan against uniform budgets, and passages that would decide where these do not.
    best
        What is closest to dense; several if they cannot be told apart.
    heads
        Predicted against realised errors of heads.
    cache
        Bytes of the cache.
    tasks
        Scores by task and configuration.
    dense_cannot
        Tasks that the dense model itself fails; they are left out of the totals.
    totals
        Scores over the items of all other tasks.
    """

    passages: Count
    measures: dict[Configuration, Measures]
    ratios: dict[Configuration, Mean]
    verdict: Verdict
    passages_needed: Annotated[int, Meta(ge=2, le=10**6)] | None
    best: Annotated[tuple[Configuration, ...], Meta(min_length=1)]
    over_best: dict[Configuration, Mean]
    heads: HeadErrors
    cache: CacheBytes | None = None
    tasks: dict[Name, TaskScores] = field(default_factory=dict)
    dense_cannot: tuple[Name, ...] = ()
    totals: TaskScores = field(default_factory=dict)

    @property
    def configurations(self) -> dict[Configuration, Measures]:
        """Measures by name, but for dense."""
        return {name: own for name, own in self.measures.items() if name != "dense"}


class Total(Record, frozen=True, kw_only=True):
    """Tokens of all key heads together, and as a share of all; layers with a window apart."""

    tokens: Count
    ratio: float


class Prediction(Record, frozen=True, kw_only=True, omit_defaults=True):
    """What the plan is predicted to cost; see ``predict.py``.

    ``effect`` is that on prose, ``retrieval`` that where the text is asked for what it says.
    """

    unit: Name
    effect: float
    interval: Interval | None
    uniform_effect: float
    uniform_powers: Grid
    retrieval: float | None = None
    head_error: Grid
    price: float | None
    gap: float | None


#: Forms of an export: a table of text, the same as JSON, and the array of kvpress' LUKVPress.
ExportFormat: TypeAlias = Literal["csv", "json", "kvpress"]
#: How the names of their files end.
ENDINGS: dict[ExportFormat, str] = {"csv": ".csv", "json": ".json", "kvpress": ".npy"}
#: Rows of LU-KV's array: shares that are dropped, from 1% to 99%.
TARGETS = 99


@dataclass(frozen=True, eq=False, repr=False, kw_only=True)
class Plan(Result["PlanStudy"]):
    """Token budgets of every key head; its file names its model, and is refused for others.

    Attributes
    ----------
    version
        Of the file.
    model, prefix, keeping, budgets, powers, selection, score
        See :class:`~esscher.engine.cache.budgets.TokenBudgets`.
    ratios
        Budgets as shares of the prefix.
    sliding
        Layers with a sliding window, which are left alone.
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
    selection: SelectionKind
    score: Score
    sliding: tuple[Index, ...]
    total: Total
    predicted: Prediction
    check: Check | None

    def __post_init__(self) -> None:
        """Refuse what is no plan of its model."""
        if self.version != VERSION:
            raise InputError(
                f"it has version {self.version}; this version of Esscher reads {VERSION}"
            )
        model, check = self.token_budgets.model, self.check
        grids = [self.predicted.head_error]
        if check is not None:
            grids += [check.heads.predicted, check.heads.realised]
        if any((len(g), *{len(row) for row in g}) != (model.layers, model.heads) for g in grids):
            raise InputError("its errors are not one per layer and head of its model")
        if check is None:
            return
        names = set(check.configurations)
        for name in names - {"planned", "uniform"}:
            rule, *scorer = name.split(":")
            if not {rule, *scorer} <= set(PUBLISHED) or len(scorer) > 1:
                raise InputError(f"its check has a rule {shortened(name)}, which is not known")
        if (
            not {"dense", "planned", "uniform", *check.best} <= set(check.measures)
            or set(check.ratios) != names - {"planned"}
            or set(check.over_best) != names - {check.best[0]}
        ):
            raise InputError("its check does not compare what it measured")
        scored = [*check.tasks.values(), *([check.totals] if check.totals else [])]
        if (
            any(set(scores) != names | {"dense"} for scores in scored)
            or not set(check.dense_cannot) <= set(check.tasks)
            or (check.totals and not check.tasks)
        ):
            raise InputError("its check does not score what it measured")
        if any(len(check.measures[name].layer_error) != model.layers for name in names):
            raise InputError("its check is not of all layers")

    @cached_property
    def token_budgets(self) -> TokenBudgets:
        """What it takes to run the model under the plan."""
        return TokenBudgets(
            model=self.model,
            prefix=self.prefix,
            keeping=self.keeping,
            budgets=self.budgets,
            powers=self.powers,
            selection=self.selection,
            score=self.score,
        )

    @property
    def verdict(self) -> Verdict | None:
        """What the check found the plan to be against uniform budgets; None without a check.

        "better" or "worse" if the paired interval over passages excludes that they are alike, else
        "undecided".
        """
        return None if self.check is None else self.check.verdict

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
        score: Score | None = None,
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
            what was kept and what came since is selected again whenever the newest tokens exceed
            their window.
        length
            Budgets are shares of all tokens seen. With a length they are shares of so many at most:
            ``length=plan.prefix`` keeps the plan's own numbers of tokens, however long the text.
        chunk
            Read prompts in pieces of so many tokens, and reduce them as they come: bounds the
            memory of a long prompt. The model then returns hidden states and logits of the last
            piece alone.
        score
            By which queries tokens are scored: ``"all"`` queries of the prompt, moved after it;
            its ``"last"`` 64, which is faster and forgets more of what is asked for later; or also
            those with which the model would ``"repeat"`` the prompt, which it then reads a second
            time. For that it needs its tokenizer and positions for both readings, and all layers
            hold the prompt whole until it was repeated; with ``chunk`` a piece of it. By default
            as the plan was made.

        Raises
        ------
        InputError
            If it is another model, or an encoder, or has no tokenizer to be told to repeat.
        """
        from esscher.engine.cache.cache import planned_cache  # brings torch

        return planned_cache(
            self._loaded(model),
            self.token_budgets,
            seed=seed,
            decode=decode,
            length=length,
            chunk=chunk,
            score=score,
        )

    @contextmanager
    def apply(self, model: Any, seed: int = 0, **options: Any) -> Iterator[ReducedCache]:
        """Run a transformers model under the plan within a block.

        It uses a cache of the plan wherever it was given an empty one, or none; the block begins
        with that cache.

        Parameters
        ----------
        model
            The model the plan was made for (transformers' own, or as :func:`load_model` returns).
        seed
            Seed of the samples.
        options
            As for :meth:`cache`.

        Raises
        ------
        InputError
            If it is another model.
        """
        loaded = self._loaded(model)
        from esscher.engine.cache.hooks import cache_by_default

        cache = self.cache(loaded, seed=seed, **options)
        with cache_by_default(loaded, cache):
            yield cache

    def evaluate(self, model: Any, text: TextSource, **options: Any) -> Check:
        """Check the plan on another text, and on tasks.

        Parameters
        ----------
        model
            The model the plan was made for.
        text
            Text that the plan has not seen.
        options
            Of a check, as :func:`esscher.plan` takes them: ``against``, ``tasks``, ``task_items``,
            ``check_passages``, ``score``, ``seed``, ``column``.

        Raises
        ------
        InputError
            If it is another model, the text is too short, or an option is none of these.
        """
        allowed = (
            "against",
            "tasks",
            "task_items",
            "check_passages",
            "score",
            "seed",
            "column",
        )
        for name in options:
            if name not in allowed:
                raise InputError(f"evaluate has no {name!r}; it takes {', '.join(allowed)}")
        from esscher.studies.plan.work import evaluate_plan  # brings torch

        return evaluate_plan(self, self._loaded(model), text, **options)

    def export(self, path: str | Path, format: ExportFormat | None = None) -> None:
        """Write the budgets for another runtime.

        Weights of the sample, and what was fitted, are lost: make plans for other runtimes with
        ``selection="topk"``. kvpress is not handed any other without a warning.

        Parameters
        ----------
        path
            The file.
        format
            By default what the name of the file ends in. ``"json"`` (.json) or ``"csv"`` (.csv):
            tokens and shares by layer and key head. ``"kvpress"`` (.npy): an array for
            kvpress' ``LUKVPress`` (``press._budget_curves = numpy.load(path)``); it has the
            plan's own ratio alone, so set ``compression_ratio`` to one minus that. kvpress 0.5.5
            fails with transformers from 5.3 on (``KeyError: 'cache_position'``): it needs an
            environment of its own.

        Raises
        ------
        InputError
            For another format, a name that ends in none or in that of another format, or if the
            file cannot be written; an old one is then as it was.
        """
        path = as_path(path, "path")
        named = {ending: name for name, ending in ENDINGS.items()}.get(path.suffix.lower())
        form = format or named
        if form is None:
            raise InputError(
                f"the name {path.name!r} does not say what to write; let it end in .json, .csv or "
                ".npy (kvpress), or give a format"
            )
        if form not in ENDINGS:
            raise InputError(f"format is {form!r}; choose 'csv', 'json' or 'kvpress'")
        if named not in (None, form):
            raise InputError(
                f"format is {form!r}, but {path.name!r} is the name of a file of format {named!r}; "
                f"let it end in {ENDINGS[form]}, or leave the format out"
            )
        if form == "csv":
            table = self.table()[["layer", "key_head", "tokens", "ratio"]]
            write_output(path, table.to_csv(index=False).encode())
            return
        if form == "json":
            tree = {
                "model": self.model.name,
                "weight_hash": self.model.weight_hash,
                "prefix": self.prefix,
                "selection": self.selection,
                "sinks": self.keeping.sinks,
                "recent": self.keeping.recent,
                "tokens": self.budgets,
                "ratios": self.ratios,
            }
            write_output(path, json.dumps(tree, indent=1).encode())
            return
        if self.sliding:
            raise InputError(
                f"{self.model.name} has layers with a sliding window, which kvpress' array of "
                "ratios cannot leave out; export 'csv' or 'json'"
            )
        if self.selection != "topk":
            lost = "weights" if self.selection == "sample" else "weights and fitted values"
            warnings.warn(
                f"the plan is for selection {self.selection!r}, and kvpress has no {lost} of "
                "tokens: its budgets alone are exported, and what it says of errors does not hold "
                "for them. Make a plan with selection='topk' for kvpress",
                stacklevel=2,
            )
        # the share that each head drops, by target: rows of other targets are not known, and NaN,
        # so that to use them is an error
        row = min(TARGETS, max(1, round(100 * (1 - self.total.ratio)))) - 1
        curves = np.full((TARGETS, *np.shape(self.ratios)), np.nan, dtype=np.float32)
        curves[row] = 1 - np.asarray(self.ratios)
        data = io.BytesIO()
        np.save(data, curves, allow_pickle=False)
        write_output(path, data.getvalue())

    def _loaded(self, model: Any) -> LoadedModel:
        """Return the model, which must be the plan's."""
        from esscher.engine.models.loaded import LoadedModel, wrap_model  # brings torch

        loaded = model if isinstance(model, LoadedModel) else wrap_model(model)
        self.token_budgets.check_model(loaded)
        return loaded

    def table(self) -> pd.DataFrame:
        """Return a data frame, one row per key head.

        Plans for the largest scores have no powers.
        """
        tokens = self.token_budgets.tokens
        layers, key_heads = tokens.shape
        errors = np.asarray(self.predicted.head_error)
        worst = errors.reshape(layers, key_heads, -1).max(axis=-1)
        powers = {} if self.selection == "topk" else {"power": np.asarray(self.powers).ravel()}
        import pandas as pd

        return pd.DataFrame(
            {
                "layer": np.repeat(np.arange(layers), key_heads),
                "key_head": np.tile(np.arange(key_heads), layers),
                "tokens": tokens.ravel(),
                "ratio": self.token_budgets.ratios.ravel(),
                **powers,
                "predicted_error": worst.ravel(),
            }
        )
