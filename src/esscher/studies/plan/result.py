"""The result: token budgets, what they are predicted to cost, and what they did cost."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar

import numpy as np

from esscher.core.codec import Count, Index
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
from esscher.runs.result import Result
from esscher.studies.plan.records import PUBLISHED, Check, Configuration, Prediction, Total, Verdict

if TYPE_CHECKING:
    import pandas as pd

    from esscher.engine.cache.cache import Decode, ReducedCache
    from esscher.engine.models import LoadedModel
    from esscher.engine.text.documents import TextSource
    from esscher.studies.plan.export import ExportFormat
    from esscher.studies.plan.study import PlanStudy  # noqa: F401 - of the base class

#: Version of the file; another one is refused.
VERSION = 2
#: Name of the file in the directory of a run.
PLAN = "plan.json"


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
        shape = (self.token_budgets.model.layers, self.token_budgets.model.heads)
        grids = [self.predicted.head_error]
        if self.check is not None:
            grids += [self.check.heads.predicted, self.check.heads.realised]
            self._check_parts(self.check)
        if any((len(grid), *{len(row) for row in grid}) != shape for grid in grids):
            raise InputError("its errors are not one per layer and head of its model")

    def _check_parts(self, check: Check) -> None:
        names = set(check.configurations)
        if set(check.ratios) != names - {"planned"} or not set(check.best) <= names:
            raise InputError("its check does not compare what it measured")
        if set(check.over_best) != names - {check.best[0]}:
            raise InputError("its check does not compare what it measured")
        for name in check.others:
            rule, _, scorer = name.partition(":")
            if not {rule, scorer} <= set(PUBLISHED):
                raise InputError(f"its check has a rule {shortened(name)}, which is not known")
        scored = [*check.tasks.values(), *([check.totals] if check.totals else [])]
        if any(set(scores) != names | {"dense"} for scores in scored):
            raise InputError("its check does not score what it measured")
        if not set(check.dense_cannot) <= set(check.tasks) or (check.totals and not check.tasks):
            raise InputError("its check does not score what it asked")
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
            powers=self.powers, selection=self.selection, score=self.score,
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
            what was kept and what came since is judged again whenever the newest tokens exceed
            their window.
        length
            Budgets are shares of all tokens seen. With a length they are shares of so many at most:
            ``length=plan.prefix`` keeps the plan's own numbers of tokens, however long the text.
        chunk
            Read prompts in pieces of so many tokens, and reduce them as they come: bounds the
            memory of a long prompt. The model then returns hidden states and logits of the last
            piece alone.
        score
            By which queries tokens are scored: ``"all"`` queries of the prompt, moved behind it;
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
            self._loaded(model), self.token_budgets, seed=seed, decode=decode, length=length,
            chunk=chunk, score=score,
        )  # fmt: skip

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
            "against", "tasks", "task_items", "check_passages", "score", "seed",
            "column",
        )  # fmt: skip
        for name in options:
            if name not in allowed:
                raise InputError(f"evaluate has no {name!r}; it takes {', '.join(allowed)}")
        from esscher.studies.plan.evaluate import evaluate_plan  # brings torch

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
        from esscher.studies.plan.export import export_plan

        export_plan(self, as_path(path, "path"), format)

    def _loaded(self, model: Any) -> LoadedModel:
        """Return the model, which must be the plan's."""
        from esscher.engine.models import LoadedModel, wrap_model  # brings torch

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
