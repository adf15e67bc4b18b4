"""Plans: the record that people edit and export, and the result of a study with all its numbers.

The record is a JSON file: the model, and what each of its key heads keeps. Everything that runs a
model under a plan needs no more. :class:`PlanResult` has the measurements, from which the record
follows.
"""

from __future__ import annotations

import io
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

from esscher.core.atomic import write_output
from esscher.core.codec import Index, as_json, as_record, as_tree
from esscher.core.dataset_file import SUFFIX
from esscher.core.errors import InputError
from esscher.core.shown import counted, shortened
from esscher.core.validation import as_path
from esscher.engine.attention.bits import ENTRY_BYTES
from esscher.engine.cache.budgets import Score, TokenBudgets
from esscher.runs.result import NotFinished, Result

if TYPE_CHECKING:
    from esscher.engine.cache.cache import Decode, ReducedCache
    from esscher.engine.models.loaded import LoadedModel
    from esscher.engine.text.documents import TextSource
    from esscher.studies.plan.study import PlanSettings  # noqa: F401 - of the base class

#: Version of the file of a plan.
VERSION = 5
#: Name of the file in the directory of a run.
PLAN = "plan.json"
#: Fields of a file of version 3 that are no part of the record: what was measured, and the run.
MEASURED = {"complete", "cells", "configuration", "versions", "created", "headline"} | {
    *("ratios", "total", "predicted", "check")
}

#: Rows of LU-KV's array: shares that are dropped, from 1% to 99%.
TARGETS = 99


class UsesPlan:
    """What can be done with a plan: by its record, and by the result that it comes from."""

    __slots__ = ()

    @property
    def plan(self) -> Plan:
        """The record."""
        raise NotImplementedError

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
            hold the prompt whole until it was repeated: ``chunk`` and ``decode="budget"`` are
            refused. By default as the plan was made.

        Raises
        ------
        InputError
            If it is another model, or an encoder, or has no tokenizer to be told to repeat.
        """
        from esscher.engine.cache.cache import planned_cache  # brings torch

        return planned_cache(
            self._loaded(model),
            self.plan.token_budgets,
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

    def evaluate(self, model: Any, text: TextSource, **options: Any) -> PlanResult:
        """Check the plan on another text, and on tasks; nothing is predicted.

        Parameters
        ----------
        model
            The model the plan was made for.
        text
            Text that the plan has not seen.
        options
            Of a check, as :func:`esscher.plan` takes them: ``against``, ``tasks``, ``task_items``,
            ``check_passages``, ``seed``, ``out`` and the like.

        Raises
        ------
        InputError
            If it is another model, or the text is too short.
        """
        from esscher.studies.plan import plan

        loaded, options = self._loaded(model), {"score": self.plan.score} | options
        return cast(PlanResult, plan(loaded, check=text, plan=self.plan, **options))

    def export(self, path: str | Path) -> None:
        """Write the budgets for another runtime, in the form that the name of the file ends in.

        ``.csv``: tokens, shares, bits and bytes by layer and key head. ``.npy``: an array for
        kvpress' ``LUKVPress`` (``press._budget_curves = numpy.load(path)``); it has the plan's own
        ratio alone, so set ``compression_ratio`` to one minus that. kvpress 0.5.5 fails with
        transformers from 5.3 on (``KeyError: 'cache_position'``): it needs an environment of its
        own.

        Weights of the sample, what was fitted, and fewer bits are lost: make plans for other
        runtimes with ``selection="topk"``, which keeps tokens in the type of the model. kvpress is
        not handed any other without a warning.

        Raises
        ------
        InputError
            For a name that ends in neither, or if the file cannot be written; an old one is then as
            it was.
        """
        import numpy as np

        plan, path = self.plan, as_path(path, "path")
        ratios = plan.ratios
        if path.suffix.lower() == ".csv":
            rows = ["layer,key_head,tokens,ratio,key_bits,value_bits,bytes\n"]
            for (layer, head), tokens in np.ndenumerate(plan.tokens):
                keys, values = plan.bits_of(layer, head)
                size = plan.nbytes[layer, head]
                share = ratios[layer, head]
                rows.append(f"{layer},{head},{tokens},{share},{keys},{values},{size}\n")
            write_output(path, "".join(rows).encode())
            return
        if path.suffix.lower() != ".npy":
            raise InputError(
                f"the name {path.name!r} does not say what to write; let it end in .csv or .npy "
                "(kvpress)"
            )
        if plan.sliding:
            raise InputError(
                f"{plan.model.name} has layers with a sliding window, which kvpress' array of "
                "ratios cannot leave out; export .csv"
            )
        if plan.selection != "topk" or plan.bits is not None:
            lost = "bits" if plan.selection == "topk" else "bits, weights and fitted values"
            warnings.warn(
                f"the plan is for selection {plan.selection!r}, and kvpress has no {lost} of "
                "tokens: its budgets alone are exported, and what it says of errors does not hold "
                "for them. Make a plan with selection='topk' for kvpress",
                stacklevel=2,
            )
        # the share that each head drops, by target: rows of other targets are not known, and NaN,
        # so that to use them is an error
        row = min(TARGETS, max(1, round(100 * (1 - plan.ratio)))) - 1
        curves = np.full((TARGETS, *ratios.shape), np.nan, dtype=np.float32)
        curves[row] = 1 - ratios
        data = io.BytesIO()
        np.save(data, curves, allow_pickle=False)
        write_output(path, data.getvalue())

    def _loaded(self, model: Any) -> LoadedModel:
        """Return the model, which must be the plan's."""
        from esscher.engine.models.loaded import LoadedModel, wrap_model  # brings torch

        loaded = model if isinstance(model, LoadedModel) else wrap_model(model)
        self.plan.check_model(loaded)
        return loaded


class Plan(TokenBudgets, UsesPlan, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Token budgets of every key head; a plan is refused for another model than its own.

    Attributes
    ----------
    model, prefix, keeping, budgets, powers, bits, selection, score
        See :class:`~esscher.engine.cache.budgets.TokenBudgets`.
    sliding
        Layers with a sliding window, which are left alone.
    """

    sliding: tuple[Index, ...] = ()

    @property
    def plan(self) -> Plan:
        """The plan itself."""
        return self

    @property
    def token_budgets(self) -> TokenBudgets:
        """What it takes to run the model under the plan."""
        names = TokenBudgets.__struct_fields__
        return TokenBudgets(**{name: getattr(self, name) for name in names})

    @property
    def reduced(self) -> list[int]:
        """Layers that are reduced."""
        return [i for i in range(self.model.layers) if i not in self.sliding]

    @property
    def ratio(self) -> float:
        """Tokens of the layers that are reduced, as a share of all."""
        return float(self.tokens[self.reduced].mean() / self.prefix)

    @property
    def share(self) -> float:
        """Bytes of the layers that are reduced, as a share of those of a dense cache."""
        entry = ENTRY_BYTES[self.model.dtype]
        dense = 2 * self.prefix * self.model.head_dim * entry
        return float(self.nbytes[self.reduced].mean() / dense)

    def save(self, path: str | Path) -> None:
        """Write the plan as a JSON file, which people may edit and :func:`esscher.load` reads."""
        header = {"kind": "plan", "version": VERSION}
        write_output(Path(path), as_json(header | as_tree(self)))

    def __repr__(self) -> str:
        low, high = self.tokens.min(), self.tokens.max()
        return (
            f"plan for {self.model.name}: {self.share:.1%} of the bytes and {self.ratio:.1%} of "
            f"{counted(self.prefix, 'token')}, {low:,} to {high:,} by key head"
        )


def read_plan(tree: Any, place: str) -> Plan:
    """Return the plan of a JSON file; of version 3 what was measured is left out.

    Raises
    ------
    InputError
        If it is of another version, has a field that is not known, or is no plan of its model.
    """
    fields = {name: value for name, value in tree.items() if name not in ("kind", "version")}
    version = tree.get("version")
    if version not in (3, 4, VERSION):
        raise InputError(
            f"{place} is damaged: it has version {shortened(version)}; this version of Esscher "
            f"reads 3 to {VERSION}: make the plan again"
        )
    if version == 3:
        fields = {name: value for name, value in fields.items() if name not in MEASURED}
    unknown = sorted(fields.keys() - set(Plan.__struct_fields__))
    if unknown:
        raise InputError(f"{place} is damaged: it has {shortened(unknown[0])}, which is not known")
    return as_record(fields, Plan, place)


class PlanResult(UsesPlan, Result["PlanSettings"]):
    """A plan with what it is predicted to cost, and what it cost on held-out text."""

    @cached_property
    def plan(self) -> Plan:
        """The record: what people edit, and what a model is run with.

        Raises
        ------
        NotFinished
            If the run has not come to a plan yet.
        """
        if not self.cells:
            raise NotFinished("there is no plan yet; run the command that began it again to resume")
        settings, data = self.setup.settings, self.data
        both = zip(_rows(data["key_bits"]), _rows(data["value_bits"]), strict=True)
        bits = tuple(tuple(zip(*rows, strict=True)) for rows in both)
        exact = (data["key_bits"] == 16) & (data["value_bits"] == 16)
        return Plan(
            model=self.setup.model,
            prefix=settings.prefix,
            keeping=settings.keeping,
            budgets=_rows(data["tokens"]),
            powers=_rows(data["power"]),
            bits=None if exact.all() else bits,
            selection=settings.selection,
            score=settings.score,
            sliding=tuple(data["layer"].values[data["sliding"].values].tolist()),
        )

    @property
    def checked(self) -> bool:
        """Whether the plan was compared with others on held-out text."""
        return bool(self.data["configuration"].size)

    @property
    def verdict(self) -> str | None:
        """What the check found the plan to be against uniform budgets; None without a check.

        "better" or "worse" if the paired interval over passages excludes that they are alike, else
        "undecided".
        """
        return str(self.data["verdict"].item()) if self.checked else None

    @property
    def best(self) -> tuple[str, ...]:
        """What the check found closest to dense; several if they cannot be told apart."""
        data = self.data.isel(configuration=self.data["closest"].values)
        order = data["over_best"].sel(bound="value").values.argsort(kind="stable")
        return tuple(data["configuration"].values[order].tolist())

    def save(self, path: str | Path) -> None:
        """Write the plan as JSON, or all numbers if the name ends in ``.safetensors``.

        :func:`esscher.load` reads both.
        """
        if Path(path).suffix == SUFFIX:
            super().save(path)
        else:
            self.plan.save(path)


def _rows(array: Any) -> tuple[tuple[Any, ...], ...]:
    """Rows of a grid by layer and key head."""
    return tuple(map(tuple, array.transpose("layer", "key_head").values.tolist()))
